"""The scrub of a broker: it reads the whole log again and again, at a limited rate."""

import asyncio
import logging

from firetrail.pace.periodic import repeat
from firetrail.store.broker_store import BrokerStore

FIRST_S = 60.0
"""Pause before the first pass, so that it does not slow down the start."""
PASS_S = 3600.0
"""Pause between two passes."""
OFF_S = 10.0
"""Pause between two checks of the settings while the scrub is off."""

_log = logging.getLogger(__name__)


class ScrubService:
    """Finds damaged records before they are read; others repair or report them.

    Args:
        store: The store whose log is read.
    """

    def __init__(self, store: BrokerStore) -> None:
        self._store = store
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Read the log from now on."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop reading; the store waits for a step that is in progress when it is closed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        await asyncio.sleep(FIRST_S)
        await repeat(self.step, "the log cannot be checked for damage; will retry", _log)

    async def step(self) -> float:
        """Read as much as one second allows, and return the seconds to wait afterwards."""
        rate = self._store.config.scrub_bytes_per_second
        if rate == 0:
            return OFF_S
        read = await asyncio.to_thread(self._store.log_scrub.step, rate)
        return read / rate if read else PASS_S
