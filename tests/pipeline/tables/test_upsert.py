"""Tables with a key: the newest version of each, deletes, and several brokers."""

import itertools
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.helpers import small_config
from tests.pipeline.tables.formats import in_keyed_formats
from tests.pipeline.tables.test_kills import killed_before
from tests.pipeline.tables.topics import Row, put, rows, spark_table, table

from firetrail import Message, Store
from firetrail.errors import ConfigError
from firetrail.pipeline.tables.runs import table_job
from firetrail.pipeline.tables.runs.table_result import TableResult
from firetrail.pipeline.tables.runs.verification import verify_table


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "orders"


def put_keyed(root: Path, *messages: tuple[str, Row | None]) -> None:
    """Store messages with a key; None is an empty body, which deletes."""
    with Store.open(root, small_config()) as store:
        for number, (key, row) in enumerate(messages):
            body = b"" if row is None else json.dumps(row).encode()
            store.put(Message("orders", body, keys=[key], queue_id=number % 3))


def upsert(source: Any, to: Path, key: str = "id", **options: Any) -> TableResult:
    return table(source, to, upsert=key, buckets=4, **options)


def values(to: Path) -> dict[int, Any]:
    found = rows(to, "id, v")
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row["v"] for row in found}


@in_keyed_formats
def test_the_newest_version_of_each_key_stays(root: Path, to: Path) -> None:
    put(root, *({"id": number % 5, "v": number} for number in range(10)))
    done = upsert(root, to)
    assert (done.rows, done.updated, done.deleted, done.total_rows) == (5, 0, 0, 5)
    assert values(to) == {number: number + 5 for number in range(5)}
    put_keyed(root, ("1", {"id": 1, "v": 100}), ("2", None), ("9", {"id": 9, "v": 9}))
    done = upsert(root, to)
    assert (done.messages, done.rows, done.updated, done.deleted) == (3, 1, 1, 1)
    assert done.total_rows == 5
    assert values(to) == {0: 5, 1: 100, 3: 8, 4: 9, 9: 9}
    assert upsert(root, to).files == 0


@in_keyed_formats
def test_only_touched_buckets_are_written(root: Path, to: Path) -> None:
    put(root, *({"id": number, "v": 0} for number in range(50)))
    assert upsert(root, to).files == 4
    put(root, {"id": 1, "v": 1})
    assert upsert(root, to).files == 1


@in_keyed_formats
def test_messages_without_a_key_are_rejected(root: Path, to: Path) -> None:
    put_keyed(root, ("0", {"id": 0, "v": 0}), ("n", {"id": None, "v": 1}), ("x", None), ("0", None))
    done = upsert(root, to)
    assert (done.rows, done.rejected) == (0, 2)
    reasons = [row["reason"] for row in rows(to.with_name("orders__rejected"))]
    assert reasons == [
        "a null in the key: id",
        "a delete without a usable key: the message's KEYS must begin with a value of id",
    ]


@in_keyed_formats
def test_a_key_of_several_columns(root: Path, to: Path) -> None:
    put(root, *({"shop": s, "id": n, "v": n} for s in "ab" for n in range(3)))
    put(root, {"shop": "a", "id": 1, "v": 7})
    upsert(root, to, "shop,id")
    found = {(row["shop"], row["id"]): row["v"] for row in rows(to, "shop, id, v")}
    assert found == {(s, n): n for s in "ab" for n in range(3)} | {("a", 1): 7}


@in_keyed_formats
def test_new_columns_and_types_of_a_table_with_a_key(root: Path, to: Path) -> None:
    put(root, *({"id": number, "v": {"a": 1}} for number in range(8)))
    upsert(root, to)
    put(root, {"id": 1, "v": {"a": 2}, "new": "x"})
    assert upsert(root, to).files == 1
    put(root, {"id": 2, "v": {"a": 2, "b": 3}})
    upsert(root, to)
    found = {row["id"]: (row["v"], row["new"]) for row in rows(to, "id, v, new")}
    assert found[2] == ({"a": 2, "b": 3}, None)
    assert found[1] == ({"a": 2, "b": None}, "x")
    assert len(found) == 8


