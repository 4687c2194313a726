"""Small topics, and tables read by libraries that share no code with the job.

The format of new tables is FORMAT, which the marks of ``formats`` choose.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession
from tests.helpers import small_config

from firetrail import Message, Store
from firetrail.pipeline.tables.runs import table_job
from firetrail.pipeline.tables.runs.table_result import TableResult

Row = dict[str, Any]
FORMAT = "delta"


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


def spark_table(spark: SparkSession, source: Path, to: Path, **options: Any) -> TableResult:
    """Run the job, with tasks of Spark."""
    return table_job.table(spark, source, "orders", to, format=FORMAT, **options)


def table(source: object, to: Path, topic: str = "orders", **options: Any) -> TableResult:
    """Run the job, which must not need Spark."""
    if not (Path(to) / "_firetrail").exists():
        options = {"format": FORMAT, **options}
    return table_job.table(_no_spark, source, topic, to, **options)  # type: ignore[arg-type]


def _no_spark() -> Any:
    raise AssertionError("little work needs no Spark")


def rows(place: Path, columns: str = "*", where: str = "true") -> list[Row]:
    """Return the rows of a table, as DataFusion or PyIceberg read them, in the order of the log."""
    query = f"select {columns} from t where {where} order by _broker, _physical_offset"
    if is_delta(place):
        read = QueryBuilder().register("t", DeltaTable(str(place))).execute(query).read_all()
        return _rows(pa.table(read))
    assert where == "true"
    found = iceberg(place).scan().to_arrow() if is_iceberg(place) else parquet(place).to_table()
    ordered = found.sort_by([("_broker", "ascending"), ("_physical_offset", "ascending")])
    return _rows(ordered if columns == "*" else ordered.select(columns.split(", ")))


def _rows(found: pa.Table) -> list[Row]:
    rows: list[Row] = found.to_pylist()
    return rows


def is_delta(place: Path) -> bool:
    return DeltaTable.is_deltatable(str(place))


def is_iceberg(place: Path) -> bool:
    return (place / "metadata" / "version-hint.text").exists()


def exists(place: Path) -> bool:
    """Whether there is a table, in whatever format."""
    lists = place / "_firetrail" / "files.json"
    return is_delta(place) or is_iceberg(place) or lists.exists()


def iceberg(place: Path) -> StaticTable:
    return StaticTable.from_metadata(str(place))


def parquet(place: Path) -> ds.Dataset:
    """Return the rows of the files in the list of a Parquet table."""
    listed = json.loads((place / "_firetrail" / "files.json").read_text())["files"]
    parts = [ds.dataset(str(place / path)) for path, _ in listed]
    schema = pa.unify_schemas([part.schema for part in parts])
    return ds.dataset([str(place / path) for path, _ in listed], schema)


def columns_of(place: Path) -> pa.Schema:
    """Return the columns of a table, without the variants of types for large texts."""
    if is_delta(place):
        return pa.schema(DeltaTable(str(place)).schema().to_arrow())
    if is_iceberg(place):
        return iceberg(place).schema().as_arrow()
    return parquet(place).schema


def ids(place: Path) -> list[int]:
    return [row["id"] for row in rows(place, "id")]


def files_of(place: Path) -> list[str]:
    """Return the names of all Parquet files and hidden files in a folder."""
    return sorted(path.name for path in place.iterdir() if path.is_file())
