"""A timer on a store, with a clock that the test controls and without an event loop of its own."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

from tests.broker.brokers import SMALL
from tests.helpers import FaultyFiles, ManualClock, crash_image

from firetrail import Message
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.timer.admission import TimerAdmission
from firetrail.broker.timer.timer_service import TimerService
from firetrail.format.files.timer import TIMER_TOPIC, TimerCheck
from firetrail.format.message_types import has_delivery_time
from firetrail.format.properties import encode_properties
from firetrail.format.record import Record
from firetrail.settings.settings_table import Live
from firetrail.store.broker_store import BrokerStore
from firetrail.store.settings.store_config import StoreConfig
from firetrail.system import System

START_S = 1_800_000_000
"""The time at which tests begin, in seconds since 1970."""
REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"


class Bench:
    """A timer that a test steps by hand."""

    def __init__(
        self,
        folder: Path,
        *,
        clock: ManualClock | None = None,
        store: StoreConfig = SMALL,
        is_slave: bool = False,
        wheel_slots: int = 1 << 16,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self.clock = clock or ManualClock(START_S * 1000)
        self.files = FaultyFiles()
        self.config = BrokerConfig(**{"timer_log_file_size": 1000, **settings})
        self._settings = {**settings, "store": store, "wheel_slots": wheel_slots}
        system = System(self.files, self.clock)
        self.store = BrokerStore.open(folder, store, system=system)
        with patch("firetrail.broker.timer.timer_service.WHEEL_SLOTS", wheel_slots):
            self.timer = TimerService(system, folder, self.store, self.config, REVIVE)
        self.admission = TimerAdmission(self.timer, Live(self.config), self.clock.now_ms)
        self.reads: list[int] = []
        if is_slave:
            self.timer.load_copy()
        else:
            self.timer.load(self.reads.append)

    def send(self, body: bytes, after_ms: int | None = None, **more: str) -> Message:
        """Send a message that is to be delivered some time from now."""
        properties = {"UNIQ_KEY": f"U{body.decode()}", **more}
        if after_ms is not None:
            properties["TIMER_DELIVER_MS"] = str(self.clock.ms + after_ms)
        return self.put("T", body, properties, 1)

    def admitted(
        self,
        topic: str,
        body: bytes,
        properties: Mapping[str, str],
        queue_id: int = 0,
        half: bool = False,
    ) -> Message:
        kept = dict(properties)
        place, number = topic, queue_id
        if has_delivery_time(kept):
            place, number = self.admission.admit(kept, topic, queue_id, half=half)
        raw = encode_properties(kept)
        return Message(place, body, queue_id=number, raw_properties=raw)

    def put(
        self, topic: str, body: bytes, properties: Mapping[str, str], queue_id: int = 0
    ) -> Message:
        message = self.admitted(topic, body, properties, queue_id)
        self.store.embedded.put(message)
        return message

    def run(self, steps_max: int = 10_000) -> None:
        for _ in range(steps_max):
            assert self.store.embedded.wait_dispatched()
            if self.timer.step() > 0:
                assert self.store.embedded.wait_dispatched()
                if self.timer.offset_behind == 0 or self.timer._follow_to is not None:
                    return
        raise AssertionError("the timer does not come to rest")

    def pass_time(self, ms: int, step_ms: int = 100) -> None:
        end = self.clock.ms + ms
        while self.clock.ms < end:
            self.clock.advance(min(step_ms, end - self.clock.ms))
            self.run()

    @property
    def records(self) -> list[Record]:
        assert self.store.embedded.wait_dispatched()
        return list(self.store.embedded.read("T", 1))

    @property
    def bodies(self) -> list[bytes]:
        return [record.body for record in self.records]

    @property
    def waiting(self) -> list[Record]:
        assert self.store.embedded.wait_dispatched()
        return list(self.store.embedded.read(TIMER_TOPIC, 0))

    async def save(self) -> TimerCheck:
        await self.timer._saver.save()
        return self.timer._files.check

    async def close(self) -> None:
        if self.timer._files.is_open:
            await self.timer._saver.save()
        self.timer._files.close()
        self.store.close()

    async def restarted(
        self, change: Callable[[Path], None] | None = None, **settings: Any
    ) -> Self:
        """Stop, change files, and start again."""
        await self.close()
        if change is not None:
            change(self.folder)
        return type(self)(self.folder, clock=self.clock, **{**self._settings, **settings})

    def killed(self, folder: Path, **settings: Any) -> Self:
        """Kill the process, and start again on a copy of its files."""
        crash_image(self.folder, folder)
        self.timer._files.close()
        self.store.close()
        return type(self)(folder, clock=self.clock, **{**self._settings, **settings})
