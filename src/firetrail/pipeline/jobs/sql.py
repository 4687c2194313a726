"""SQL over a store: its views as tables, and only the columns that a query needs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from firetrail.format.names import name_server
from firetrail.pipeline.failures import original_errors
from firetrail.pipeline.source.places import is_remote, local_path
from firetrail.pipeline.source.schema import NAMES, ddl

VIEWS = {"messages": "queue", "log": "log"}
"""Name of each table, and the view of the data source behind it."""

_CHEAPEST = "queue_id"
"""The column that is read where a query needs none, as in ``count(*)``."""


def sql(spark: SparkSession, store: str | Path, query: str) -> DataFrame:
    """The result of a query over the tables ``messages`` and ``log`` of a store.

    ``messages`` is what consumers see, through the queues, and ``log`` every record as stored. The
    query may use the session's other tables as well; temporary views with these two names are
    replaced, and gone afterwards. With ``namesrv=HOST:PORT`` as the store, brokers are asked; they
    have ``messages`` only.
    """
    namesrv = name_server(str(store))
    option = ("path", _absolute(str(store))) if namesrv is None else ("namesrv", namesrv)
    with original_errors():
        try:
            views, columns = needed(spark, query)
            for name in views:
                reader = spark.read.format("rocketmq").option("view", VIEWS[name])
                frame = reader.option("columns", ",".join(columns)).option(*option).load()
                frame.createOrReplaceTempView(name)
            return spark.sql(query)
        finally:
            for name in VIEWS:
                spark.catalog.dropTempView(name)


def needed(spark: SparkSession, query: str) -> tuple[list[str], list[str]]:
    """The tables and the columns that a query uses.

    Spark does not tell a Python data source which columns it needs, and bodies cost most of a
    scan. So the query is first planned over tables of the same form that stand for the real ones.
    """
    for name in VIEWS:
        nothing = spark.sparkContext.emptyRDD()  # not a local relation: those are optimized away
        spark.createDataFrame(nothing, ddl(NAMES)).createOrReplaceTempView(name)
    frame = spark.sql(query)
    analyzed = frame._jdf.queryExecution().analyzed().toString()
    views = [name for name in VIEWS if re.search(rf"\bSubqueryAlias {name}\b", analyzed)]
    used = _names_used(frame)
    return views, [name for name in NAMES if name in used] or [_CHEAPEST]


def _absolute(store: str) -> str:
    """Spark's own folder is where it was started, which may be long ago."""
    return store if is_remote(store) else str(local_path(store).absolute())


def _names_used(frame: DataFrame) -> set[str]:
    """Names of all attributes that the optimized plan of a query refers to or returns."""
    plan = frame._jdf.queryExecution().optimizedPlan()
    names: set[str] = set()
    for root in [plan, *_items(plan.subqueriesAll())]:
        names |= _names(root.output())
        nodes = [root]
        while nodes:
            node = nodes.pop()
            children = _items(node.children())
            if children:
                names |= _names(node.references().toSeq())
            if node.nodeName() == "CTERelationDef":  # another part of the plan reads all it returns
                names |= _names(node.output())
            nodes += children
    return names


def _items(sequence: Any) -> list[Any]:
    """The items of a Scala sequence."""
    return [sequence.apply(number) for number in range(sequence.size())]


def _names(attributes: Any) -> set[str]:
    return {attribute.name() for attribute in _items(attributes)}


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
