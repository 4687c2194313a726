"""Runs of a database that are killed before each change of a file, and a model of many runs."""

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.pipeline.tables.databases.topics_of_tables import (
    canal,
    database,
    ids,
    order,
    positions,
    rejects,
    send,
    statement,
    tables_in,
)
from tests.pipeline.tables.test_kills import Killed, killed_before
from tests.pipeline.tables.topics import Row, files_of, rows

from firetrail import Message
from firetrail.errors import LakeError
from firetrail.pipeline.tables.databases import database_job, route_task
from firetrail.pipeline.tables.runs import table_job
from firetrail.pipeline.tables.runs.publication import Publication

OPTIONS: dict[str, Any] = {"by": "envelope", "decoder": "canal", "buckets": 2}


@pytest.mark.slow
@pytest.mark.parametrize("upsert", [None, "pk"])
def test_a_first_run_that_is_killed_before_any_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upsert: str | None
) -> None:
    root = tmp_path / "data"
    send(root, canal("shop.a", order(1)), canal("shop.b", order(2)), b"{broken", queues=1)
    for change in itertools.count():
        to = tmp_path / f"lake{change}"
        with killed_before(change, monkeypatch) as done:
            database(root, to, **OPTIONS, upsert=upsert)
        if len(done) < change:
            assert {"replace", "create", "rename", "create_write_transaction"} <= set(done)
            assert change > 20
            return
        for _ in range(2):
            database(root, to, **OPTIONS, upsert=upsert)
        _check(to, {"shop/a": [1], "shop/b": [2]}, 1)


@pytest.mark.slow
@pytest.mark.parametrize("upsert", [None, "pk"])
def test_a_later_run_that_is_killed_before_any_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upsert: str | None
) -> None:
    """It has new rows, a new column, a new table, deletes, rejects, and a table without news."""
    root = tmp_path / "data"
    first = [canal(f"shop.{name}", order(number)) for number, name in enumerate("abc")]
    second = [
        canal("shop.a", order(10, note="new")),
        canal("shop.d", order(11)),
        statement("shop.b", "DROP TABLE b"),
        b"{broken",
        canal("shop.b", order(12)),
        canal("shop.b", order(12), kind="DELETE"),
    ]
    send(root, *first, queues=1)
    lakes = [tmp_path / f"lake{number}" for number in range(90)]
    for to in lakes:
        database(root, to, **OPTIONS, upsert=upsert)
    send(root, *second, queues=1)
    for change, to in enumerate(lakes):
        with killed_before(change, monkeypatch) as done:
            database(root, to)
        if len(done) < change:
            assert "add_columns" in done
            assert change > 30
            return
        for _ in range(2):
            database(root, to)
        b = [1] if upsert else [1, 12]
        _check(to, {"shop/a": [0, 10], "shop/b": b, "shop/c": [2], "shop/d": [11]}, 1)
        assert len(rejects(to / "shop/b")) == (1 if upsert else 2)
    raise AssertionError("more changes than lakes")


