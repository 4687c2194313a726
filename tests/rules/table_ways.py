"""Messages of every kind for tables, and the checks of a table that is written in one way.

It is written in two runs and a retry. Before each run, a dry run must count what the run then does.
After each, the check against the store must succeed, and queries by each column must find what a
scan of all files finds.
"""

import json
import shutil
import zlib
from collections import Counter
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder
from tests.helpers import small_config

from firetrail import Message, Store
from firetrail.format.layout import COMPRESSED
from firetrail.pipeline.tables.runs import table_job
from firetrail.pipeline.tables.runs.explanation import explain_table
from firetrail.pipeline.tables.runs.retry_job import TableRetry, retry_table
from firetrail.pipeline.tables.runs.table_result import TableResult
from firetrail.pipeline.tables.runs.verification import verify_table

TOPIC = "orders"


@dataclass(frozen=True)
class Body:
    """A message: its body, its key, and how it is compressed."""

    content: object = b""
    key: str = ""
    sys_flag: int = 0

    def message(self, queue_id: int) -> Message:
        is_raw = isinstance(self.content, bytes)
        body = self.content if is_raw else json.dumps(self.content, ensure_ascii=False).encode()
        assert isinstance(body, bytes)
        keys = [self.key] if self.key else []
        return Message(TOPIC, body, keys=keys, queue_id=queue_id, sys_flag=self.sys_flag)


@dataclass(frozen=True)
class Case:
    """Messages for a table; a half of them is added by each of two runs."""

    bodies: list[Body]
    options: dict[str, Any] = field(default_factory=dict)
    retried: str = ""
    """The columns with which rejected messages are decoded again."""
    rejected: int = 0
    """The number of rows of the table of rejected messages before that, and after it."""
    still: int = 0


ZIPPED = Body(zlib.compress(b'{"id": 30, "v": 1}'), sys_flag=COMPRESSED)
BROKEN = Body(b"not compressed", sys_flag=COMPRESSED)
JSON_BODIES = [
    Body({"id": 1, "v": 1, "name": "ü", "user.id": 7, "user": {"id": 1000, "tags": ["x"]}}),
    Body({"id": 2, "v": 1000.5, "name": "x" * 40, "user": {"id": 7}}),
    Body({"id": 3, "at": "0001-01-01T00:00:00Z", "day": "0999-12-31", "note": {"text": "a"}}),
    Body(b"{broken"),
    Body(b"", key="1"),
    Body(b""),
    Body({"v": 2}),
    ZIPPED,
    Body({"id": 2, "v": 3, "name": None}),
    Body({"id": 5, "v": -1, "user.id": 1000, "user": {"id": 1, "new": {"user.id": 5}}}),
    Body({"id": 6, "v": "x", "user": {}}),
    Body({"id": 7, "at": "2026-03-01 08:00", "day": "2026-03-01", "note.text": "b"}),
    BROKEN,
    Body({"ID": 8, "Name": "y", "note": {"text": "z"}, "late": True}),
    Body(b"", key="+7"),
    Body(b"", key="x"),
]
JSON_COLUMNS = "id bigint, v decimal(4,2), at timestamp, day date"


def _keys(value: object, *texts: str) -> list[Body]:
    return [each for text in texts for each in (Body({"id": value, "n": 1}), Body(b"", key=text))]


def _event(kind: str, *rows: Any, old: Any = None, **more: Any) -> Body:
    event = {"type": kind, "database": "shop", "table": "o", "isDdl": False, "es": 1, "sql": ""}
    event |= {"pkNames": ["id"], "mysqlType": {"id": "bigint"}}
    return Body(event | {"data": rows, "old": old} | more)


EVENTS = [
    _event("INSERT", {"id": "1", "v": "1"}, {"id": "2", "v": "2"}, {"id": "3", "v": "3"}),
    _event("UPDATE", {"id": "4", "v": "1"}, old=[{"id": "1"}]),
    _event("INSERT", {"id": "5", "v": "1"}, {"id": None, "v": "2"}),
    _event("DELETE", {"id": "2", "v": "2"}),
    Body(b"{broken"),
    _event("INSERT", {"id": "6", "v": "1"}, {"id": "7", "v": "x"}),
    _event(
        "UPDATE", {"id": "3", "v": "1000"}, {"id": "9", "v": "1"}, old=[{"v": "3"}, {"id": "5"}]
    ),
    _event("UPDATE", {"id": None, "v": "1"}, old=[{"id": "4"}]),
    Body(b""),
]

EVENT_COLUMNS = "id bigint, v decimal(4,2)"

