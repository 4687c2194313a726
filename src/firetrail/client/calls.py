"""Calls of a client's user that a close waits for, and that fail if it cannot wait any longer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from firetrail.errors import ClientClosedError

FAIL_S = 1.0
"""How long a close waits for calls to fail that did not end in time."""

_log = logging.getLogger(__name__)


class _Call(NamedTuple):
    task: asyncio.Task[Any] | None
    limit: asyncio.Timeout


class Calls:
    """The calls of one client. ``owner`` is its class, for messages."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._running: dict[asyncio.Future[None], _Call] = {}

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Make a call. ClientClosedError if the client is closed and the call does not end."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._running[ended] = _Call(asyncio.current_task(), limit)
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            what = f"{self._owner} was closed before this call ended; it may have taken effect"
            raise ClientClosedError(what) from None
        finally:
            self._running.pop(ended, None)
            ended.set_result(None)

    async def end(self, within_s: float) -> None:
        """Wait for all calls but the one that this is part of; those that take longer fail."""
        me = asyncio.current_task()
        others = {ended: call for ended, call in self._running.items() if call.task is not me}
        if others:
            await asyncio.wait(others, timeout=within_s)
        late = [ended for ended in others if not ended.done()]
        if not late:
            return
        _log.warning(
            "%s: %d calls did not end within %g s of the close and fail",
            self._owner,
            len(late),
            within_s,
        )
        for ended in late:
            others[ended].limit.reschedule(0.0)
        await asyncio.wait(late, timeout=FAIL_S)
