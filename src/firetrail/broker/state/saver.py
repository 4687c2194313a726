"""The saving of the broker's tables: in a thread after changes, and finally at the stop."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from firetrail.errors import RequestError
from firetrail.remoting.messages.bodies import DataVersion
from firetrail.remoting.messages.typed_body import Body
from firetrail.remoting.wire.codes import ResponseCode

RETRY_S = 1.0
PAUSE_FACTOR = 10
"""The pause after a write, as a multiple of its duration."""
PAUSE_MAX_S = 5.0

_log = logging.getLogger(__name__)


class SavedFile(Protocol):
    """The file, or the group of files, that a table is saved to."""

    @property
    def path(self) -> Path:
        """The path that errors name."""

    def save(self, value: dict[str, Any]) -> None:
        """Write the table durably."""


class Saver:
    """Writes the table that ``content`` returns to a file after it has changed.

    ``content`` is called in the event loop. The result is written, and a body is encoded, in a
    thread, so it must not change. Changes during a write go into the next write together. Unless a
    caller waits for it, the next write begins after a pause of ten times the duration of the last
    one, at most five seconds, so that a large table that changes constantly does not take all of
    the processor's time.
    """

    def __init__(self, file: SavedFile, content: Callable[[], dict[str, Any] | Body]) -> None:
        self._file = file
        self._content = content
        self._task: asyncio.Task[None] | None = None
        self.is_dirty = False
        self._is_due = False
        self._changes = 1
        self._version = DataVersion()
        self._stopping = False
        self._writing = False
        self._waiting: list[asyncio.Future[None]] = []
        self._hurry = asyncio.Event()

    def note_change(self) -> None:
        """Save at the next :meth:`save_changes`."""
        self._is_due = True
        self._changes += 1

    def save_changes(self) -> None:
        """Start saving if anything has changed."""
        if self._is_due:
            self._begin()

    def changed(self) -> None:
        """Save soon."""
        self._changes += 1
        self._begin()

    def version(self, now_ms: int) -> DataVersion:
        """Return the version of the table, which differs after every change.

        Its time is that of the first call after the change, because changes are too frequent to
        look at the clock each time.
        """
        if self._version.counter != self._changes:
            self._version = DataVersion(self._changes, now_ms)
        return self._version

    def _begin(self) -> None:
        self._is_due = False
        self.is_dirty = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._save())

    async def saved(self) -> None:
        """Return when all changes so far are in the file.

        RequestError is raised if it cannot be written now; the save is retried nevertheless.
        """
        self.save_changes()
        if self.is_dirty or self._writing:
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            self._hurry.set()
            await waiting

    async def _save(self) -> None:
        loop = asyncio.get_running_loop()
        while self.is_dirty:
            self.is_dirty = False
            began = loop.time()
            included = len(self._waiting)  # callers whose changes are in this content
            self._writing = True
            try:
                await asyncio.to_thread(self._write, self._content())
            except Exception as error:  # a disk error, or out of memory: the changes are kept
                self.is_dirty = True
                self._finish(len(self._waiting), error)  # all, because a stop does not retry
                if self._stopping:
                    raise
                _log.error("%s cannot be saved, will retry soon: %r", self._file.path, error)
                await asyncio.sleep(RETRY_S)
                continue
            finally:
                self._writing = False
            self._finish(included if self.is_dirty else len(self._waiting))
            await self._pause(min(PAUSE_FACTOR * (loop.time() - began), PAUSE_MAX_S))

    def _finish(self, count: int, error: Exception | None = None) -> None:
        """Let the first ``count`` waiting callers continue, or fail with the error."""
        waiting, self._waiting = self._waiting[:count], self._waiting[count:]
        for each in waiting:
            if each.done():  # the caller was cancelled
                continue
            if error is None:
                each.set_result(None)
            else:
                text = f"{self._file.path} cannot be saved, will retry soon: {error!r}"
                each.set_exception(RequestError(ResponseCode.SYSTEM_ERROR, text))

    def _write(self, content: dict[str, Any] | Body) -> None:
        self._file.save(content.to_json() if isinstance(content, Body) else content)

    async def _pause(self, seconds: float) -> None:
        """Wait before the next save, unless a caller waits for its changes to be saved."""
        if self._stopping or self._waiting:
            return
        self._hurry.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()

    async def stop(self) -> None:
        """Save unsaved changes; raise OSError or StoreError if that is not possible."""
        self._stopping = True
        self._hurry.set()
        self.save_changes()
        if self._task is not None:
            await self._task
