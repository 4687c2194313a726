"""Messages that wait in the timer of a Java broker: they are counted and reported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL, talking

from firetrail.broker.state.topics import TIMER_TOPIC
from firetrail.broker.takeover.waiting_timers import WaitingTimers, count_waiting
from firetrail.format.javahash import java_hash
from firetrail.format.kernels.draft import Message
from firetrail.format.timer import DELETES, NONE, SLOT, UNIT
from firetrail.remoting.bodies import KVTable
from firetrail.remoting.codes import RequestCode
from firetrail.store.broker_store import BrokerStore
from firetrail.system import System

REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
SLOTS = 1_209_600
LOG_FILE = 1 << 20
DELIVERED_S = 1_800_000_000
"""The timer has delivered everything before this time."""


class Timer:
    """The files of a timer as Java writes them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.written = 0
        for name in ("timerlog", "config"):
            (root / name).mkdir(parents=True, exist_ok=True)
        with (root / "timerwheel").open("wb") as wheel:
            wheel.truncate(SLOTS * SLOT.size)
        with (root / "timerlog" / f"{0:020}").open("wb") as log:
            log.truncate(LOG_FILE)
        self.check(0)

    def check(self, queue_offset: int) -> None:
        words = (DELIVERED_S * 1000, self.written, queue_offset, queue_offset, 0, 0, 0)
        raw = b"".join(word.to_bytes(8, "big") for word in words)
        (self.root / "config" / "timercheck").write_bytes(raw.ljust(4096, b"\0"))

    def slot(self, second: int, units: Sequence[tuple[str, int]]) -> None:
        """Write a slot with the messages of one second, given as topics and magic numbers."""
        first, previous = self.written, NONE
        with (self.root / "timerlog" / f"{0:020}").open("r+b") as log:
            for topic, magic in units:
                log.seek(self.written)
                unit = (UNIT.size, previous, magic, 0, 0, 0, 0, java_hash(topic))
                log.write(UNIT.pack(*unit))
                previous, self.written = self.written, self.written + UNIT.size
        count = sum(-1 if magic & DELETES else 1 for _, magic in units)
        with (self.root / "timerwheel").open("r+b") as wheel:
            wheel.seek(second % SLOTS * SLOT.size)
            wheel.write(SLOT.pack(second, first, previous, count, 0))


def filled(root: Path) -> None:
    """Five messages wait, two of them not in the wheel; there are three records of pops."""
    timer = Timer(root)
    with BrokerStore.open(root, SMALL) as store:
        for n in range(7):
            store.put(Message(TIMER_TOPIC, b"%d" % n, properties={"REAL_TOPIC": "T"}))
        for real in ("T", REVIVE, "T"):
            out = str((DELIVERED_S + 60) * 1000)
            properties = {"REAL_TOPIC": real, "TIMER_OUT_MS": out}
            store.put(Message(TIMER_TOPIC, b"late", properties=properties))
        assert store.wait_dispatched()
    timer.slot(DELIVERED_S - 1, [("T", 1)])  # delivered
    timer.slot(DELIVERED_S + 5, [("T", 1), (REVIVE, 1), ("T", 1)])
    timer.slot(DELIVERED_S + 9, [("T", 1), ("T", 1), ("T", 1 | DELETES)])
    timer.check(7)


def test_waiting_messages_are_counted(tmp_path: Path) -> None:
    filled(tmp_path)
    with BrokerStore.open(tmp_path, SMALL) as store:
        found = count_waiting(store, System().files, tmp_path, REVIVE)
    first, last = (DELIVERED_S + 5) * 1000, (DELIVERED_S + 60) * 1000
    assert found == WaitingTimers(5, first, last, 3, DELIVERED_S * 1000)


async def test_waiting_messages_are_logged_and_in_the_runtime_info(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path)

    async with talking(tmp_path) as talk:
        answer = await talk.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = KVTable.decode(answer.content).table
        assert (table["timerCongestNum"], table["timerOffsetBehind"]) == ("5", "3")
        now = talk.broker._system.clock.now_ms() // 1000
        assert now - 60 <= int(table["timerReadBehind"]) + DELIVERED_S <= now
    assert (
        "5 messages in RocketMQ's timer (rmq_sys_wheel_timer), due from 2027-01-15 08:00:05.000Z"
        in caplog.text
    )
    assert "Firetrail has no timer and does not deliver them" in caplog.text


def test_damaged_and_long_chains_are_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    timer = Timer(tmp_path)
    timer.slot(DELIVERED_S + 1, [("T", 1)] * 3)
    with (tmp_path / "timerwheel").open("r+b") as wheel:  # a chain that leads nowhere
        wheel.seek((DELIVERED_S + 2) % SLOTS * SLOT.size)
        wheel.write(SLOT.pack(DELIVERED_S + 2, 1 << 40, 1 << 40, 9, 0))
    timer.check(10)
    with BrokerStore.open(tmp_path, SMALL) as store:
        assert count_waiting(store, System().files, tmp_path, REVIVE).count == 3
        monkeypatch.setattr("firetrail.broker.takeover.waiting_timers.READS_MAX", 1)
        assert count_waiting(store, System().files, tmp_path, REVIVE).count == 3


def test_a_store_without_a_timer_has_no_waiting_messages(tmp_path: Path) -> None:
    with BrokerStore.open(tmp_path, SMALL) as store:
        assert count_waiting(store, System().files, tmp_path, REVIVE).count == 0
