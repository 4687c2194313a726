"""The stream readers, called as Spark calls them, but without Spark."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from tests.helpers import PATIENCE_S, START_MS, Machine, ManualClock, small_config
from tests.pipeline.source.shelf import (
    STEP_MS,
    by_place,
    consumed,
    fill,
    row_of,
    rows_of,
    some_messages,
)
from tests.stores import records

from firetrail import Message, Store
from firetrail.errors import ConfigError, DataLostError
from firetrail.pipeline.source import trigger_delay
from firetrail.pipeline.source.schema import NAMES
from firetrail.pipeline.source.source_options import parse_options
from firetrail.pipeline.source.store_stream import LogStreamReader, QueueStreamReader

Offset = dict[str, Any]
STEPS = ["put", "put", "batch", "rows", "bytes", "again", "new"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def reader(path: Path, **options: str) -> QueueStreamReader:
    given_options = {"path": str(path), "startingOffsets": "earliest"} | options
    return QueueStreamReader(parse_options(given_options, stream=True), NAMES)


def log_reader(path: Path, **options: str) -> LogStreamReader:
    given_options = {"path": str(path), "view": "log"} | options
    return LogStreamReader(parse_options(given_options, stream=True), NAMES)


def through_json(offset: Offset) -> Offset:
    """Return an offset as it is read from a checkpoint."""
    found: Offset = json.loads(json.dumps(offset))
    return found


def batch(
    stream: QueueStreamReader | LogStreamReader, start: Offset, limit: ReadLimit | None = None
) -> tuple[Offset, list[dict[str, Any]]]:
    """Run one micro-batch and return its end and its rows."""
    end = through_json(stream.latestOffset(start, limit or stream.getDefaultReadLimit()))
    rows = [
        row
        for partition in stream.partitions(start, end)
        for part in stream.read(partition)
        for row in part.to_pylist(maps_as_pydicts="strict")
    ]
    return end, rows


def batches(
    stream: QueueStreamReader | LogStreamReader, start: Offset
) -> Iterator[tuple[Offset, list[dict[str, Any]]]]:
    """Run micro-batches until nothing is new."""
    while True:
        end, rows = batch(stream, start)
        if end == start:
            return
        yield end, rows
        start = end


class TestQueues:
    def test_everything_at_once(self, path: Path) -> None:
        fill(path, some_messages(60))
        stream = reader(path)
        start = stream.initialOffset()
        assert start == {"rare": {"0": 0}, "usual": {"0": 0, "1": 0}}
        end, rows = batch(stream, start)
        assert by_place(rows) == consumed(path)
        assert end == stream.reportLatestOffset()
        assert batch(stream, end) == (end, [])

    @pytest.mark.parametrize("limit", [1, 7, 40])
    def test_limited_by_messages(self, path: Path, limit: int) -> None:
        fill(path, some_messages(60))
        stream = reader(path, maxOffsetsPerTrigger=str(limit))
        assert stream.getDefaultReadLimit() == ReadMaxRows(limit)
        found = []
        for _, rows in batches(stream, stream.initialOffset()):
            assert 0 < len(rows) <= limit
            found += by_place(rows)
        assert found == consumed(path), "older messages come first"

    @pytest.mark.parametrize("limit", [1, 1000, 5000])
    def test_limited_by_bytes(self, path: Path, limit: int) -> None:
        fill(path, some_messages(60))
        stream = reader(path, maxBytesPerTrigger=str(limit))
        assert stream.getDefaultReadLimit() == ReadMaxBytes(limit)
        found = []
        for _, rows in batches(stream, stream.initialOffset()):
            size = sum(row["size"] for row in rows)
            assert len(rows) == 1 or size <= 1.2 * limit
            found += by_place(rows)
        assert found == consumed(path)

    def test_no_limit(self, path: Path) -> None:
        assert reader(path).getDefaultReadLimit() == ReadAllAvailable()

    def test_the_engine_may_ask_for_everything(self, path: Path) -> None:
        fill(path, some_messages(60))
        stream = reader(path, maxOffsetsPerTrigger="5")
        _, rows = batch(stream, stream.initialOffset(), ReadAllAvailable())
        assert by_place(rows) == consumed(path)

    def test_queues_and_topics_that_come_later(self, path: Path) -> None:
        machine = fill(path, [Message("T", b"0", queue_id=0)])
        stream = reader(path)
        start, rows = batch(stream, stream.initialOffset())
        assert [row["body"] for row in rows] == [b"0"]
        fill(path, [Message("T", b"1", queue_id=3), Message("U", b"2")], machine)
        end, rows = batch(stream, start)
        assert sorted(row["body"] for row in rows) == [b"1", b"2"]
        assert end == {"T": {"0": 1, "3": 1}, "U": {"0": 1}}

    def test_new_topics_must_fit_the_pattern(self, path: Path) -> None:
        machine = fill(path, [Message("Ta", b"0")])
        stream = reader(path, subscribePattern="T.*")
        start, _ = batch(stream, stream.initialOffset())
        fill(path, [Message("Tb", b"1"), Message("U", b"2")], machine)
        end, rows = batch(stream, start)
        assert [row["body"] for row in rows] == [b"1"]
        assert end == {"Ta": {"0": 1}, "Tb": {"0": 1}}

    def test_only_assigned_queues_are_followed(self, path: Path) -> None:
        machine = fill(path, [Message("T", b"0", queue_id=0), Message("T", b"1", queue_id=1)])
        stream = reader(path, assign='{"T": [1]}')
        start, rows = batch(stream, stream.initialOffset())
        assert [row["body"] for row in rows] == [b"1"]
        fill(path, [Message("T", b"%d" % n, queue_id=n) for n in range(3)], machine)
        end, rows = batch(stream, start)
        assert [row["body"] for row in rows] == [b"1"]
        assert end == stream.reportLatestOffset() == {"T": {"1": 2}}
        with pytest.raises(ConfigError, match="'T/5': no such queue; the queues are T/0, T/1, T/2"):
            reader(path, assign='{"T": [5]}').initialOffset()

    def test_a_new_query_begins_at_the_end(self, path: Path) -> None:
        machine = fill(path, some_messages(9))
        stream = reader(path, startingOffsets="latest")
        start = stream.initialOffset()
        assert batch(stream, start) == (start, [])
        fill(path, [Message("usual", b"new")], machine)
        assert [row["body"] for row in batch(stream, start)[1]] == [b"new"]

    def test_a_new_query_can_begin_at_a_time(self, path: Path) -> None:
        fill(path, some_messages(50))
        since = START_MS + 30 * STEP_MS
        options = {"path": str(path), "startingTimestamp": str(since)}
        stream = QueueStreamReader(parse_options(options, stream=True), NAMES)
        _, rows = batch(stream, stream.initialOffset())
        assert by_place(rows) == [
            row for row in consumed(path) if row["store_time"].timestamp() * 1000 >= since
        ]

    def test_each_queue_can_begin_at_a_time_of_its_own(self, path: Path) -> None:
        fill(path, some_messages(50))
        since = START_MS + 30 * STEP_MS
        times = json.dumps({"usual": {"1": since}})
        options = {"path": str(path), "startingOffsetsByTimestamp": times}
        stream = QueueStreamReader(parse_options(options, stream=True), NAMES)
        _, rows = batch(stream, stream.initialOffset())
        assert by_place(rows) == [
            row
            for row in consumed(path)
            if (row["topic"], row["queue_id"]) != ("usual", 1)
            or row["store_time"].timestamp() * 1000 >= since
        ]

    def test_tags_and_columns(self, path: Path) -> None:
        fill(path, some_messages(30))
        options = parse_options(
            {"path": str(path), "startingOffsets": "earliest", "tags": "A"}, stream=True
        )
        stream = QueueStreamReader(options, ("tags", "size"))
        _, rows = batch(stream, stream.initialOffset())
        assert {row["tags"] for row in rows} == {"A"}
        assert list(rows[0]) == ["tags", "size"]

    def test_small_batches_wait(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = ManualClock()
        monkeypatch.setattr(trigger_delay, "SYSTEM", SimpleNamespace(clock=clock))
        machine = fill(path, some_messages(3))
        stream = reader(path, minOffsetsPerTrigger="10", maxTriggerDelay="15m")
        assert stream.getDefaultReadLimit() == ReadMinRows(10)
        start, rows = batch(stream, stream.initialOffset())
        assert len(rows) == 3, "the first batch does not wait"
        fill(path, some_messages(4, 10), machine)
        assert batch(stream, start) == (start, [])
        everything, rows = batch(stream, start, ReadAllAvailable())
        assert len(rows) == 4, "Trigger.Once has everything"
        fill(path, some_messages(4, 20), machine)
        assert batch(stream, everything) == (everything, [])
        fill(path, some_messages(6, 30), machine)
        start, rows = batch(stream, everything)
        assert len(rows) == 10
        fill(path, some_messages(1, 40), machine)
        assert batch(stream, start) == (start, [])
        clock.advance(15 * 60_000)
        start, rows = batch(stream, start)
        assert len(rows) == 1, "the delay is over"
        fill(path, some_messages(2, 50), machine)
        assert batch(stream, start) == (start, [])
        stream.prepareForTriggerAvailableNow()
        assert len(batch(stream, start)[1]) == 2

    def test_available_now(self, path: Path) -> None:
        """Messages that arrive during a run are left for the next run."""
        machine = fill(path, some_messages(30))
        expected = consumed(path)
        stream = reader(path, maxOffsetsPerTrigger="10")
        stream.prepareForTriggerAvailableNow()
        fill(path, [*some_messages(10, 30), Message("new", b"x")], machine)
        done = list(batches(stream, stream.initialOffset()))
        assert len(done) > 2
        found = [row for _, rows in done for row in by_place(rows)]
        assert found == expected
        again = reader(path)
        again.prepareForTriggerAvailableNow()
        rest = [row for _, rows in batches(again, done[-1][0]) for row in rows]
        assert by_place([*found, *rest]) == consumed(path)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_nothing_twice_and_nothing_lost(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Puts, micro-batches, restarts and repeated micro-batches may come in any order."""
    path = tmp_path_factory.mktemp("any") / "store"
    machine = fill(path, some_messages(data.draw(st.integers(1, 20))))
    put = 20
    stream = reader(path)
    start = stream.initialOffset()
    found: list[dict[str, Any]] = []
    for step in data.draw(st.lists(st.sampled_from(STEPS), max_size=12)):
        if step == "put":
            fill(path, some_messages(data.draw(st.integers(1, 15)), put), machine)
            put += 15
            continue
        if step == "new":
            stream = reader(path, startingOffsets="latest")
            continue
        number = data.draw(st.integers(1, 4000))
        limit = {"rows": ReadMaxRows(number), "bytes": ReadMaxBytes(number)}.get(step)
        end, rows = batch(stream, start, limit)
        if step == "again":
            assert batch(stream, start, limit)[1] == rows
        found += rows
        start = end
    found += batch(stream, start)[1]
    assert by_place(found) == consumed(path)


