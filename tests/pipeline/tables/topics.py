"""Small topics, and tables read by libraries that share no code with the job."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from tests.helpers import small_config

from firetrail import Message, Store
from firetrail.pipeline.tables.runs import table_job
from firetrail.pipeline.tables.runs.table_result import TableResult

Row = dict[str, Any]


def put(root: Path, *bodies: object, topic: str = "orders", queues: int = 2) -> None:
    """Store messages, whose bodies are JSON unless they are bytes, in turn in each queue."""
    with Store.open(root, small_config()) as store:
        for number, body in enumerate(bodies):
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            message = Message(
                topic, content, tags="t", keys=[f"k{number}"], queue_id=number % queues
            )
            store.put(message)


def numbered(numbers: Iterable[int]) -> list[Row]:
    return [{"id": number, "name": f"n{number}"} for number in numbers]


def table(source: object, to: Path, topic: str = "orders", **options: Any) -> TableResult:
    """Run the job, which must not need Spark."""
    return table_job.table(_no_spark, source, topic, to, **options)  # type: ignore[arg-type]


def _no_spark() -> Any:
    raise AssertionError("little work needs no Spark")


def rows(place: Path, columns: str = "*", where: str = "true") -> list[Row]:
    """Return the rows of a Delta table, as DataFusion reads them, in the order of the log."""
    query = f"select {columns} from t where {where} order by _broker, _physical_offset"
    read = QueryBuilder().register("t", DeltaTable(str(place))).execute(query).read_all()
    found: list[Row] = pa.table(read).to_pylist()
    return found


def ids(place: Path) -> list[int]:
    return [row["id"] for row in rows(place, "id")]


def files_of(place: Path) -> list[str]:
    """Return the names of all Parquet files and hidden files in a folder."""
    return sorted(path.name for path in place.iterdir() if path.is_file())