@pytest.mark.parametrize("first", [0, 1])
def test_a_column_that_only_one_of_several_tasks_shows(
    tmp_path: Path, to: Path, first: int
) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    for number, root in enumerate(roots):
        put_keyed(root, (str(number), {"id": number, "v": 0}))
    upsert(roots, to)
    put_keyed(roots[first], ("2", {"id": 2, "v": 0}))
    put_keyed(roots[1 - first], ("3", {"id": 3, "v": 0, "new": "x"}))
    assert upsert(roots, to).rows == 2
    found = {row["id"]: row["new"] for row in rows(to, "id, new")}
    assert found == {0: None, 1: None, 2: None, 3: "x"}


def test_options_that_an_upsert_needs(root: Path, to: Path) -> None:
    put(root, {"id": 1, "v": 1})
    with pytest.raises(ConfigError, match="an upsert needs them"):
        upsert(root, to, message_columns=False)
    with pytest.raises(ConfigError, match="no such column; they have id, v"):
        upsert(root, to, "ident")
    with pytest.raises(ConfigError, match="between 1 and 4096"):
        table(root, to, upsert="id", buckets=0)
    upsert(root, to)
    with pytest.raises(ConfigError, match="which cannot be changed"):
        upsert(root, to, "v")
    assert table(root, to).messages == 0


@in_keyed_formats
def test_brokers_that_are_read_in_any_order(tmp_path: Path) -> None:
    """The table is that of a dict to which all messages are applied in the order of their times."""
    random = Random(7)
    expected: dict[int, int] = {}
    done = [tmp_path / "first", tmp_path / "second"]
    for number in range(40):
        broker = random.choice("abc")
        key = random.randrange(6)
        gone = random.random() < 0.3
        put_keyed(tmp_path / broker, (str(key), None if gone else {"id": key, "v": number}))
        expected.pop(key, None)
        if not gone:
            expected[key] = number
        if number % 8 == 7:
            some = random.sample("abc", 2)
            existing = [tmp_path / each for each in some if (tmp_path / each).exists()]
            upsert([f"{path.name}={path}" for path in existing], done[0], schema="id int, v int")
    for to in done:
        upsert([f"{each}={tmp_path / each}" for each in "bca"], to, schema="id int, v int")
        assert values(to) == expected


@pytest.mark.slow
@in_keyed_formats
def test_tasks_of_spark_merge_buckets(
    spark: SparkSession, root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_job, "INLINE_BYTES", 0)
    put(root, *({"id": number % 70, "v": number} for number in range(200)))
    done = spark_table(spark, root, to, upsert="id", buckets=3, split_bytes=4096)
    assert (done.rows, done.files) == (70, 3)
    assert values(to) == {number % 70: number for number in range(200)}
    assert not list((to / "_firetrail").glob("staged/*"))


@pytest.mark.slow
@in_keyed_formats
@pytest.mark.parametrize("history", [False, True])
def test_an_upsert_that_is_killed_before_any_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history: bool
) -> None:
    root = tmp_path / "data"
    put_keyed(root, *((str(number), {"id": number, "v": 0}) for number in range(4)))
    tables = [tmp_path / f"table{number}" for number in range(60)]
    for to in tables:
        table(root, to, upsert="id", history=history, buckets=2)
    put_keyed(root, ("0", {"id": 0, "v": 1}), ("1", None), ("9", {"id": 9, "v": 1, "w": 2}))
    for change in itertools.count():
        to = tables[change]
        with killed_before(change, monkeypatch) as made:
            table(root, to)
        if len(made) < change:
            break
        for _ in range(2):
            done = table(root, to)
        assert (done.messages, done.total_rows) == (0, 6 if history else 4)
        current = [row for row in rows(to) if not history or row["_is_current"]]
        assert {row["id"]: row["v"] for row in current} == {0: 1, 2: 0, 3: 0, 9: 1}
        assert verify_table(root, to).ok
        assert not list((to / "data").glob("_*"))
        assert len(list((to / "_firetrail" / "deletes").iterdir())) == 1


@in_keyed_formats
def test_a_key_of_more_digits(root: Path, to: Path) -> None:
    put(root, {"id": 1, "v": 1}, {"id": 2, "v": 1})
    table(root, to, upsert="id", schema="id int, v int")
    put(root, {"id": 1, "v": 2}, {"id": 3_000_000_000, "v": 2})
    assert table(root, to).updated == 1
    assert {row["id"]: row["v"] for row in rows(to)} == {1: 2, 2: 1, 3_000_000_000: 2}
    table(root, to, schema="id decimal(20,0)")
    put(root, {"id": 2, "v": 3})
    assert table(root, to).updated == 1