class TestStoreInUse:
    def test_follows_the_writer(self, path: Path) -> None:
        machine = Machine()
        config = small_config(log=8192, units=40)
        with Store.open(path, config, system=machine.system) as store:
            store.put(Message("T", b"0"))
            assert store.wait_dispatched(PATIENCE_S)
            stream = reader(path)
            start = stream.initialOffset()
            found = []
            for number in range(1, 60):
                store.put(Message("T", b"%d" % number, queue_id=number % 3))
                if number % 10 == 0:
                    assert store.wait_dispatched(PATIENCE_S)
                    start, rows = batch(stream, start)
                    found += by_place(rows)
                    assert found
            assert store.wait_dispatched(PATIENCE_S)
            start, rows = batch(stream, start)
            found += by_place(rows)
            assert found == consumed(path)
        assert len(found) == 60


class TestLoss:
    @pytest.fixture
    def shortened(self, path: Path) -> tuple[Path, Offset]:
        """A store whose oldest file was deleted, and an offset from before that."""
        fill(path, some_messages(150))
        start = reader(path).initialOffset()
        sorted((path / "commitlog").iterdir())[0].unlink()
        return path, start

    def test_deleted_messages_are_an_error(self, shortened: tuple[Path, Offset]) -> None:
        path, start = shortened
        stream = reader(path)
        with pytest.raises(DataLostError, match=r"now begins at \d+, .*failOnDataLoss=false"):
            batch(stream, start)

    def test_deleted_messages_are_skipped_if_allowed(self, shortened: tuple[Path, Offset]) -> None:
        path, start = shortened
        stream = reader(path, failOnDataLoss="false")
        end, rows = batch(stream, start)
        assert by_place(rows) == consumed(path)
        assert end == stream.reportLatestOffset()

    @pytest.mark.parametrize("options", [{}, {"failOnDataLoss": "false"}])
    def test_a_file_that_goes_between_planning_and_reading(
        self, path: Path, options: dict[str, str]
    ) -> None:
        fill(path, some_messages(150))
        stream = reader(path, **options)
        start = stream.initialOffset()
        end = stream.latestOffset(start, ReadAllAvailable())
        partitions = stream.partitions(start, end)
        sorted((path / "commitlog").iterdir())[0].unlink()

        def read() -> list[dict[str, Any]]:
            return [
                row
                for partition in partitions
                for part in stream.read(partition)
                for row in part.to_pylist(maps_as_pydicts="strict")
            ]

        if options:
            assert by_place(read()) == consumed(path)
        else:
            with pytest.raises(DataLostError, match="retention deleted the messages from 0 on"):
                read()

    def test_a_deleted_queue_is_an_error(self, path: Path) -> None:
        machine = fill(path, some_messages(30))
        stream = reader(path)
        start, _ = batch(stream, stream.initialOffset())
        fill(path, some_messages(30, 30), machine)
        end = stream.latestOffset(start, ReadAllAvailable())
        shutil.rmtree(path / "consumequeue" / "rare")
        with pytest.raises(DataLostError, match="queue rare/0 no longer exists"):
            stream.partitions(start, end)
        lenient = reader(path, failOnDataLoss="false")
        assert lenient.partitions(start, end)

    def test_a_store_that_has_become_shorter_is_an_error(self, path: Path) -> None:
        fill(path, some_messages(10))
        beyond = {"usual": {"0": 1000, "1": 0}}
        with pytest.raises(DataLostError, match="ends at 3, but was read up to 1000"):
            batch(reader(path), beyond)
        end, rows = batch(reader(path, failOnDataLoss="false"), beyond)
        assert end["usual"]["0"] == 3
        assert {row["queue_id"] for row in rows if row["topic"] == "usual"} == {1}


