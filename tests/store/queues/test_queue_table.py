"""The table of queues: lookups, foreign names, flushing, closing, many threads."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import Machine, in_threads

from firetrail.errors import SegmentSizeError, StoreClosedError
from firetrail.format.files.unit import ConsumeQueueUnit, encode_unit
from firetrail.store.queues.queue_table import QueueTable

SIZE = 200


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def table(machine: Machine, tmp_path: Path) -> Iterator[QueueTable]:
    table = QueueTable(machine.system, tmp_path, SIZE)
    yield table
    table.close()
    assert not machine.files.open_files


def fill(table: QueueTable, topic: str, queue_id: int, count: int = 1) -> None:
    queue = table.open(topic, queue_id)
    for number in range(count):
        unit = encode_unit(ConsumeQueueUnit(number, 1, 0))
        queue.append(queue.max_offset, memoryview(unit))
    table.dirty.add(queue)


def test_queue_folders_are_listed(table: QueueTable, machine: Machine, tmp_path: Path) -> None:
    for topic, queue_id in [("B", 10), ("A", 0), ("B", 2), ("%RETRY%g", 0)]:
        fill(table, topic, queue_id)
    again = QueueTable(machine.system, tmp_path, SIZE)
    again.list_folders()
    assert again.pairs() == [("%RETRY%g", 0), ("A", 0), ("B", 2), ("B", 10)]
    assert again.topics() == ["%RETRY%g", "A", "B"]
    assert [queue.max_offset for queue in again.all()] == [1, 1, 1, 1]
    again.close()


def test_looks_at_files_when_a_queue_is_used(
    table: QueueTable, machine: Machine, tmp_path: Path
) -> None:
    fill(table, "A", 0)
    fill(table, "B", 0)
    again = QueueTable(machine.system, tmp_path, SIZE)
    again.list_folders()
    machine.files.forget()
    assert again.find("A", 0) is not None
    assert machine.files.count("open", "A") == 1
    assert machine.files.count("map", "B") == 0
    assert again.find("A", 0) is again.open("A", 0)
    again.close()


def test_a_store_without_queue_folders_has_no_queues(table: QueueTable) -> None:
    table.list_folders()
    assert table.pairs() == []
    assert table.find("A", 0) is None


def test_leaves_foreign_names_alone(table: QueueTable, machine: Machine, tmp_path: Path) -> None:
    fill(table, "A", 0)
    base = tmp_path / "consumequeue"
    (base / "note.txt").write_text("x")
    (base / "A" / "readme").write_text("x")
    (base / "A" / "7").write_text("a file, not a folder")
    (base / "A" / "01").mkdir()
    (base / "A" / "-1").mkdir()
    (base / "A" / "99999999999").mkdir()
    (base / "empty topic").mkdir()
    again = QueueTable(machine.system, tmp_path, SIZE)
    again.list_folders()
    assert again.pairs() == [("A", 0)]


def test_a_bad_queue_is_refused_every_time_and_leaves_nothing_open(
    table: QueueTable, machine: Machine, tmp_path: Path
) -> None:
    fill(table, "A", 0)
    again = QueueTable(machine.system, tmp_path, 2 * SIZE)
    again.list_folders()
    opened = len(machine.files.open_files)
    for _ in range(2):
        with pytest.raises(SegmentSizeError):
            again.find("A", 0)
    assert len(machine.files.open_files) == opened


def test_flush_syncs_dirty_queues_once(table: QueueTable, machine: Machine) -> None:
    fill(table, "A", 0)
    fill(table, "B", 0)
    machine.files.forget()
    table.flush()
    table.flush()
    assert machine.files.count("sync") == 2
    assert not table.dirty


def test_flush_keeps_queues_that_are_not_due(table: QueueTable, machine: Machine) -> None:
    fill(table, "A", 0)
    machine.files.forget()
    table.flush(2)
    assert len(table.dirty) == 1
    assert machine.files.count("sync") == 0


def test_nothing_is_opened_after_close(table: QueueTable) -> None:
    fill(table, "A", 0)
    table.close()
    table.close()
    with pytest.raises(StoreClosedError, match="the store is closed"):
        table.open("B", 0)


def test_many_threads_get_the_same_queue(table: QueueTable) -> None:
    found: list[set[int]] = [set() for _ in range(4)]

    def use(number: int) -> None:
        for queue_id in range(50):
            found[number].add(id(table.open("T", queue_id)))
            table.topics()
            table.pairs()

    in_threads(*[lambda n=n: use(n) for n in range(4)])
    assert found[0] == found[1] == found[2] == found[3]
    assert len(found[0]) == 50
