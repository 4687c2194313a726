"""Checkpoints of pops: read back after a stop or a kill, and revived when they are due."""

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL
from tests.helpers import crash_image
from tests.stores import overwrite

from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.pop import pop_checkpoints
from firetrail.broker.pop.pop_checkpoints import REVIVE_GROUP, PopCheckpoint, PopCheckpoints
from firetrail.broker.pop.revive import ReviveService
from firetrail.broker.state.group_table import GroupTable
from firetrail.broker.state.offset_files import OffsetFiles
from firetrail.broker.state.offset_table import OffsetTable
from firetrail.broker.state.topic_table import TopicTable
from firetrail.format.files import config_json
from firetrail.format.kernels.draft import Message
from firetrail.format.layout import UNIT
from firetrail.format.names import queue_folder
from firetrail.format.record import Record, decode_message
from firetrail.remoting.messages.bodies import TopicConfig
from firetrail.remoting.messages.pop.pop_bodies import encode_checkpoint
from firetrail.settings.config_file import ConfigFile
from firetrail.settings.settings_table import Live
from firetrail.store.broker_store import BrokerStore
from firetrail.system import SYSTEM, System

NAME = "rmq_sys_REVIVE_LOG_DefaultCluster"
RETRY = "%RETRY%G_T"


class Parts:
    """The state of pops on a store, with a clock that moves only on request."""

    def __init__(self, folder: Path) -> None:
        self.now = 1_000_000
        config, system = Live(BrokerConfig()), System()

        def file(name: str) -> ConfigFile:
            return ConfigFile(system, folder, name)

        def now_ms() -> int:
            return self.now

        self.store = BrokerStore.open(folder, SMALL, system=SYSTEM)
        self.topics = TopicTable(file("topics.json"), config, 18, now_ms)
        self.groups = GroupTable(file("subscriptionGroup.json"), config, now_ms)
        self.offsets = OffsetTable(
            OffsetFiles(system, folder), self.store, self.topics, self.groups
        )
        self.points = PopCheckpoints(
            self.store, self.topics, self.offsets, "broker-a", now_ms, system.clock.monotonic
        )
        self.reviving = ReviveService(self.store, self.topics, self.groups, self.points, now_ms)
        self.topics.put([TopicConfig("T", 4, 4)])
        self.groups.require("G")
        self.points.load(state_lags=not self.store.embedded.recovery.clean)

    def put(self, count: int) -> None:
        for n in range(count):
            self.store.embedded.put(Message("T", b"%d" % n, tags="A"))

    def pop(self, *offsets: int, queue: int = 3, invisible_ms: int = 1000) -> PopCheckpoint:
        start = min(offsets)
        point = PopCheckpoint(
            "T", "G", 0, start, self.now, invisible_ms, "broker-a", set(offsets), queue
        )
        assert self.points.add(point) is None
        return point

    def revive(self) -> list[Record]:
        """Revive what is due; return all redelivered messages so far."""
        self.reviving.revive()
        return self.read(RETRY)

    def read(self, topic: str, queue: int = 0) -> list[Record]:
        assert self.store.embedded.wait_dispatched()
        return [decode_message(raw) for raw in self.store.reads.get_hashed(topic, queue, 0).buffers]

    async def stop(self) -> None:
        self.points.save_progress()
        for part in (self.groups, self.topics, self.offsets):
            await part.stop()
        self.store.close()


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Parts]:
    """Open the store in a folder, and stop it cleanly."""
    parts = Parts(folder)
    try:
        yield parts
    finally:
        await parts.stop()


async def test_a_checkpoint_is_revived_when_it_is_due_and_not_before(tmp_path: Path) -> None:
    async with opened(tmp_path) as parts:
        parts.put(3)
        long = parts.pop(0, invisible_ms=5000)
        parts.pop(1, 2)
        parts.now += 999
        assert parts.revive() == []
        parts.now += 1
        assert [record.body for record in parts.revive()] == [b"1", b"2"]
        assert [record.body for record in parts.revive()] == [b"1", b"2"]  # only once
        parts.now += 4000
        (*_, last) = parts.revive()
        assert (last.body, last.reconsume_times, last.tags) == (b"0", 1, "A")
        assert parts.points.find(long.key) is None
        assert parts.points.earliest() is None


