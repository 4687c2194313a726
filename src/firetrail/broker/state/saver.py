"""Tables of the broker that are kept in files: saved beside the work, and once more at the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from firetrail.errors import RequestError
from firetrail.remoting.body import Body
from firetrail.remoting.codes import ResponseCode

RETRY_S = 1.0
REST = 10
"""How many times longer than a write the pause behind it is."""
REST_MAX_S = 5.0

_log = logging.getLogger(__name__)


class SavedFile(Protocol):
    """What a table is saved to."""

    @property
    def path(self) -> Path:
        """For errors."""

    def save(self, value: dict[str, Any]) -> None:
        """Write it, durably."""


class Saver:
    """Writes what ``content`` gives to a file whenever it was changed.

    The content is taken in the event loop and written in a thread; a body is made JSON there, too,
    and must not change. Changes during a write are written together in the next one, which begins
    when nobody is in a hurry only after ten times what the last one took, or five seconds: a large
    table that changes all the time does not take all the time there is.
    """

    def __init__(self, file: SavedFile, content: Callable[[], dict[str, Any] | Body]) -> None:
        self._file = file
        self._content = content
        self._task: asyncio.Task[None] | None = None
        self.is_dirty = False
        self._is_due = False
        self._stopping = False
        self._writing = False
        self._waiting: list[asyncio.Future[None]] = []
        self._hurry = asyncio.Event()

    def note_change(self) -> None:
        """Save at the next :meth:`save_changes`."""
        self._is_due = True

    def save_changes(self) -> None:
        """Begin to save, if anything has changed."""
        if self._is_due:
            self.changed()

    def changed(self) -> None:
        """Save soon."""
        self._is_due = False
        self.is_dirty = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._save())

    async def saved(self) -> None:
        """Return when everything changed so far is in the file.

        RequestError if it cannot be written now; it is tried again all the same.
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
            before = len(self._waiting)  # whose changes are in this content
            self._writing = True
            try:
                await asyncio.to_thread(self._write, self._content())
            except Exception as error:  # of the disk, or want of memory: what is changed stays so
                self.is_dirty = True
                self._tell(len(self._waiting), error)  # all: who stops does not try again
                if self._stopping:
                    raise
                _log.error("%s: cannot be saved, tried again soon: %r", self._file.path, error)
                await asyncio.sleep(RETRY_S)
                continue
            finally:
                self._writing = False
            self._tell(before if self.is_dirty else len(self._waiting))
            await self._rest(min(REST * (loop.time() - began), REST_MAX_S))

    def _tell(self, count: int, error: Exception | None = None) -> None:
        """Let the first go on of those who wait."""
        waiting, self._waiting = self._waiting[:count], self._waiting[count:]
        for each in waiting:
            if each.done():  # given up
                continue
            if error is None:
                each.set_result(None)
            else:
                what = f"{self._file.path}: cannot be saved, tried again soon: {error!r}"
                each.set_exception(RequestError(ResponseCode.SYSTEM_ERROR, what))

    def _write(self, content: dict[str, Any] | Body) -> None:
        self._file.save(content.to_json() if isinstance(content, Body) else content)

    async def _rest(self, seconds: float) -> None:
        """Let others have their turn, unless somebody waits for what was changed."""
        if self._stopping or self._waiting:
            return
        self._hurry.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()

    async def stop(self) -> None:
        """Save what is not saved; OSError or StoreError if that is not possible."""
        self._stopping = True
        self._hurry.set()
        self.save_changes()
        if self._task is not None:
            await self._task
