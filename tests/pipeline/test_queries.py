"""Random queries through ``sql``, compared with Spark over the whole tables.

``sql`` reads only the rows and columns that a query needs. Whatever it leaves out, names and rows
are those of the same query over tables that hold everything.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from tests.helpers import Machine, small_config
from tests.pipeline.plainlog import Row, log_rows
from tests.pipeline.predicates import ZONES
from tests.pipeline.queries import VIEWS, queries, respelled
from tests.pipeline.source.shelf import COMMITTED, PREPARED, ROLLED_BACK

from firetrail import Message, Store
from firetrail.pipeline import sql
from firetrail.pipeline.jobs import sql as sql_job

ZONE, CASE = "spark.sql.session.timeZone", "spark.sql.caseSensitive"
TOPICS = ("orders", "Orders", "topic", "size", "100%", "%RETRY%billing", "null")
MESSAGES = 120
EXAMPLES = settings.get_profile(settings.get_current_profile_name()).max_examples // 2
"""Queries per run: 30, or 1,000 with ``--hypothesis-profile=explore``."""


def make_store(path: Path) -> Path:
    """Write messages of topics with odd names, some of them transactional, to several files."""
    chance, machine = random.Random(26), Machine()
    with Store.open(path, small_config(log=8192, units=16), system=machine.system) as store:
        for number in range(MESSAGES):
            machine.clock.advance(chance.choice([0, 1, 700, 60_000, 7_200_000]))
            store.put(
                Message(
                    chance.choice(TOPICS),
                    chance.randbytes(chance.randrange(60)),
                    tags=chance.choice(["paid", "new", "topic", None]),
                    keys=[f"k{number}", "all"][: chance.randrange(3)],
                    properties=chance.choice([{}, {"n": str(number)}, {"color": "red"}]),
                    queue_id=chance.randrange(4),
                    sys_flag=chance.choice([0, 0, 0, PREPARED, COMMITTED, ROLLED_BACK]),
                    born_time=machine.clock.ms - chance.randrange(5),
                )
            )
    return path


class Shop:
    """A store, and the same tables in Spark's memory, with all rows and columns."""

    def __init__(self, spark: SparkSession, store: Path) -> None:
        self._spark = spark
        self._store = store
        self._whole = {
            name: spark.createDataFrame(self._frame(view).toArrow())
            for name, view in sql_job.VIEWS.items()
        }
        self.rows: list[Row] = log_rows(store)
        for name, query in VIEWS.items():
            sql(spark, store, f"create or replace temp view {name} as {query}")

    def _frame(self, view: str) -> DataFrame:
        return self._spark.read.format("rocketmq").option("view", view).load(str(self._store))

    def narrowed(self, query: str) -> list[Any]:
        """Return the columns and rows of a query that reads only what it needs."""
        return result(sql(self._spark, self._store, query))

    def whole(self, query: str) -> list[Any]:
        """Return the columns and rows of a query over the whole tables."""
        for name, frame in self._whole.items():
            frame.createOrReplaceTempView(name)
        try:
            return result(self._spark.sql(query))
        finally:
            for name in self._whole:
                self._spark.catalog.dropTempView(name)


def result(frame: DataFrame) -> list[Any]:
    return [frame.columns, *sorted(repr(tuple(row)) for row in frame.collect())]


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    yield Shop(spark, make_store(tmp_path_factory.mktemp("queries") / "store"))
    for name in VIEWS:
        spark.catalog.dropTempView(name)


@pytest.fixture
def conf(spark: SparkSession) -> Iterator[Any]:
    """The settings of the session, which are restored."""
    before = {name: str(spark.conf.get(name)) for name in (ZONE, CASE)}
    yield spark.conf
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.mark.slow
@settings(
    max_examples=EXAMPLES,
    phases=[Phase.explicit, Phase.generate],  # a smaller query is not worth the statements
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_a_query_over_what_it_needs_is_a_query_over_everything(
    shop: Shop, conf: Any, data: st.DataObject
) -> None:
    zone, case = data.draw(st.sampled_from(ZONES)), data.draw(st.sampled_from([True] * 4 + [False]))
    conf.set(ZONE, zone)
    conf.set(CASE, str(not case).lower())
    plain = data.draw(queries(shop.rows, zone))
    query = respelled(plain, random.Random(plain), case=case)
    expected = shop.whole(query)
    assert shop.narrowed(query) == expected, query
