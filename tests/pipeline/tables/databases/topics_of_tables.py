"""Topics with the messages of many tables, and databases read without the job."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from tests.helpers import small_config
from tests.pipeline.tables.topics import Row, rows

from firetrail import Message, Store
from firetrail.pipeline.tables.databases import database_job
from firetrail.pipeline.tables.databases.database_result import DatabaseResult

TYPES = {"id": "bigint", "total": "decimal(12,2)", "note": "varchar(40)"}


def canal(
    table: str, *data: Row, kind: str = "INSERT", old: list[Row] | None = None, **more: Any
) -> Row:
    """Return an event of Canal in its flat form; ``table`` is ``DATABASE.TABLE``."""
    database, _, name = table.partition(".")
    names = {column for row in data for column in row}
    return {
        **{"data": list(data), "old": old, "database": database, "table": name, "type": kind},
        **{"mysqlType": {each: TYPES.get(each, "varchar(9)") for each in sorted(names)}},
        **{"pkNames": ["id"], "isDdl": False, "es": 1, "ts": 2, "id": 7, "sql": ""},
        **{"sqlType": {}},
        **more,
    }


def statement(table: str, sql: str, kind: str = "ALTER") -> Row:
    """Return a statement in Canal's form."""
    return canal(table, kind=kind, isDdl=True, sql=sql, pkNames=None, mysqlType=None, data=None)


def order(number: int, total: str = "1.50", **more: str) -> Row:
    return {"id": str(number), "total": total, **more}


def send(root: Path, *messages: Message | object, topic: str = "cdc", queues: int = 2) -> None:
    """Store messages, or bodies of them: JSON unless they are bytes, in turn in each queue."""
    with Store.open(root, small_config()) as store:
        for number, each in enumerate(messages):
            queue = number % queues
            if not isinstance(each, Message):
                body = each if isinstance(each, bytes) else json.dumps(each).encode()
                each = Message(topic, body, queue_id=queue)
            store.put(each)


def tagged(tag: str, *bodies: Row) -> list[Message]:
    return [Message("cdc", json.dumps(body).encode(), tags=tag, queue_id=0) for body in bodies]


def database(source: object, to: Path, **options: Any) -> DatabaseResult:
    """Run the job, which must not need Spark."""
    return database_job.database(no_spark, source, "cdc", to, **options)  # type: ignore[arg-type]


def no_spark() -> Any:
    raise AssertionError("little work needs no Spark")


def tables_in(place: Path) -> list[str]:
    """Return the folders of all Delta tables below a folder."""
    found = sorted(path.parent for path in place.rglob("_delta_log"))
    return [str(path.relative_to(place)) for path in found]


def ids(place: Path) -> list[Any]:
    return sorted(row["id"] for row in rows(place, "id"))


def rejects(place: Path) -> list[str]:
    """Return the reasons of the table of rejected messages of a table or a database."""
    other = place.with_name(f"{place.name}__rejected")
    if not DeltaTable.is_deltatable(str(other)):
        return []
    return [row["reason"] for row in rows(other, "reason, _broker, _physical_offset")]


def positions(places: Iterable[Path]) -> list[tuple[int, int]]:
    """Return the queue and the offset of all rows of some tables."""
    return sorted(
        (row["_queue"], row["_offset"])
        for place in places
        for row in rows(place, "_broker, _queue, _offset, _physical_offset")
    )
