"""Tables of the broker that are kept in files: saved beside the work, and once more at the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from firetrail.broker.files import ConfigFile
from firetrail.errors import StoreError

RETRY_S = 1.0

_log = logging.getLogger(__name__)


class Saver:
    """Writes what ``content`` gives to a file whenever it was changed.

    The content is taken in the event loop and written in a thread. Changes during a write are
    written together in the next one.
    """

    def __init__(self, file: ConfigFile, content: Callable[[], dict[str, Any]]) -> None:
        self._file = file
        self._content = content
        self._task: asyncio.Task[None] | None = None
        self.is_dirty = False
        self._stopping = False

    def changed(self) -> None:
        """Save soon."""
        self.is_dirty = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._save())

    async def saved(self) -> None:
        """Return when everything changed so far is in the file."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def _save(self) -> None:
        while self.is_dirty:
            self.is_dirty = False
            try:
                await asyncio.to_thread(self._file.save, self._content())
            except (OSError, StoreError) as error:
                self.is_dirty = True
                if self._stopping:
                    raise
                _log.error("%s: cannot be saved, tried again soon: %s", self._file.path, error)
                await asyncio.sleep(RETRY_S)

    async def stop(self) -> None:
        """Save what is not saved; OSError or StoreError if that is not possible."""
        self._stopping = True
        if self._task is not None:
            await self._task
