"""The columns and the options of the sink."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from firetrail.errors import ConfigError
from firetrail.pipeline.options import (
    GROUP,
    NAMESRV,
    RETRY,
    RETRY_MS,
    Option,
    OptionTable,
    any_text,
)
from firetrail.pipeline.source.places import absolute
from firetrail.pipeline.source.schema import STORE, fields
from firetrail.settings.settings_table import Whole
from firetrail.store.root.sizes import adopt_sizes
from firetrail.store.settings.store_config import StoreConfig
from firetrail.system import SYSTEM
from firetrail.text import did_you_mean

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "topic": ("string",),
    "body": ("binary", "string"),
    "tags": ("string",),
    "keys": ("array<string>", "string"),
    "properties": ("map<string,string>",),
    "queue_id": ("int", "bigint", "smallint", "tinyint"),
    "delay_level": ("int", "bigint", "smallint", "tinyint"),
}
"""Columns by name, with the allowed types; the first two are required."""
REQUIRED = ("topic", "body")
IGNORED = frozenset(field.name for field in (*fields(), STORE)) - COLUMNS.keys()
"""Columns of the source that a store sets itself, so that rows can be read, changed and written."""
QUEUES_MAX = 1024
_QUEUES = Option("queues", "queues", Whole(1, QUEUES_MAX))
_WRITE_ID = Option("writeId", "writer_id", any_text("an id of this write"))
_OF_SPARK = (
    Option("checkpointLocation", "checkpoint", any_text("a folder")),
    Option("queryName", "query", any_text("a name")),
)
"""Options of Spark itself, which it passes on to every sink."""
OPTIONS = OptionTable(
    (
        Option("path", "store", any_text("the folder of a store")),
        _QUEUES,
        _WRITE_ID,
        Option("stagingPath", "staging", any_text("a folder")),
        Option("brokerConf", "config", any_text("a file")),
        *_OF_SPARK,
    )
)
WIRE_OPTIONS = OptionTable(
    (
        NAMESRV,
        Option("credentialsFile", "access_file", any_text("a file that only its owner can read")),
        Option("group", "group", any_text("the name of a producer group")),
        _QUEUES,
        _WRITE_ID,
        RETRY,
        *_OF_SPARK,
    )
)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options for writing to a store."""

    store: Path
    queues: int
    """Rows without a queue id are distributed over this many queues, in turn."""
    writer_id: str | None
    """Id under which batches are numbered, so that none is written twice. If it is None, a stream
    uses the id of its query."""
    staging: Path
    config: StoreConfig
    checkpoint: str | None
    """The checkpoint location of a stream; None if it has none of its own."""


@dataclass(frozen=True, slots=True)
class WireSinkOptions:
    """The options for writing to brokers."""

    namesrv: str
    group: str
    queues: int | None
    """Rows without a queue id are distributed over this many queues, in turn; None for all."""
    writer_id: str | None
    """Id from which row ids are derived, so that readers recognize a row that was sent twice. If it
    is None, a stream uses the id of its query, and a batch has no row ids."""
    retry_ms: int
    """The time for which each request is retried."""
    access_file: str = ""
    """File with credentials and TLS; empty for those in the environment."""


def check_appended(schema: StructType, overwrite: bool) -> None:
    """Raise ConfigError unless the mode is append and the columns are the sink's."""
    if overwrite:
        raise ConfigError("mode", "overwrite", "a log can only be appended to: use mode('append')")
    check_columns(schema)


def check_columns(schema: StructType) -> None:
    """Raise ConfigError unless the columns are the sink's, with their types.

    Names are compared without regard to case, as Spark does by default.
    """
    found: dict[str, StructField] = {}
    for field in schema.fields:
        name = field.name.lower()
        if name in IGNORED:
            continue
        if name not in COLUMNS:
            raise ConfigError(
                "column",
                field.name,
                f"the sink has no such column{did_you_mean(name, COLUMNS)}; it takes "
                f"{', '.join(COLUMNS)}",
            )
        if name in found:
            twice = f"the frame has {found[name].name}, too, and case does not count: drop one"
            raise ConfigError("column", field.name, twice)
        found[name] = field
    for name in REQUIRED:
        if name not in found:
            names = ", ".join(schema.fieldNames())
            raise ConfigError("column", name, f"is missing; the frame has only {names}: add it")
    for name, field in found.items():
        _check_type(name, field)


def _check_type(name: str, field: StructField) -> None:
    found = field.dataType.simpleString()
    if found not in COLUMNS[name]:
        allowed = " or ".join(COLUMNS[name])
        raise ConfigError(
            f"column {field.name}", found, f"must be {allowed}{_cast_hint(found, name)}"
        )


def _cast_hint(found: str, column: str) -> str:
    """Return the remedy for a null, an empty array or an empty map, which Spark types as void."""
    if "void" not in found:
        return ""
    return f"; void has no type of its own, so cast({column} as {COLUMNS[column][0]})"


def with_own_names(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with the names of the sink for columns that are spelled in another case."""
    return batch.rename_columns([name.lower() for name in batch.schema.names])


def parse_options(options: Mapping[str, str], *, stream: bool) -> SinkOptions:
    """Parse the options of the sink; raise ConfigError for one that is unknown or invalid."""
    given = OPTIONS.values(OPTIONS.named(options))
    store = given.get("store")
    if not store:
        call = "start" if stream else "save"
        raise ConfigError("path", store, f"name the folder of the store: .{call}(path)")
    if "://" in store:
        raise ConfigError("path", store, "the sink can only write to a local folder")
    root = Path(absolute(store))
    staging = given.get("staging") or str(root.with_name(f"{root.name}.staging"))
    return SinkOptions(
        root,
        given.get("queues", 1),
        given.get("writer_id") or None,
        Path(absolute(staging)),
        _config(given.get("config"), root),
        given.get("checkpoint"),
    )


def is_wire(options: Mapping[str, str]) -> bool:
    """Whether the options name brokers instead of a store."""
    return "namesrv" in map(str.lower, options)


def parse_wire_options(options: Mapping[str, str]) -> WireSinkOptions:
    """Parse the options of the sink for brokers; raise ConfigError for an invalid one."""
    given = WIRE_OPTIONS.values(WIRE_OPTIONS.named(options))
    return WireSinkOptions(
        given["namesrv"],
        given.get("group") or GROUP,
        given.get("queues"),
        given.get("writer_id") or None,
        given.get("retry_ms", RETRY_MS),
        given.get("access_file", ""),
    )


def _config(broker_conf: str | None, root: Path) -> StoreConfig:
    config = StoreConfig()
    if broker_conf:
        config = StoreConfig.from_properties(Path(absolute(broker_conf))).config
    return adopt_sizes(SYSTEM, root, config)
