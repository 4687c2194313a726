"""Tables with history: all versions of each key, and the times in which each of them is valid."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.helpers import START_MS, Machine, small_config
from tests.pipeline.tables.formats import in_keyed_formats
from tests.pipeline.tables.test_change_events import canal, order
from tests.pipeline.tables.topics import Row, put, rows, table

from firetrail import Message, Store
from firetrail.cli.main import main
from firetrail.errors import ConfigError
from firetrail.pipeline.tables.runs import publication, table_job
from firetrail.pipeline.tables.runs.explanation import explain_table
from firetrail.pipeline.tables.runs.retry_job import retry_table
from firetrail.pipeline.tables.runs.verification import verify_table

HISTORY: dict[str, Any] = {"upsert": "id", "history": True, "buckets": 2}
SHOWN = "_valid_from, _valid_to, _is_current"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "orders"


@dataclass
class Broker:
    """The store of a broker, whose clock the test sets."""

    root: Path
    ms: int = 0
    machine: Machine = field(default_factory=Machine)

    def put(self, body: bytes, *, key: str = "k", queue: int = 0) -> None:
        self.machine.clock.set_wall(START_MS + self.ms)
        with Store.open(self.root, small_config(), system=self.machine.system) as store:
            store.put(Message("orders", body, keys=[key], queue_id=queue))

    def put_row(self, row: Row | None, *, key: str = "k", queue: int = 0) -> None:
        self.put(b"" if row is None else json.dumps(row).encode(), key=key, queue=queue)


def _ms(value: Any) -> int | None:
    return None if value is None else round(value.timestamp() * 1000) - START_MS


def history(to: Path, columns: str = "id, v") -> list[tuple[Any, ...]]:
    """Return the rows in the order of keys and positions, with times in ms."""
    found = []
    for row in rows(to, f"{columns}, {SHOWN}"):
        *values, begin, end, current = row.values()
        found.append((*values, _ms(begin), _ms(end), current))
    return sorted(found, key=lambda row: row[0])


@in_keyed_formats
def test_versions_and_their_validity(root: Path, to: Path) -> None:
    broker = Broker(root)
    for number in range(4):
        broker.ms = 10 * number
        broker.put_row({"id": number % 2, "v": number}, queue=number % 3)
    done = table(root, to, **HISTORY)
    assert (done.rows, done.updated, done.deleted, done.total_rows) == (4, 0, 0, 4)
    broker.ms = 50
    broker.put_row(None, key="0")
    broker.ms = 60
    broker.put_row({"id": 1, "v": 9, "new": "x"}, queue=2)
    broker.put_row({"id": 2, "v": 9})
    done = table(root, to)
    assert (done.messages, done.rows, done.updated, done.deleted) == (3, 2, 2, 0)
    assert done.total_rows == 6
    expected = [
        (0, 0, None, 0, 20, False),
        (0, 2, None, 20, 50, False),
        (1, 1, None, 10, 30, False),
        (1, 3, None, 30, 60, False),
        (1, 9, "x", 60, None, True),
        (2, 9, None, 60, None, True),
    ]
    assert history(to, "id, v, new") == expected
    assert table(root, to).files == 0
    broker.ms = 70
    broker.put_row({"id": 0, "v": 10})
    table(root, to)
    assert history(to, "id, v, new")[2] == (0, 10, None, 70, None, True)
    assert verify_table(root, to).ok


@in_keyed_formats
def test_a_message_of_another_broker_that_comes_late(tmp_path: Path, to: Path) -> None:
    one, other = Broker(tmp_path / "a"), Broker(tmp_path / "b")
    for ms in (10, 30):
        one.ms = ms
        one.put_row({"id": 1, "v": ms})
    sources = [f"{name}={tmp_path / name}" for name in "ab"]
    other.ms = 20
    other.put_row({"id": 1, "v": 20})
    table(sources[0], to, **HISTORY)
    done = table(sources, to)
    assert (done.rows, done.updated) == (1, 1)
    other.ms = 25
    other.put_row(None, key="1")
    assert table(sources, to).updated == 1
    assert history(to) == [
        (1, 10, 10, 20, False),
        (1, 30, 30, None, True),
        (1, 20, 20, 25, False),
    ]
    assert verify_table(sources, to).ok


@in_keyed_formats
def test_only_touched_buckets_are_written(root: Path, to: Path) -> None:
    put(root, *({"id": number, "v": 0} for number in range(50)))
    assert table(root, to, **HISTORY | {"buckets": 4}).files == 4
    put(root, {"id": 1, "v": 1})
    found = explain_table(_no_spark, root, "orders", to)
    assert (found.history, found.buckets, found.rewritten_files) == (True, 1, 1)
    done = table(root, to)
    assert (done.files, done.rows, done.updated) == (1, 1, 1)


def test_names_of_the_columns(root: Path, to: Path) -> None:
    """They have the prefix of the message columns, and columns of the bodies give way."""
    put(root, {"id": 1, "_valid_to": "x", "m_valid_to": "y", "v": 1})
    table(root, to, prefix="m_", **HISTORY)
    names = [field.name for field in DeltaTable(str(to)).schema().fields]
    assert names[:4] == ["id", "_valid_to", "m_valid_to_2", "v"]
    assert names[-4:] == ["m_valid_from", "m_valid_to", "m_is_current", "_bucket"]
    assert verify_table(root, to).ok


@in_keyed_formats
def test_wider_types_keep_the_history(root: Path, to: Path) -> None:
    put(root, *({"id": number % 3, "v": {"a": number}} for number in range(6)))
    table(root, to, schema="id int, v struct<a: int>", **HISTORY)
    before = history(to, "id, _offset")
    put(root, {"id": 3_000_000_000, "v": {"a": 1, "b": 2}})
    done = table(root, to)
    assert (done.rows, done.total_rows) == (1, 7)
    assert history(to, "id, _offset")[:6] == before
    assert {row["v"]["b"] for row in rows(to, "v")} == {None, 2}
    put(root, {"id": 1, "v": {"a": 5}})
    done = table(root, to, schema="id decimal(20,0)")
    assert (done.rows, done.updated) == (1, 1)
    assert [row[-1] for row in history(to) if row[0] == 1] == [False, False, True]
    assert verify_table(root, to).ok


def test_options(root: Path, to: Path) -> None:
    put(root, {"id": 1})
    with pytest.raises(ConfigError, match=r"history.*needs a key, .*: give --upsert, too"):
        table(root, to, history=True)
    table(root, to, upsert="id")
    with pytest.raises(ConfigError, match=r"history.*made with False, which cannot be changed"):
        table(root, to, history=True)
    assert table(root, to, history=False).history is False


def test_the_commands(root: Path, to: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(root, {"id": 1, "v": 1}, {"id": 2, "v": 1}, {"id": 3, "v": 1000.5})
    command = ["pipeline", "table", str(root), "orders", "--to", str(to)]
    new = [*command, "--upsert", "id", "--history", "--schema", "id int, v decimal(4,2)"]
    assert main([*new, "--explain"]) == 1
    assert f"{to}: a new table, key id, with history\n" in capsys.readouterr().out
    assert main(new) == 1
    put(root, {"id": 1, "v": 2}, {"id": 3, "v": 4})
    capsys.readouterr()
    assert main(command) == 0
    shown = f"{to}: 2 rows of 2 messages added, validity of 1 row changed; 4 rows in total\n"
    assert capsys.readouterr().out == shown
    assert main(["pipeline", "table-retry", str(to), "--schema", "v decimal(9,2)"]) == 0
    assert "1 row added, validity of 0 rows changed; 0 messages" in capsys.readouterr().out
    assert main(["pipeline", "table-status", str(to)]) == 0
    assert "topic orders, json, key id, with history\n" in capsys.readouterr().out
    assert main(["pipeline", "table-verify", str(root), "--to", str(to)]) == 0
    assert "ok: 5 messages, 5 rows" in capsys.readouterr().out


@in_keyed_formats
def test_a_retry_puts_versions_between_others(root: Path, to: Path) -> None:
    broker = Broker(root)
    for number, value in enumerate((1, 1000.5, 2)):
        broker.ms = number
        broker.put_row({"id": 1, "v": value})
    table(root, to, schema="id int, v decimal(4,2)", **HISTORY)
    assert [row[2:] for row in history(to)] == [(0, 2, False), (2, None, True)]
    done = retry_table(_no_spark, to, schema="v decimal(9,2)")
    assert (done.rows, done.updated, done.rejected) == (1, 1, 0)
    assert [row[2:] for row in history(to)] == [(0, 1, False), (1, 2, False), (2, None, True)]
    assert verify_table(root, to).ok


@in_keyed_formats
def test_maintenance_keeps_the_history(
    root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "KEYED_MAINTAINED_EVERY", 2)
    for number in range(5):
        put(root, *({"id": each, "v": number} for each in range(4)))
        table(root, to, keep_hours=0, **HISTORY)
    assert sum(row["_is_current"] for row in rows(to)) == 4
    assert len(rows(to, "id")) == 20
    assert verify_table(root, to).ok


@pytest.mark.slow
def test_tasks_of_spark_merge_buckets(
    spark: SparkSession, root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_job, "INLINE_BYTES", 0)
    put(root, *({"id": number % 70, "v": number} for number in range(200)))
    done = table_job.table(spark, root, "orders", to, split_bytes=4096, **HISTORY)
    assert (done.rows, done.files) == (200, 2)
    current = {row["id"]: row["v"] for row in rows(to, "id, v", "_is_current")}
    assert current == {number % 70: number for number in range(200)} | {
        number: number + 140 for number in range(60)
    }
    assert verify_table(root, to).ok


# -- events of CDC tools ----------------------------------------------------------------------


def _debezium(kind: str, before: Row | None, after: Row | None) -> Row:
    operation = {"INSERT": "c", "UPDATE": "u", "DELETE": "d"}[kind]
    source = {"connector": "mysql", "db": "shop", "table": "orders", "ts_ms": 1}
    return {"op": operation, "before": before, "after": after, "source": source, "ts_ms": 2}


def _maxwell(kind: str, before: Row | None, after: Row | None) -> Row:
    event: Row = {"type": kind.lower(), "database": "shop", "table": "orders", "ts": 1, "xid": 1}
    event |= {"primary_key_columns": ["id"], "data": before if kind == "DELETE" else after}
    if kind == "UPDATE" and before and after:
        event["old"] = {name: value for name, value in before.items() if value != after[name]}
    return event


def _canal(kind: str, before: Row | None, after: Row | None) -> Row:
    def texts(row: Row) -> Row:
        return order(row["id"], str(row["total"]))

    if kind != "UPDATE":
        return canal(kind, texts(before or after or {}))
    assert before and after
    old = {name: value for name, value in texts(before).items() if value != texts(after)[name]}
    return canal(kind, texts(after), old=[old])


ENVELOPES = {"canal": _canal, "maxwell": _maxwell, "debezium": _debezium}


@pytest.mark.parametrize("decoder", ENVELOPES)
@pytest.mark.parametrize("split", [1, 3, 8])
def test_events_of_databases(root: Path, to: Path, decoder: str, split: int) -> None:
    """An event that changes a key ends the row of the old one, at the time of the new one."""
    first, second, moved = ({"id": n, "total": t} for n, t in ((1, 1.5), (1, 2.5), (2, 2.5)))
    other = {"id": 3, "total": 1.5}
    events = [
        ("INSERT", None, first),
        ("UPDATE", first, second),
        ("INSERT", None, other),
        ("UPDATE", second, moved),
        ("DELETE", moved, None),
        ("DELETE", other, None),
        ("INSERT", None, first),
    ]
    broker = Broker(root)
    key = {"key": "id"} if decoder == "debezium" else None
    for number, event in enumerate(events):
        broker.ms = number
        broker.put(json.dumps(ENVELOPES[decoder](*event)).encode())
        if decoder == "debezium" and event[0] == "DELETE":
            broker.put(b"")  # it sends one after each delete, for Kafka's compaction
        if number % split == split - 1:
            table(root, to, decoder=decoder, decoder_options=key, **HISTORY)
    table(root, to, decoder=decoder, decoder_options=key, **HISTORY)
    found = [(int(id_), float(total), *more) for id_, total, *more in history(to, "id, total")]
    assert found == [
        (1, 1.5, 0, 1, False),
        (1, 2.5, 1, 3, False),
        (1, 1.5, 6, None, True),
        (2, 2.5, 3, 4, False),
        (3, 1.5, 2, 5, False),
    ]
    assert verify_table(root, to).ok


def test_events_with_several_rows(root: Path, to: Path) -> None:
    broker = Broker(root)
    broker.put(json.dumps(canal("INSERT", order(1), order(2), order(3))).encode())
    broker.ms = 5
    broker.put(json.dumps(canal("UPDATE", order(1, "2.00"), order(1, "3.00"))).encode())
    broker.put(json.dumps(canal("DELETE", order(2), order(3))).encode())
    done = table(root, to, decoder="canal", **HISTORY)
    assert (done.messages, done.rows) == (3, 4)
    assert [(int(id_), str(total), *more) for id_, total, *more in history(to, "id, total")] == [
        (1, "1.50", 0, 5, False),
        (1, "3.00", 5, None, True),
        (2, "1.50", 0, 5, False),
        (3, "1.50", 0, 5, False),
    ]
    assert verify_table(root, to).ok


# -- the model --------------------------------------------------------------------------------

LARGE = 5000.5
"""A value that fits only after the type of ``v`` was corrected."""


@dataclass(frozen=True)
class Change:
    """A message: the key that it gives a row, and what it does to the rows of others."""

    broker: str
    queue: int
    step_ms: int
    kind: str
    key: int
    other: int
    value: float
    note: str | None

    def body(self) -> bytes:
        row: Row = {"id": self.key, "v": self.value}
        if self.note is not None:
            row["note"] = self.note
        event: Row = {"type": self.kind, "database": "shop", "table": "orders", "ts": 1, "xid": 1}
        event |= {"primary_key_columns": ["id"], "data": row, "position": f"binlog.{self.broker}"}
        if self.kind == "update":
            event["old"] = {"id": self.other}
        return json.dumps(event).encode()

    def effects(self) -> dict[int, tuple[float, str | None] | None]:
        """Return the new version of each key; None for a delete."""
        if self.kind == "delete":
            return {self.key: None}
        gone = {self.other: None} if self.kind == "update" else {}
        return gone | {self.key: (self.value, self.note)}


@dataclass(frozen=True)
class Run:
    """A run of the job on some brokers."""

    brokers: frozenset[str]


RETRY = Run(frozenset())

CHANGES = st.builds(
    Change,
    st.sampled_from("ab"),
    st.integers(0, 2),
    st.sampled_from([0, 0, 1, 5]),
    st.sampled_from(["insert", "insert", "update", "delete"]),
    st.integers(0, 2),
    st.integers(0, 2),
    st.sampled_from([1.0, 2.0, 2.5, LARGE]),
    st.sampled_from([None, None, "x"]),
)
RUNS = st.frozensets(st.sampled_from("ab"), min_size=1).map(Run)
ROUNDS = st.tuples(st.lists(CHANGES, min_size=1, max_size=6), st.one_of(RUNS, st.just(RETRY)))
STEPS = st.lists(ROUNDS, min_size=2, max_size=5).map(
    lambda rounds: [step for changes, run in rounds for step in (*changes, run)]
)


def model(steps: list[Change | Run]) -> list[tuple[Any, ...]]:
    """Return the rows that the messages must lead to, whatever the runs were."""
    clocks: dict[str, int] = {}
    versions: dict[int, list[tuple[Any, ...]]] = {}
    for number, step in enumerate(steps):
        if isinstance(step, Run):
            continue
        clocks[step.broker] = clocks.get(step.broker, 0) + step.step_ms
        for key, row in step.effects().items():
            version = (clocks[step.broker], step.broker, number, row)
            versions.setdefault(key, []).append(version)
    return sorted(_rows(versions), key=str)


def _rows(versions: dict[int, list[tuple[Any, ...]]]) -> Iterator[tuple[Any, ...]]:
    for key, some in versions.items():
        some.sort(key=lambda version: version[:3])
        ends = [version[0] for version in some[1:]] + [None]
        for (time, broker, _, row), end in zip(some, ends, strict=True):
            if row is not None:
                yield (key, *row, broker, time, end, end is None)


@pytest.mark.slow
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_the_table_depends_on_the_messages_alone(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Change | Run]
) -> None:
    """Messages of several brokers and queues are read in runs of any size and order.

    Some of them do not fit at first, and come late by a retry; some add a column.
    """
    folder = tmp_path_factory.mktemp("history")
    to = folder / "orders"
    brokers = {name: Broker(folder / name) for name in "ab"}
    options = {"decoder": "maxwell", "schema": "id int, v decimal(4,2), note string"}
    begun = False
    for step in [*steps, Run(frozenset("ab")), RETRY]:
        if isinstance(step, Change):
            brokers[step.broker].ms += step.step_ms
            brokers[step.broker].put(step.body(), queue=step.queue)
            continue
        sources = [f"{name}={folder / name}" for name in step.brokers if (folder / name).exists()]
        if sources:
            table(sources, to, **({} if begun else options | HISTORY))
            begun = True
        elif begun and step is RETRY:
            retry_table(_no_spark, to, schema="v decimal(9,2)")
    if not begun:
        return
    names = "id, cast(v as double) as v, note, _broker"
    assert sorted(history(to, names), key=str) == model(steps)
    everything = [f"{name}={folder / name}" for name in "ab" if (folder / name).exists()]
    assert verify_table(everything, to).ok
    assert table(everything, to).files == 0


def _no_spark() -> SparkSession:
    raise AssertionError("little work needs no Spark")