CASES = {
    "json": Case(JSON_BODIES, {"schema": JSON_COLUMNS}, "v decimal(9,2)", 8, 7),
    "json with a key": Case(
        JSON_BODIES, {"schema": JSON_COLUMNS, "upsert": "id"}, "v decimal(9,2)", 7, 6
    ),
    "keys of numbers": Case(
        _keys(5, "5", "5.0", "+5", "5.5", "1e400", "x"), {"upsert": "id"}, "n bigint", 3, 3
    ),
    "keys of times": Case(
        _keys("2026-03-01 08:00", "2026-03-01T08:00", "2026-03-01T00:00Z", "2026-03-01", "5"),
        {
            **{"upsert": "id", "schema": "id timestamp"},
            "decoder_options": {"timeZone": "Asia/Shanghai"},
        },
        *("n bigint", 1, 1),
    ),
    "keys of other types": Case(
        [
            Body({"id": (1 << 53) + 1}),
            Body({"id": 2.5}),
            Body({"id": 3, "n": 1}),
            Body({"id": "x"}),
        ],
        *({"upsert": "id", "schema": "id bigint"}, "n bigint", 2, 2),
    ),
    "events": Case(EVENTS, {"decoder": "canal", "schema": EVENT_COLUMNS}, "v decimal(9,2)", 6, 6),
    "events with a key": Case(
        EVENTS,
        {"decoder": "canal", "schema": EVENT_COLUMNS, "upsert": "id"},
        *("v decimal(9,2)", 5, 4),
    ),
    "json with a history": Case(
        JSON_BODIES,
        {"schema": JSON_COLUMNS, "upsert": "id", "history": True},
        *("v decimal(9,2)", 7, 6),
    ),
    "events with a history": Case(
        EVENTS,
        {"decoder": "canal", "schema": EVENT_COLUMNS, "upsert": "id", "history": True},
        *("v decimal(9,2)", 5, 4),
    ),
    "csv": Case(
        [Body(b"1,2\n3,4"), Body(b"5,x"), Body(b"6"), Body(b"7,1000\n8,9"), Body(b"9,")],
        {"decoder": "csv", "decoder_options": {"columns": "id bigint, v decimal(3,0)"}},
        *("v decimal(9,0)", 3, 2),
    ),
}


class Ways:
    """One case, written in one way: in two runs and a retry."""

    def __init__(self, case: Case, stores: list[Path], to: Path, spark: Any) -> None:
        self.case = case
        self.to = to
        self.spark = spark
        self.results: list[dict[str, object]] = []
        for store in stores:
            self.source = f"broker={store}"
            self.run()
        self.retry()

    def run(self) -> None:
        options = {**self.case.options, "split_bytes": 4096}
        planned = explain_table(self.spark, self.source, TOPIC, self.to, **options)
        done = table_job.table(self.spark, self.source, TOPIC, self.to, **options)
        assert planned.messages == done.messages
        assert (planned.rejected, planned.skipped) == (done.rejected, done.skipped)
        assert planned.schema == done.schema
        assert sum(each.messages for each in planned.rejects) == done.rejected
        if not done.key:
            assert planned.rows == done.rows
        self.results.append(without_places(done))
        self.check()

    def retry(self) -> None:
        done = retry_table(self.spark, self.to, schema=self.case.retried)
        self.results.append(without_places(done))
        assert (done.retried, done.rejected) == (self.case.rejected, self.case.still)
        self.check()

    def check(self) -> None:
        found = verify_table(self.source, self.to)
        assert found.ok, found
        for place in (self.to, self.rejects):
            if DeltaTable.is_deltatable(str(place)):
                check_queries(place)

    @property
    def rejects(self) -> Path:
        return self.to.with_name(f"{self.to.name}__rejected")

    def rows(self) -> list[list[str]]:
        """Return the rows of both tables as texts, in one order."""
        return [
            sorted(map(repr, scan(place).to_pylist()))
            for place in (self.to, self.rejects)
            if DeltaTable.is_deltatable(str(place))
        ]


def without_places(done: TableResult | TableRetry) -> dict[str, object]:
    """Return what the result of a table in another folder has, too."""
    return {**done._asdict(), "table": "", "rejected_table": ""}


def scan(place: Path) -> pa.Table:
    """Return the rows of all files of a table, read without its log's statistics."""
    table = DeltaTable(str(place))
    schema = pa.schema(table.to_pyarrow_dataset().schema)
    files = [pq.ParquetFile(uri).read() for uri in table.file_uris()]
    whole = pa.concat_tables(files, promote_options="default")
    names = [name for name in schema.names if name in whole.schema.names]
    return whole.select(names)


def check_queries(place: Path) -> None:
    """Check that queries for each value of each simple column find all its rows."""
    rows = scan(place)
    dataset = DeltaTable(str(place)).to_pyarrow_dataset()
    query = QueryBuilder().register("t", DeltaTable(str(place)))
    for column in rows.schema:
        if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
            continue
        for value, number in Counter(rows.column(column.name).to_pylist()).items():
            if value is None:
                wanted = ds.field(column.name).is_null()
            else:
                wanted = pc.equal(ds.field(column.name), pa.scalar(value, column.type))
            assert dataset.to_table(filter=wanted).num_rows == number, (column.name, value)
            text = f'select 1 from t where "{column.name}" {_condition(value)}'
            assert pa.table(query.execute(text).read_all()).num_rows == number, text


def _condition(value: Any) -> str:
    if value is None:
        return "is null"
    if isinstance(value, datetime):
        return f"= arrow_cast('{value.isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    if isinstance(value, date):
        return f"= date '{value.isoformat()}'"
    text = str(value).replace("'", "''")
    return f"= '{text}'" if isinstance(value, str) else f"= {value}"


def stores_of(case: Case, folder: Path) -> list[Path]:
    """Write a store with a half of the messages, and one that has continued with the others."""
    half, whole = folder / "half", folder / "whole"
    middle = len(case.bodies) // 2
    for root, numbers in ((half, range(middle)), (whole, range(middle, len(case.bodies)))):
        if root is whole:
            shutil.copytree(half, whole)
        with Store.open(root, small_config()) as store:
            for number in numbers:
                store.put(case.bodies[number].message(number % 2))
    return [half, whole]