class TestLog:
    def test_every_record(self, path: Path) -> None:
        fill(path, some_messages(50))
        stream = log_reader(path, startingTimestamp="0", maxBytesPerTrigger="1500")
        found = []
        for _, rows in batches(stream, stream.initialOffset()):
            assert rows
            assert sum(row["size"] for row in rows) < 2000
            found += rows
        assert found == [row_of(record) for record in records(path)]

    def test_begins_at_the_end(self, path: Path) -> None:
        machine = fill(path, some_messages(5))
        stream = log_reader(path)
        start = stream.initialOffset()
        assert start == stream.reportLatestOffset()
        assert batch(stream, start) == (start, [])
        fill(path, [Message("T", b"new")], machine)
        stream.prepareForTriggerAvailableNow()
        fill(path, [Message("T", b"newer")], machine)
        end, rows = batch(stream, start)
        assert [row["body"] for row in rows] == [b"new"]
        assert batch(stream, end) == (end, [])

    def test_the_log_can_be_filtered_by_topic(self, path: Path) -> None:
        fill(path, some_messages(50))
        for options in ({"subscribe": "rare"}, {"subscribePattern": "r.*"}):
            stream = log_reader(path, startingTimestamp="0", **options)
            _, rows = batch(stream, stream.initialOffset())
            assert rows == rows_of(path, view="log", subscribe="rare")
        with pytest.raises(ConfigError, match="no such topic"):
            log_reader(path, subscribe="nothing").initialOffset()

    def test_a_missing_part_of_the_log_is_an_error(self, path: Path) -> None:
        fill(path, some_messages(150))
        start = log_reader(path, startingTimestamp="0").initialOffset()
        sorted((path / "commitlog").iterdir())[0].unlink()
        with pytest.raises(DataLostError, match="failOnDataLoss"):
            batch(log_reader(path), start)
        lenient = log_reader(path, failOnDataLoss="false")
        assert batch(lenient, start)[1] == rows_of(path, view="log")


def test_a_topic_that_does_not_exist(path: Path) -> None:
    fill(path, some_messages(5))
    with pytest.raises(ConfigError, match="no such topic"):
        reader(path, subscribe="nothing").initialOffset()
