"""Messages that wait for their delivery time: what one costs while many others wait.

The clock is frozen except where messages are to become due, so a run does not depend on how long
its steps take. All figures but the memory are CPU time of the process, the threads of the store
included, because other work on the machine distorts it less.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.contestants import RunError, firetrail
from benchmarks.figures import Json, Line, Unit, samples
from benchmarks.measurements import OURS
from benchmarks.puts import DISPATCH_PATIENCE_S, Figures
from benchmarks.servers import memory
from firetrail import Message, StoreConfig
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.timer.timer_service import TimerService
from firetrail.format.files.timer import LOG, TIMER_QUEUE, TIMER_TOPIC
from firetrail.format.properties import (
    REAL_QID,
    REAL_TOPIC,
    TIMER_OUT_MS,
    UNIQ_KEY,
    encode_properties,
)
from firetrail.store.broker_store import BrokerStore
from firetrail.system import Clock, System

BODY = b"x" * 100
SPREAD_MS = 10 * 3600 * 1000
"""The delivery times are spread evenly over this time."""
AHEAD_MS = 60_000
"""When the first message is due."""
DELIVERED_MAX = 100_000
"""Messages that are delivered to measure it, if as many wait four times."""
REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
POLL_S = 0.01
PATIENCE_S = 1500.0


class StandingClock(Clock):
    """A clock whose wall time only moves when it is told to."""

    def __init__(self) -> None:
        self.ms = time.time_ns() // 1_000_000

    def time_ns(self) -> int:
        """Return the time that was set."""
        return self.ms * 1_000_000


class _Waiting:
    """A store with messages that wait, and their timer."""

    def __init__(self, folder: str, settings: Mapping[str, str], count: int) -> None:
        self._folder = Path(folder)
        self._settings = StoreConfig.from_mapping(settings).config
        self._count = count
        self.clock = StandingClock()
        self._system = System(clock=self.clock)
        self._first_ms = self.clock.ms + AHEAD_MS
        self.store = self._open_store()
        self.timer = self._new_timer()

    def _open_store(self) -> BrokerStore:
        return BrokerStore.open(self._folder, self._settings, system=self._system)

    def _new_timer(self) -> TimerService:
        return TimerService(self._system, self._folder, self.store, BrokerConfig(), REVIVE)

    def put(self) -> None:
        """Store all messages, as they wait in the topic of the timer."""
        for number in range(self._count):
            properties = {
                UNIQ_KEY: f"{number:032X}",
                REAL_TOPIC: "bench",
                REAL_QID: "0",
                TIMER_OUT_MS: str(self._due_ms(number)),
            }
            raw = encode_properties(properties)
            self.store.embedded.put(
                Message(TIMER_TOPIC, BODY, queue_id=TIMER_QUEUE, raw_properties=raw)
            )
        if not self.store.embedded.wait_dispatched(DISPATCH_PATIENCE_S):
            raise RunError("dispatch did not keep up")

    def _due_ms(self, number: int) -> int:
        return self._first_ms + number * SPREAD_MS // self._count

    def make_due(self, number: int) -> int:
        """Move the clock to the delivery time of a message; return how many are due before it.

        A slot, which is a second, is due when it has ended.
        """
        self.clock.ms = self._due_ms(number)
        while number and self._due_ms(number - 1) // 1000 >= self.clock.ms // 1000:
            number -= 1
        return number

    async def start(self) -> float:
        """Start the timer and wait until it has all messages; return the CPU time of loading it."""
        began = time.process_time()
        self.timer.load(lambda offset: None)
        took = time.process_time() - began
        self.timer.start()
        await self._until(lambda: not self.timer.offset_behind, "to have all messages")
        return took

    async def stop(self) -> None:
        """Stop the timer and close the store."""
        await self.timer.stop()
        self.store.close()

    async def delivered(self, count: int) -> None:
        """Wait until the timer has delivered this number of messages since its start."""
        await self._until(lambda: self.timer.delivered >= count, f"to deliver {count} messages")

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > end:
                raise RunError(f"the timer needs more than {PATIENCE_S} s {what}")
            await asyncio.sleep(POLL_S)

    def reopen(self) -> None:
        """Open the store again, with a new timer."""
        self.store = self._open_store()
        self.timer = self._new_timer()

    def log_bytes(self) -> int:
        """Return how much of the disk the log of the timer takes."""
        return sum(path.stat().st_blocks * 512 for path in (self._folder / LOG).iterdir())


def wait_and_deliver(folder: str, count: int, settings: Mapping[str, str]) -> Figures:
    """Measure the steps in the life of a message while ``count`` of them wait."""
    return asyncio.run(_wait_and_deliver(_Waiting(folder, settings, count), count))


async def _wait_and_deliver(waiting: _Waiting, count: int) -> Figures:
    figures: Figures = {}
    began = time.process_time()
    waiting.put()
    stored = time.process_time()
    await waiting.start()
    figures["store_s"] = (stored - began) / count
    figures["add_s"] = (time.process_time() - stored) / count
    await waiting.stop()
    figures["log_bytes"] = waiting.log_bytes()
    waiting.reopen()
    figures["load_s"] = await waiting.start()
    figures["private"] = memory(os.getpid(), "RssAnon")
    part = min(count // 4, DELIVERED_MAX)
    began = time.process_time()
    first = waiting.make_due(part)
    await waiting.delivered(first)
    figures["deliver_s"] = (time.process_time() - began) / first
    await waiting.stop()
    waiting.reopen()
    more = waiting.make_due(2 * part) - first
    began = time.process_time()
    await waiting.start()
    await waiting.delivered(more)
    figures["deliver_after_lookup_s"] = (time.process_time() - began) / more
    await waiting.stop()
    return figures


def timers(bench: Bench) -> Iterator[Line]:
    """Measure the cost of a message while many wait."""
    count = bench.scale.timers

    def run(store: Path) -> Json:
        return firetrail("wait_and_deliver", store, count=count, settings=bench.scale.settings)

    answers = bench.take_turns({OURS: bench.in_new_folder(run)})[OURS]
    figures = (
        ("store a message", Unit.SECONDS, "store_s"),
        ("add it to the wheel", Unit.SECONDS, "add_s"),
        ("load the timer at a start", Unit.SECONDS, "load_s"),
        ("deliver a message", Unit.SECONDS, "deliver_s"),
        ("deliver it after a lookup in the index", Unit.SECONDS, "deliver_after_lookup_s"),
        ("anonymous memory of the process", Unit.MEMORY, "private"),
        ("size of timerlog", Unit.MEMORY, "log_bytes"),
    )
    for title, unit, name in figures:
        yield Line(f"timer, {count:,} waiting, {title}", samples(unit, answers, name))


TIMERS = {"timers": timers}
