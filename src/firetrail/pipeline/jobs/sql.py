"""SQL over a store: its views are tables, and only the rows and columns a query needs are read."""

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from firetrail.format.names import name_server
from firetrail.pipeline.datasource import prepare
from firetrail.pipeline.failures import original_errors
from firetrail.pipeline.jobs.query_plan import RequiredColumns, needs
from firetrail.pipeline.source.places import absolute
from firetrail.pipeline.source.plan.filters import bounds_text, with_slack
from firetrail.pipeline.source.plan.ranges import NO_BOUNDS
from firetrail.pipeline.source.schema import CHEAPEST, NAMES, STORE, ddl
from firetrail.pipeline.wire.broker_plan import check_name_server

VIEWS = {"messages": "queue", "log": "log"}
"""The tables, and the view of the data source that each one reads."""

_RESULT = "result"
Mode = Literal["failfast", "permissive"]
"""The reaction of a read to a damaged record: fail, or skip it."""
_NAMES = threading.RLock()
"""Held while the tables exist: threads of a session share its temporary views."""


def sql(
    spark: SparkSession,
    store: str | Path | Sequence[str | Path],
    query: str,
    *,
    mode: Mode = "failfast",
) -> DataFrame:
    """Run a query over the tables ``messages`` and ``log`` of a store.

    ``messages`` holds what consumers see, through the queues; ``log`` holds every record as stored.
    The query may use other tables of the session, too. Tables and temporary views of the session
    that are named ``messages`` or ``log`` are hidden during the call.

    Only the rows and columns that the query needs are read. Spark still applies all predicates
    itself, so the result is an ordinary frame.

    Args:
        spark: The session to run on.
        store: Folder or URL of a store, or ``namesrv=HOST:PORT`` to read from brokers, which have
            only ``messages``. A list of folders is read as one store, whose tables have a further
            column ``store``.
        query: SQL text. It is planned here, and runs when the result is used.
        mode: ``failfast``, the default, fails at a damaged record, and ``permissive`` skips it.

    Returns:
        The result as a Spark frame.

    Raises:
        PipelineError: The query is not valid, no name server answers, or the session is one of
            Spark Connect. Errors of the store, such as a missing folder, are
            raised by Spark when the result is used.
    """
    prepare(spark)
    option = _where(store)
    if option[0] == "namesrv":
        check_name_server(option[1])
    schema = _schema((*NAMES, STORE.name) if option[0] == "paths" else NAMES)
    with original_errors(), _NAMES, _set_aside(spark, VIEWS):
        for name, need in needs(spark, query, dict.fromkeys(VIEWS, schema)).items():
            reader = spark.read.format("rocketmq").option("view", VIEWS[name]).option(*option)
            reader = reader.option("mode", mode)
            _table(reader, need, schema).createOrReplaceTempView(name)
        # The alias keeps Spark from resolving a sort or filter of the result with columns that
        # the query does not return, which were not read.
        return spark.sql(query).alias(_RESULT)


@contextmanager
def _set_aside(spark: SparkSession, names: Iterable[str]) -> Iterator[None]:
    """Free names of temporary views for the block, and put the session's own views back after it.

    This uses the catalog in the JVM, because ``spark.catalog`` cannot recreate a view as it was,
    and uncaches what it drops.
    """
    catalog = spark._jsparkSession.sessionState().catalog()
    found = {name: catalog.getRawTempView(name) for name in names}
    own = {name: view.get() for name, view in found.items() if view.isDefined()}
    for name in own:
        catalog.dropTempView(name)
    try:
        yield
    finally:
        for name in found:
            spark.catalog.dropTempView(name)
        for name, view in own.items():
            catalog.createTempView(name, view, True)


def _where(store: str | Path | Sequence[str | Path]) -> tuple[str, str]:
    """Return the option of the data source that names what is read."""
    if not isinstance(store, str | Path):
        return "paths", json.dumps([absolute(str(each)) for each in store])
    namesrv = name_server(str(store))
    return ("path", absolute(str(store))) if namesrv is None else ("namesrv", namesrv)


def _schema(columns: Sequence[str] = NAMES) -> StructType:
    schema = StructType.fromDDL(ddl(columns))
    assert isinstance(schema, StructType)
    return schema


def _table(reader: DataFrameReader, need: RequiredColumns, schema: StructType) -> DataFrame:
    """Return a table with all columns, of which only those that a query needs are read.

    The others are null, so that a query with ``*`` has the same columns as over the whole table.
    """
    reader = reader.option("columns", ",".join(need.columns or (CHEAPEST,)))
    if need.bounds != NO_BOUNDS:
        reader = reader.option("bounds", bounds_text(with_slack(need.bounds)))
    return reader.load().select(
        *(
            F.col(field.name)
            if field.name in need.columns
            else F.lit(None).cast(field.dataType).alias(field.name)
            for field in schema
        )
    )


class SqlResult:
    """The rows of a query as JSON, with one partition in memory at a time.

    Binary columns are base64, and timestamps ISO 8601 in the session's time zone, as Spark writes
    them.
    """

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self.names = frame.columns
        self.types = [field.dataType.typeName() for field in frame.schema]
        """Spark's names: ``string``, ``binary``, ``long``, …"""

    def lines(self) -> Iterator[str]:
        """Yield each row as a JSON object."""
        return _lines(self._frame)

    def rows(self, limit: int | None = None) -> Iterator[list[Any]]:
        """Yield the values of at most ``limit`` rows; columns may have the same name."""
        frame = self._frame.toDF(*(f"c{number}" for number in range(len(self.names))))
        for line in _lines(frame if limit is None else frame.limit(limit)):
            yield list(json.loads(line).values())

    def write_parquet(self, folder: str | Path) -> None:
        """Write all rows as Parquet files to a folder that does not exist yet."""
        with original_errors():
            self._frame.write.parquet(str(folder))


def _lines(frame: DataFrame) -> Iterator[str]:
    whole = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
    with original_errors():
        for row in frame.select(whole).toLocalIterator(prefetchPartitions=True):
            yield row[0]
