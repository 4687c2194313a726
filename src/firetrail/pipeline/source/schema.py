"""The columns of the data source: their types in Spark and Arrow, and their origin.

Spark accepts only certain Arrow types: plain strings and binaries, times in µs and UTC, and every
field nullable.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa

from firetrail.errors import ConfigError
from firetrail.format import columns as col
from firetrail.pipeline.kernels import arrow as gather
from firetrail.text import did_you_mean


@dataclass(frozen=True, slots=True)
class SourceField:
    """A column; ``source`` is a column of a scan for numbers, else a kind of the gather kernel."""

    name: str
    sql: str
    arrow: pa.DataType
    source: int


CHEAPEST = "queue_id"
"""The column that is read if rows are only counted."""
NO_SOURCE = -1
TIMESTAMP = pa.timestamp("us", tz="UTC")
TEXTS = pa.list_(pa.field("element", pa.string()))
TEXT_MAP = pa.map_(pa.string(), pa.string())

FIELDS = (
    SourceField("topic", "string", pa.string(), gather.TOPIC),
    SourceField("queue_id", "int", pa.int32(), col.QUEUE_ID),
    SourceField("queue_offset", "bigint", pa.int64(), col.QUEUE_OFFSET),
    SourceField("physical_offset", "bigint", pa.int64(), col.PHYSICAL_OFFSET),
    SourceField("msg_id", "string", pa.string(), gather.MESSAGE_ID),
    SourceField("tags", "string", pa.string(), gather.TAGS),
    SourceField("keys", "array<string>", TEXTS, gather.KEYS),
    SourceField("properties", "map<string,string>", TEXT_MAP, gather.PROPERTIES),
    SourceField("body", "binary", pa.binary(), gather.BODY),
    SourceField("born_time", "timestamp", TIMESTAMP, col.BORN_TIME),
    SourceField("store_time", "timestamp", TIMESTAMP, col.STORE_TIME),
    SourceField("born_host", "string", pa.string(), gather.BORN_HOST),
    SourceField("store_host", "string", pa.string(), gather.STORE_HOST),
    SourceField("sys_flag", "int", pa.int32(), col.SYS_FLAG),
    SourceField("flag", "int", pa.int32(), col.FLAG),
    SourceField("reconsume_times", "int", pa.int32(), col.RECONSUME_TIMES),
    SourceField("prepared_offset", "bigint", pa.int64(), col.PREPARED_OFFSET),
    SourceField("size", "int", pa.int32(), col.SIZE),
)
NAMES = tuple(field.name for field in FIELDS)
METADATA = tuple(name for name in NAMES if name not in ("body", "properties"))
"""All columns except the two that hold nearly all bytes of a row."""
STORE = SourceField("store", "string", pa.string(), NO_SOURCE)
"""The store of a row. The column exists if several stores are read, or if it is named."""
BY_NAME = {field.name: field for field in (*FIELDS, STORE)}


def own_name(name: str, known: Collection[str] = tuple(BY_NAME)) -> str:
    """Return a column's own name for one in any case; an unknown one is returned as it is.

    Spark compares names without regard to case, too.
    """
    return name.lower() if name.lower() in known else name


def check_names(names: Sequence[str], known: Collection[str]) -> None:
    """Raise ConfigError for a column that is unknown or named twice, or if no column is named."""
    for name in names:
        if name not in known:
            hint, existing = did_you_mean(name, known), ", ".join(known)
            raise ConfigError("columns", name, f"no such column{hint}; the columns are {existing}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise ConfigError("columns", twice, "is named twice; name each column once")
    if not names:
        raise ConfigError("columns", "", f"names no column; the columns are {', '.join(known)}")


def fields(names: Sequence[str] = NAMES) -> tuple[SourceField, ...]:
    """Return the fields with these names; raise ConfigError for an unknown or repeated one."""
    check_names(names, tuple(BY_NAME))
    return tuple(BY_NAME[name] for name in names)


def arrow_schema(names: Sequence[str] = NAMES) -> pa.Schema:
    """Return the Arrow schema of batches with these columns."""
    return pa.schema([pa.field(field.name, field.arrow) for field in fields(names)])


def ddl(names: Sequence[str] = NAMES) -> str:
    """Return the schema in Spark's notation: ``topic string, queue_id int, …``.

    ``timestamp`` alone would be a type without a time zone if ``spark.sql.timestampType`` says so.
    """
    types = {"timestamp": "timestamp_ltz"}
    return ", ".join(f"{field.name} {types.get(field.sql, field.sql)}" for field in fields(names))