async def test_records_have_the_format_of_rocketmq(tmp_path: Path) -> None:
    async with opened(tmp_path) as parts:
        parts.put(6)
        point = parts.pop(2, 3, 5)
        parts.points.ack(point, [3])
        parts.points.ack(point, [2, 5])
        notes = parts.read(NAME, 3)
        assert [record.tags for record in notes] == ["ck", "ack", "bAck"]
        common = {"c": "G", "t": "T", "q": 0, "so": 2, "pt": 1_000_000, "bn": "broker-a"}
        assert [json.loads(record.body) for record in notes] == [
            {**common, "bm": 0, "d": [0, 1, 3], "it": 1000, "n": 3},
            {**common, "ao": 3},
            {**common, "ao": -1, "aol": [2, 5]},
        ]
        assert {record.properties["TIMER_DELIVER_MS"] for record in notes} == {"1000000"}
        raw = b"TAGS\x01ck\x02TIMER_DELIVER_MS\x011000000\x02"
        assert raw in {record.raw_properties for record in notes}


async def test_acknowledged_messages_are_not_redelivered(tmp_path: Path) -> None:
    async with opened(tmp_path) as parts:
        parts.put(3)
        point = parts.pop(0, 1, 2)
        parts.points.ack(point, [0, 2, 99])
        assert parts.points.ack(point, [0]) is None
        parts.pop(2, queue=1)
    async with opened(tmp_path) as parts:
        parts.now += 1000
        assert sorted(record.body for record in parts.revive()) == [b"1", b"2"]


async def test_open_checkpoints_survive_a_kill(tmp_path: Path) -> None:
    """The files are copied from a running store, and no offset was ever saved."""
    killed = tmp_path / "killed"

    async with opened(tmp_path / "store") as parts:
        parts.put(2)
        first, _ = parts.pop(0), parts.pop(1)
        parts.points.ack(first, [0])
        parts.store.embedded.flush()
        crash_image(tmp_path / "store", killed)
        shutil.rmtree(killed / "config", ignore_errors=True)
    async with opened(killed) as parts:
        assert not parts.store.embedded.recovery.clean
        parts.now += 1000
        assert [record.body for record in parts.revive()] == [b"1"]
    async with opened(killed) as parts:
        parts.now += 1000
        assert [record.body for record in parts.revive()] == [b"1"]


def revived_once(parts: Parts) -> None:
    parts.now += 100_000
    assert [record.body for record in parts.revive()] == [b"1"]


async def test_a_start_reads_from_the_first_open_checkpoint(tmp_path: Path) -> None:
    async with opened(tmp_path) as parts:
        parts.put(3)
        first, second = parts.pop(0), parts.pop(1)
        parts.points.ack(second, [1])
        parts.points.save_progress()
        assert parts.offsets.get(REVIVE_GROUP, NAME, 3) is None  # the first record is needed
        parts.points.ack(first, [0])
        parts.pop(2)
        parts.points.save_progress()
        assert parts.offsets.get(REVIVE_GROUP, NAME, 3) == 3  # the next record is needed
    async with opened(tmp_path) as parts:
        check_open(parts, 4)


def check_open(parts: Parts, place: int) -> None:
    point = parts.points.earliest()
    assert point is not None
    assert (point.revive_offset, point.open) == (place, {2})


async def test_checkpoints_of_deleted_topics_and_groups_are_dropped(tmp_path: Path) -> None:
    async with opened(tmp_path) as parts:
        parts.put(1)
        parts.pop(0)
        parts.groups.remove("G")
        parts.now += 1000
        assert parts.revive() == []
        assert parts.points.earliest() is None


async def test_records_that_cannot_be_decoded_are_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as parts:
        parts.put(1)
        parts.pop(0, queue=0)
        parts.store.embedded.put(Message(NAME, b"{", tags="ck"))
        parts.store.embedded.put(Message(NAME, b'{"t":"T"}', tags="ack"))
        parts.store.embedded.put(Message(NAME, b"", tags="news"))
    async with opened(tmp_path) as parts:
        parts.now += 1000
        assert [record.body for record in parts.revive()] == [b"0"]
    place = f"{NAME} queue 0 offset 1"
    text = "this record of a pop or an acknowledgement cannot be decoded and is skipped"
    assert f"{place}: {text}: CheckpointBody" in caplog.text
    assert f"{NAME} queue 0 offset 2: {text}: AckBody has no c" in caplog.text


async def test_the_heap_of_revive_times_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_checkpoints, "CLOSED_MAX", 10)

    async with opened(tmp_path) as parts:
        parts.put(1)
        for _ in range(100):
            parts.now += 1
            parts.points.ack(parts.pop(0, invisible_ms=60_000), [0])
        assert len(parts.points._times) <= 11


async def test_records_of_older_java_brokers_are_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as parts:
        parts.put(3)
        note = {"t": "T", "c": "G", "q": 0, "so": 0, "pt": 5, "it": 10, "n": 2, "bm": 0, "rt": 15}
        parts.store.embedded.put(Message(NAME, json.dumps(note).encode(), tags="ck", queue_id=7))
    async with opened(tmp_path) as parts:
        assert [record.body for record in parts.revive()] == [b"0", b"1"]


