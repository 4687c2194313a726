"""SQL over a store: its views as tables, and only the rows and columns that a query needs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from firetrail.format.names import name_server
from firetrail.pipeline.failures import original_errors
from firetrail.pipeline.jobs.query_plan import Need, needs
from firetrail.pipeline.session import prepare
from firetrail.pipeline.source.filters import bounds_text, with_slack
from firetrail.pipeline.source.places import absolute
from firetrail.pipeline.source.ranges import NO_BOUNDS
from firetrail.pipeline.source.schema import CHEAPEST, NAMES, STORE, ddl

VIEWS = {"messages": "queue", "log": "log"}
"""Name of each table, and the view of the data source behind it."""

_RESULT = "result"
_NAMES = threading.RLock()
"""Who has it may give the tables their names: threads share the temporary views of a session."""


def sql(spark: SparkSession, store: str | Path | Sequence[str | Path], query: str) -> DataFrame:
    """The result of a query over the tables ``messages`` and ``log`` of a store.

    ``messages`` is what consumers see, through the queues, and ``log`` every record as stored. The
    query may use the session's other tables as well; temporary views with these two names are
    replaced, and gone afterwards. With ``namesrv=HOST:PORT`` as the store, brokers are asked; they
    have ``messages`` only. Several stores are read as one; the tables then have a column ``store``.

    Only the rows and columns that the query needs are read. Spark applies all of its predicates
    to what was read, so the frame may be used like any other.
    """
    prepare(spark)
    option = _where(store)
    schema = _schema((*NAMES, STORE.name) if option[0] == "paths" else NAMES)
    with original_errors(), _NAMES:
        try:
            for name, need in needs(spark, query, dict.fromkeys(VIEWS, schema)).items():
                reader = spark.read.format("rocketmq").option("view", VIEWS[name]).option(*option)
                _table(reader, need, schema).createOrReplaceTempView(name)
            # Under a name of its own: Spark would find columns for a sort or a filter of the result
            # that the query does not return, and that were not read.
            return spark.sql(query).alias(_RESULT)
        finally:
            for name in VIEWS:
                spark.catalog.dropTempView(name)


def _where(store: str | Path | Sequence[str | Path]) -> tuple[str, str]:
    """The option that names what is read."""
    if not isinstance(store, str | Path):
        return "paths", json.dumps([absolute(str(each)) for each in store])
    namesrv = name_server(str(store))
    return ("path", absolute(str(store))) if namesrv is None else ("namesrv", namesrv)


def _schema(columns: Sequence[str] = NAMES) -> StructType:
    schema = StructType.fromDDL(ddl(columns))
    assert isinstance(schema, StructType)
    return schema


def _table(reader: DataFrameReader, need: Need, schema: StructType) -> DataFrame:
    """A table with all columns, of which those that a query needs are read, and others are null.

    So the query means the same as over the whole table, where it selects ``*`` or counts columns.
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


class Result:
    """The rows of a query as JSON has them, one partition in memory at a time.

    Binary columns are base64 and timestamps ISO 8601 in the session's time zone, as Spark writes
    them.
    """

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self.names = frame.columns
        self.types = [field.dataType.typeName() for field in frame.schema]
        """Spark's names: ``string``, ``binary``, ``long``, …"""

    def lines(self) -> Iterator[str]:
        """Each row as a JSON object."""
        return _lines(self._frame)

    def rows(self, limit: int | None = None) -> Iterator[list[Any]]:
        """The values of each row, or of the first ones; columns may have the same name."""
        frame = self._frame.toDF(*(f"c{number}" for number in range(len(self.names))))
        for line in _lines(frame if limit is None else frame.limit(limit)):
            yield list(json.loads(line).values())

    def write_parquet(self, folder: str | Path) -> None:
        """All rows as Parquet files in a folder that is not there yet."""
        with original_errors():
            self._frame.write.parquet(str(folder))


def _lines(frame: DataFrame) -> Iterator[str]:
    whole = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
    with original_errors():
        for row in frame.select(whole).toLocalIterator(prefetchPartitions=True):
            yield row[0]