@pytest.mark.slow
def test_a_run_with_files_of_messages_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks write the messages of tables to files, as on a cluster, but run in the driver."""
    monkeypatch.setattr(table_job, "TaskRunner", _DriverOnly)
    monkeypatch.setattr(database_job, "TaskRunner", _DriverOnly)
    monkeypatch.setattr(database_job, "INLINE_BYTES", 0)
    monkeypatch.setattr(route_task, "BUFFER_BYTES", 1000)
    root = tmp_path / "data"
    send(root, *(canal(f"shop.{'ab'[n % 2]}", order(n)) for n in range(8)), b"{broken")
    for change in itertools.count():
        to = tmp_path / f"lake{change}"
        with killed_before(change, monkeypatch) as done:
            database(root, to, **OPTIONS, upsert="pk", split_bytes=500)
        if len(done) < change:
            return
        database(root, to, **OPTIONS, upsert="pk")
        _check(to, {"shop/a": [0, 2, 4, 6], "shop/b": [1, 3, 5, 7]}, 1)


class _DriverOnly:
    """Runs the tasks in the driver."""

    def __init__(self, *args: Any) -> None: ...

    def run(self, function: Callable[[Any], Any], tasks: list[Any], inline: bool) -> list[Any]:
        return [function(task) for task in tasks]


def _check(to: Path, expected: dict[str, list[int]], rejected: int) -> None:
    found = [name for name in tables_in(to) if not name.endswith("__rejected")]
    assert {name: ids(to / name) for name in found} == expected
    assert len(rejects(to)) == rejected
    assert not (to / "_firetrail" / "commits.json").exists()
    assert not list((to / "_firetrail").glob("spool/*"))
    for name in found:
        assert not [each for each in files_of(to / name / "data") if each.startswith("_")]


@pytest.mark.parametrize("seed", range(4))
def test_random_events_of_random_tables(tmp_path: Path, seed: int) -> None:
    """The tables are those of dicts to which all events are applied in order."""
    random = Random(seed)
    root, to = tmp_path / "data", tmp_path / "lake"
    expected: dict[str, dict[int, str]] = {}
    unassigned = 0
    for _ in range(6):
        events: list[object] = []
        for _ in range(random.randrange(12)):
            name = f"{random.choice('xy')}.{random.choice('abcd')}"
            have = expected.setdefault(name, {})
            number, total = random.randrange(5), f"{random.randrange(1000)}.00"
            kind = random.choice(["INSERT", "INSERT", "UPDATE", "DELETE", "MOVE", "BAD"])
            if kind == "BAD":
                events.append(random.choice([b"{", {"x": 1}, canal("x.", order(1))]))
                unassigned += 1
            elif kind == "MOVE":
                other = random.randrange(5)
                events.append(
                    canal(name, order(other, total), kind="UPDATE", old=[{"id": str(number)}])
                )
                have.pop(number, None)
                have[other] = total
            elif kind == "DELETE":
                events.append(canal(name, order(number), kind="DELETE"))
                have.pop(number, None)
            else:
                events.append(canal(name, order(number, total), kind=kind))
                have[number] = total
        send(root, *events, queues=1)
        if unassigned or expected:
            database(root, to, **OPTIONS, upsert="pk")
    done = database(root, to, **OPTIONS, upsert="pk")
    for name, have in expected.items():
        place = to / name.replace(".", "/")
        if (place / "_delta_log").exists():
            found = {row["id"]: str(row["total"]) for row in rows(place, "id, total")}
        else:
            found = {}
        assert found == have, name
    assert done.total_rejected == unassigned == len(rejects(to))
    assert done.total_rows == sum(map(len, expected.values()))


def test_two_hundred_tables_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, to = tmp_path / "data", tmp_path / "lake"
    bodies: list[Row] = [{"id": number} for number in range(600)]
    messages = [
        Message("cdc", json.dumps(body).encode(), tags=f"t{number % 200:03d}", queue_id=number % 3)
        for number, body in enumerate(bodies)
    ]
    send(root, *messages)
    read: list[int] = []
    real = route_task.route_messages

    def counted(task: Any) -> Any:
        found = real(task)
        read.append(sum(span.end - span.begin for span in found.spans))
        return found

    monkeypatch.setattr(database_job, "route_messages", counted)
    done = database(root, to, by="tag")
    assert sum(read) == done.messages == done.rows == 600
    assert done.total_tables == len(tables_in(to)) == 200
    expected = sorted((number % 3, number // 3) for number in range(600))
    assert positions(to / name for name in tables_in(to)) == expected
    send(root, Message("cdc", b'{"id": 1000}', tags="t007", queue_id=0))
    done = database(root, to)
    assert (sum(read), len(done.tables), done.total_rows) == (601, 1, 601)


def test_a_table_that_others_change_before_a_killed_run_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other tables are completed; the database waits until the table is restored."""
    root, to = tmp_path / "data", tmp_path / "lake"
    send(root, *(canal(f"shop.{name}", order(1)) for name in "abc"), queues=1)
    database(root, to, **OPTIONS)
    send(root, *(canal(f"shop.{name}", order(2)) for name in "abc"), queues=1)

    def kill(*args: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Publication, "publish", kill)
        database(root, to)
    shutil.copytree(to / "shop/b", tmp_path / "backup")
    DeltaTable(str(to / "shop/b")).delete()
    for _ in range(2):
        with pytest.raises(LakeError, match=r"b: version 2 \(DELETE\) is not a commit of this job"):
            database(root, to)
        assert [ids(to / f"shop/{name}") for name in "abc"] == [[1, 2], [], [1, 2]]
    shutil.rmtree(to / "shop/b")
    shutil.copytree(tmp_path / "backup", to / "shop/b")
    assert database(root, to).messages == 0
    assert [ids(to / f"shop/{name}") for name in "abc"] == [[1, 2]] * 3