async def test_a_damaged_message_does_not_block_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as parts:
        for body in (b"damaged", b"good"):
            parts.store.embedded.put(Message("T", body))
        assert parts.store.embedded.wait_dispatched()
        parts.pop(0)
        parts.pop(1)
        log = tmp_path / "commitlog" / ("0" * 20)
        with log.open("r+b") as file:
            file.seek(log.read_bytes().index(b"damaged"))
            file.write(b"D")
        parts.now += 1000
        assert [record.body for record in parts.revive()] == [b"good"]
    assert "a popped message of group G is damaged and not redelivered" in caplog.text


async def test_a_damaged_unit_leads_to_its_own_message(tmp_path: Path) -> None:
    async with opened(tmp_path) as parts:
        for body in (b"popped", b"secret"):
            parts.store.embedded.put(Message("T" if body == b"popped" else "Other", body))
        assert parts.store.embedded.wait_dispatched()
        parts.pop(0)
        unit = (tmp_path / queue_folder("Other", 0) / f"{0:020}").read_bytes()[: UNIT.size]
        overwrite(tmp_path / queue_folder("T", 0) / f"{0:020}", 0, unit)
        parts.now += 1000
        assert [record.body for record in parts.revive()] == [b"popped"]


async def test_setting_the_clock_back_does_not_extend_the_wait(tmp_path: Path) -> None:
    async with opened(tmp_path) as parts:
        parts.put(2)
        parts.pop(0, invisible_ms=5000)
        assert parts.revive() == []
        parts.now -= 500_000
        parts.pop(1, invisible_ms=1000)
        assert parts.revive() == []
        parts.now += 4999
        assert [record.body for record in parts.revive()] == [b"1"]
        parts.now += 1
        assert [record.body for record in parts.revive()] == [b"1", b"0"]
        parts.now += 900_000
        parts.pop(0)
    async with opened(tmp_path) as parts:
        assert len(parts.revive()) == 2
        parts.now += 1000
        assert len(parts.revive()) == 3


def saved(parts: Parts) -> None:
    parts.points.save_progress()
    parts.offsets.saver._write(parts.offsets._saved_content())


async def test_a_start_applies_pops_after_the_last_save(tmp_path: Path) -> None:
    """The log has them, so a group does not receive acknowledged messages again."""
    async with opened(tmp_path / "store") as parts:
        parts.put(9)
        parts.offsets.commit("G", "T", 0, 2)
        parts.pop(0, 1)
        saved(parts)
        done = parts.pop(2, 4)
        parts.points.ack(done, [2, 4])
        parts.pop(5)
        assert parts.store.embedded.wait_dispatched()
        crash_image(tmp_path / "store", tmp_path / "killed")
    async with opened(tmp_path / "killed") as parts:
        assert parts.offsets.get("G", "T", 0) == 6


@pytest.mark.parametrize("by_java", [False, True])
async def test_a_reset_of_a_group_survives_a_restart(tmp_path: Path, by_java: bool) -> None:
    """The saved offsets include the earlier pops."""
    async with opened(tmp_path / "store") as parts:
        parts.put(9)
        if by_java:
            saved(parts)
        parts.pop(0, 1, 2, 3)
        parts.offsets.commit("G", "T", 0, 1)
        if not by_java:
            saved(parts)
        assert parts.store.embedded.wait_dispatched()
        crash_image(tmp_path / "store", tmp_path / "killed")
    if by_java:  # Java keeps unknown members, except the checksum
        path = tmp_path / "killed" / "config" / "consumerOffset.json"
        table = config_json.loads(path.read_bytes())["offsetTable"]
        path.write_text(config_json.dumps({"offsetTable": table | {"T@G": {0: 1}}}))
    async with opened(tmp_path / "killed") as parts:
        assert parts.offsets.get("G", "T", 0) == 1


async def test_a_pop_that_was_recorded_again_counts_from_its_last_record(tmp_path: Path) -> None:
    """Otherwise a start would begin after the records of other open pops."""
    async with opened(tmp_path) as parts:
        parts.put(3)
        again, other = parts.pop(0), parts.pop(1)
        parts.points._write(
            "ck", encode_checkpoint(*again.key[:5], again.invisible_ms, [0], "broker-a"), 3
        )
    async with opened(tmp_path) as parts:
        parts.points.save_progress()
        assert parts.offsets.get(REVIVE_GROUP, NAME, 3) == other.revive_offset - 1
