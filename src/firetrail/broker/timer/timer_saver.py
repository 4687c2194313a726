"""The saver of the timer's progress: once a second, in a thread, and when the broker stops."""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from firetrail.broker.timer.timer_files import TimerFiles
from firetrail.pace.periodic import GuardedStep, every

SAVE_S = 1.0
"""Pause between two saves."""
IDLE_SAVE_MS = 10_000
"""The longest time that the saved progress may lag while messages wait and nothing happens."""

_log = logging.getLogger(__name__)


class TimerProgress(NamedTuple):
    """The progress of a timer."""

    read_ms: int
    """The first slot that records can be added to."""
    delivered_ms: int
    """The time before which all slots are delivered."""
    steps: int
    """Records that were added and messages that were delivered since the start."""
    is_rebuilding: bool
    """Whether the files lack records that were in them before a rebuild."""


class TimerSaver:
    """Saves the files of a timer.

    Attributes:
        on_saved: Called with the queue offset up to which records were added, after each save.
    """

    def __init__(self, files: TimerFiles, progress: Callable[[], TimerProgress]) -> None:
        """Create the saver.

        Args:
            files: The files of the timer.
            progress: Returns how far the timer is.
        """
        self.on_saved: Callable[[int], None] = lambda offset: None
        self._files = files
        self._progress = progress
        self._saved_steps = 0
        self._saving: asyncio.Future[None] | None = None  # a save that may outlive its task

    @property
    def is_saving(self) -> bool:
        """Whether a thread is writing the files."""
        return self._saving is not None

    async def run(self) -> None:
        """Save the progress regularly, until the task is cancelled."""
        trouble = "the progress of the timer cannot be saved; will retry"
        await every(SAVE_S, GuardedStep(self._save_changes, trouble, _log))

    async def _save_changes(self) -> None:
        if self._is_changed:
            await self.save()

    @property
    def _is_changed(self) -> bool:
        progress = self._progress()
        lag_ms = abs(progress.read_ms - self._files.check.read_ms)
        waits = self._files.wheel.waiting > 0
        return progress.steps != self._saved_steps or (waits and lag_ms >= IDLE_SAVE_MS)

    async def save(self) -> None:
        """Save the progress, except during a rebuild: an interrupted one begins again."""
        if self._saving is not None:  # its task was cancelled
            await asyncio.wait([self._saving])
        progress = self._progress()
        if not self._files.is_open or progress.is_rebuilding:
            return
        offset = self._files.queue_offset
        save = self._files.begin_save(progress.delivered_ms)
        self._saving = saving = asyncio.ensure_future(asyncio.to_thread(save))
        saving.add_done_callback(self._saved)
        await asyncio.shield(saving)
        self._files.end_save()
        self._saved_steps = progress.steps
        self.on_saved(offset)

    def _saved(self, saving: asyncio.Future[None]) -> None:
        self._saving = None
        if not saving.cancelled():
            saving.exception()  # it was raised in the task, unless that was cancelled
