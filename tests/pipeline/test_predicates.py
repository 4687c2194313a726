"""Predicates with frames and with ``sql``, compared with Python over an independent decoding.

Whatever is pruned, and however often a plan uses a table, the rows are those for which
the predicate is true.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import reduce
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.helpers import Machine, small_config
from tests.pipeline.plainlog import Row, log_rows, queue_rows
from tests.pipeline.predicates import ZONES, Predicate, predicates
from tests.pipeline.source.shelf import COMMITTED, PREPARED, ROLLED_BACK

from firetrail import Message, Store
from firetrail.pipeline import sql

ZONE = "spark.sql.session.timeZone"
STORES = 3
TOGETHER = 10
"""Predicates in one statement."""
ALONE = 4
"""Predicates that have a statement for themselves as well, which prunes more."""
Found = Counter[tuple[int, int]]


@pytest.fixture
def session_as_it_was(spark: SparkSession) -> Iterator[SparkSession]:
    zone = spark.conf.get(ZONE)
    yield spark
    spark.conf.set(ZONE, str(zone))


def make_store(path: Path, seed: int) -> None:
    """Write a few dozen messages, some of them transactional, to several files."""
    chance, machine = random.Random(seed), Machine()
    topics = ["orders", "clicks", "paid"][: chance.randrange(1, 4)]
    with Store.open(path, small_config(log=4096, units=16), system=machine.system) as store:
        for number in range(chance.randrange(20, 90)):
            machine.clock.advance(chance.choice([0, 1, 700, 60_000, 7_200_000]))
            store.put(
                Message(
                    chance.choice(topics),
                    chance.randbytes(chance.randrange(60)),
                    tags=chance.choice(["paid", "new", None]),
                    keys=[f"k{number}"],
                    queue_id=chance.randrange(3),
                    sys_flag=chance.choice([0, 0, 0, PREPARED, COMMITTED, ROLLED_BACK]),
                    born_time=machine.clock.ms - chance.randrange(5),
                )
            )


def expected(rows: Iterable[Row], chosen: list[Predicate]) -> Found:
    return Counter(
        (number, row["physical_offset"])
        for row in rows
        for number, predicate in enumerate(chosen)
        if predicate.test(row) is True
    )


def found(frame: DataFrame) -> Found:
    return Counter((row[0], row[1]) for row in frame.collect())


def in_one_statement(
    spark: SparkSession, store: Path, table: str, chosen: list[Predicate]
) -> Found:
    """Use the table once per predicate, and in self-joins of pairs, which stay empty."""
    uses = [
        f"select {number}, physical_offset from {table} where {predicate}"
        for number, predicate in enumerate(chosen)
    ]
    one, other = chosen[:2]
    uses.append(
        f"select -1, l.physical_offset from (select * from {table} where {one}) l left anti join "
        f"(select * from {table} where {one} or {other}) r on l.physical_offset = r.physical_offset"
    )
    return found(sql(spark, store, " union all ".join(uses)))


def alone(spark: SparkSession, store: Path, table: str, predicate: Predicate) -> Found:
    query = f"select 0, physical_offset from {table} where {predicate}"
    return found(sql(spark, store, query))


def in_one_frame(spark: SparkSession, store: Path, view: str, chosen: list[Predicate]) -> Found:
    frame = spark.read.format("rocketmq").option("view", view).load(str(store))
    uses = [
        frame.where(predicate.sql).select(F.lit(number), "physical_offset")
        for number, predicate in enumerate(chosen)
    ]
    return found(reduce(DataFrame.unionAll, uses))


@pytest.mark.slow
@settings(
    max_examples=STORES,
    phases=[Phase.explicit, Phase.generate],  # a smaller example is not worth the statements
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_spark_selects_the_rows_that_python_selects(
    session_as_it_was: SparkSession, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    spark, store = session_as_it_was, tmp_path_factory.mktemp("predicates") / "store"
    make_store(store, data.draw(st.integers(0, 2**32)))
    zone, view = data.draw(st.sampled_from(ZONES)), data.draw(st.sampled_from(["queue", "log"]))
    rows = queue_rows(store) if view == "queue" else log_rows(store)
    chosen = data.draw(
        st.lists(predicates(rows, zone), min_size=TOGETHER, max_size=TOGETHER), label=zone
    )
    spark.conf.set(ZONE, zone)
    table = "messages" if view == "queue" else "log"
    assert in_one_statement(spark, store, table, chosen) == expected(rows, chosen)
    for predicate in chosen[:ALONE]:
        assert alone(spark, store, table, predicate) == expected(rows, [predicate]), predicate
    assert in_one_frame(spark, store, view, chosen) == expected(rows, chosen)
