"""Splits: aligned to records, of about the same size, and planned without reading the log."""

import os
import resource
from itertools import pairwise
from pathlib import Path

import pytest
from tests.helpers import Machine, small_config
from tests.pipeline.source.shelf import fill, rows_of, some_messages
from tests.stores import records

from firetrail import Message, Store
from firetrail.format.names import CONSUME_QUEUE
from firetrail.pipeline.batch_plan import plan_batch
from firetrail.pipeline.source.plan import log_splits
from firetrail.pipeline.source.plan.log_splits import (
    SPLIT_BYTES,
    SPLIT_BYTES_MIN,
    plan_log,
    plan_queues,
    record_from,
    split_count,
    time_span,
)
from firetrail.pipeline.source.plan.ranges import batch_parts
from firetrail.pipeline.source.plan.store_splits import LogSplit, UnitSplit
from firetrail.pipeline.source.source_options import parse_options
from firetrail.pipeline.source.store_stream import LogStreamReader, QueueStreamReader
from firetrail.store.inspect.view import StoreView
from firetrail.store.queues.consume_queue import ConsumeQueue

MESSAGES = 400


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("planning")
    fill(path, some_messages(MESSAGES))
    return path


@pytest.mark.parametrize(
    ("size", "cores", "count"),
    [
        (0, 8, 1),
        (SPLIT_BYTES_MIN, 8, 1),
        (3 * SPLIT_BYTES_MIN, 8, 3),
        (SPLIT_BYTES, 2, 2),
        (8 * SPLIT_BYTES, 2, 8),
        (8 * SPLIT_BYTES + 1, 2, 9),
    ],
)
def test_the_number_of_splits_follows_size_and_cores(
    monkeypatch: pytest.MonkeyPatch, size: int, cores: int, count: int
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert split_count(size) == count
    assert split_count(size, at_least=20) == 20
    assert split_count(100, split_bytes=30) == 4


@pytest.mark.parametrize("count", [1, 2, 3, 7, 50, 5000])
def test_splits_of_the_log(store: Path, count: int) -> None:
    starts = {record.physical_offset for record in records(store)}
    bases = {int(path.name) for path in (store / "commitlog").iterdir()}
    with StoreView.open(store) as view:
        splits = plan_log(view, at_least=count)
        end = view.end
    assert splits[0].start == 0
    assert splits[-1].end == end
    for split, following in pairwise(splits):
        assert split.end == following.start
        assert following.start in starts | bases
    assert len(splits) <= count
    if count <= 50:
        assert len(splits) == count
        assert max(split.size for split in splits) < 2 * (end // count) + 400


def test_a_log_without_queues_is_cut_where_records_are_found(store: Path, tmp_path: Path) -> None:
    (tmp_path / "commitlog").symlink_to(store / "commitlog")
    starts = {record.physical_offset for record in records(store)}
    with StoreView.open(tmp_path) as view:
        splits = plan_log(view, at_least=9)
    assert len(splits) == 9
    bases = {int(path.name) for path in (store / "commitlog").iterdir()}
    assert all(split.start in starts | bases for split in splits)


def test_planning_does_not_walk_over_messages(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units are found by bisection: a few per queue and cut."""
    asked = []
    unit = ConsumeQueue.unit

    def counting(queue: ConsumeQueue, offset: int) -> object:
        asked.append(offset)
        return unit(queue, offset)

    monkeypatch.setattr(ConsumeQueue, "unit", counting)
    options = parse_options({"path": str(store)})
    with StoreView.open(store) as view:
        parts = batch_parts(view, options)
        splits, _ = plan_queues(view, parts, at_least=4)
    assert len(splits) == 4
    queues = len(parts)
    assert len(asked) < queues * (20 + (4 + 2) * 12)


def test_rare_messages_are_looked_up(store: Path) -> None:
    with StoreView.open(store) as view:
        rare = batch_parts(view, parse_options({"path": str(store), "subscribe": "rare"}))
        everything = batch_parts(view, parse_options({"path": str(store)}))
        splits, note = plan_queues(view, rare)
        assert [type(split) for split in splits] == [UnitSplit]
        assert "through their units" in note
        splits, note = plan_queues(view, everything)
        assert [type(split) for split in splits] == [LogSplit]
        assert "in the order of the log" in note
        assert plan_queues(view, [])[0] == []


@pytest.mark.parametrize("count", [1, 2, 5, 100])
def test_lookups_are_distributed(store: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(log_splits, "SCAN_RATIO", 0)
    with StoreView.open(store) as view:
        parts = batch_parts(view, parse_options({"path": str(store)}))
        splits, _ = plan_queues(view, parts, at_least=count)
    counts = []
    covered: set[tuple[str, int, int]] = set()
    for split in splits:
        assert isinstance(split, UnitSplit)
        counts.append(sum(part.count for part in split.queues.ranges))
        for part in split.queues.ranges:
            for offset in range(part.begin, part.end):
                covered.add((part.topic, part.queue_id, offset))
    total = sum(part.range.count for part in parts)
    assert sum(counts) == len(covered) == total
    assert len(splits) <= count + 1
    assert max(counts) <= 2 * total // count + 2


def test_the_first_record_from_any_place_on_is_found(store: Path) -> None:
    starts = sorted(record.physical_offset for record in records(store))
    with StoreView.open(store) as view:
        for place in (-5, 0, 1, starts[7], starts[7] + 1, starts[200] - 1, view.end, 10**9):
            expected = min((at for at in starts if at >= place), default=view.end)
            assert record_from(view, place) == expected


def test_time_spans_leave_nothing_out(store: Path) -> None:
    everything = records(store)
    times = [record.store_time for record in everything]
    with StoreView.open(store) as view:
        for since, until in ((times[100], times[120]), (times[5] + 1, times[9]), (0, 1), (1, 0)):
            start, end = time_span(view, since, until)
            wanted = [r.physical_offset for r in everything if since <= r.store_time < until]
            assert all(start <= place < end for place in wanted)
            found = [r for r in everything if start <= r.physical_offset < end]
            assert len(found) <= len(wanted) + 10


def test_prepared_messages_at_the_edge_of_a_time_are_in_the_span(tmp_path: Path) -> None:
    """They are in no queue."""
    machine = Machine()
    kinds = [0, 4, 4, 0, 4, 0, 4]
    with Store.open(tmp_path, small_config(), system=machine.system) as store:
        for kind in kinds:
            store.put(Message("T", b"x", sys_flag=kind))
            machine.clock.advance(1000)
    everything = records(tmp_path)
    with StoreView.open(tmp_path) as view:
        for first in range(len(kinds)):
            for last in range(first, len(kinds)):
                times = everything[first].store_time, everything[last].store_time + 1
                start, end = time_span(view, *times)
                for record in everything[first : last + 1]:
                    assert start <= record.physical_offset < end


def test_an_empty_store_has_no_splits(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / CONSUME_QUEUE).mkdir()
    with StoreView.open(tmp_path) as view:
        assert plan_log(view) == []


def test_many_queues_are_not_open_at_once(tmp_path: Path) -> None:
    """They are opened one after the other, on the driver and in the tasks."""
    fill(tmp_path, [Message("T", b"x", queue_id=number % 90) for number in range(180)])
    used = len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 40, hard))
    try:
        rows = rows_of(tmp_path)
        options = parse_options(
            {"path": str(tmp_path), "startingOffsets": "earliest", "maxOffsetsPerTrigger": "50"},
            stream=True,
        )
        stream = QueueStreamReader(options, ("topic",))
        start = stream.initialOffset()
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        partitions = stream.partitions(start, end)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(rows) == 180
    assert partitions


@pytest.fixture(scope="module")
def queues(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("queues")
    fill(path, [Message(f"T{number % 10}", b"x", queue_id=number % 3) for number in range(90)])
    return path


class TestWhatIsOpened:
    """Only files of requested queues are opened."""

    QUEUES = 30

    @pytest.fixture
    def machine(self, monkeypatch: pytest.MonkeyPatch) -> Machine:
        machine = Machine()
        for module in ("firetrail.store.inspect.view", "firetrail.pipeline.source.plan.ranges"):
            monkeypatch.setattr(f"{module}.SYSTEM", machine.system)
        return machine

    def opened(self, machine: Machine) -> list[str]:
        """Count how often a file was opened, by queue folder."""
        return sorted(
            "/".join(call.path.parts[-3:-1])
            for call in machine.files.calls
            if call.operation == "open" and CONSUME_QUEUE in call.path.parts
        )

    def test_a_plan_of_everything_opens_every_queue(self, queues: Path, machine: Machine) -> None:
        plan_batch(parse_options({"path": str(queues)}))
        opened = self.opened(machine)
        assert len(set(opened)) == self.QUEUES
        # Once for its end, and the longest queues again to cut the log; short ones only once.
        assert len(opened) <= self.QUEUES + 8
        assert machine.files.count("read_at", CONSUME_QUEUE) <= self.QUEUES + 8
        assert machine.files.count("map", CONSUME_QUEUE) == 0

    @pytest.mark.parametrize("options", [{"subscribe": "T4"}, {"subscribePattern": "T[4]"}])
    def test_a_plan_of_one_topic_opens_its_queues_only(
        self, queues: Path, machine: Machine, options: dict[str, str]
    ) -> None:
        plan_batch(parse_options({"path": str(queues)} | options))
        assert set(self.opened(machine)) == {"T4/0", "T4/1", "T4/2"}
        assert machine.files.count("read_at", CONSUME_QUEUE) <= 2 * 3 + 3
        assert machine.files.count("map", CONSUME_QUEUE) == 0

    def test_micro_batches_of_one_topic_open_its_queues_only(
        self, queues: Path, machine: Machine
    ) -> None:
        options = {"path": str(queues), "subscribe": "T4", "startingOffsets": "earliest"}
        stream = QueueStreamReader(parse_options(options, stream=True), ("topic",))
        start = stream.initialOffset()
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        stream.partitions(start, end)
        stream.latestOffset(end, stream.getDefaultReadLimit())
        assert end == {"T4": {"0": 3, "1": 3, "2": 3}}
        assert set(self.opened(machine)) == {"T4/0", "T4/1", "T4/2"}

    def test_by_micro_batches_of_the_log(self, queues: Path, machine: Machine) -> None:
        stream = LogStreamReader(
            parse_options({"path": str(queues), "view": "log"}, stream=True), ()
        )
        end = stream.latestOffset({"log": 0}, stream.getDefaultReadLimit())
        stream.partitions({"log": 0}, end)
        assert end == {"log": max(r.physical_offset + r.size for r in records(queues))}
        assert self.opened(machine) == []
