"""Calls that the close of a client waits for, and that fail if they take longer than that."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from firetrail.errors import ClientClosedError

FAIL_S = 1.0
"""The time that a close waits for late calls to raise ClientClosedError."""

_log = logging.getLogger(__name__)


class _RunningCall:
    """One call, as a context manager around its work; it is cheap, because each send uses one."""

    __slots__ = ("_calls", "_cancelling", "_failed", "ended", "task")

    def __init__(self, calls: OpenCalls) -> None:
        self._calls = calls
        self._failed = False
        self.ended: asyncio.Future[None] | None = None

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "calls are made in tasks"
        self.task: asyncio.Task[Any] = task
        self._cancelling = task.cancelling()
        self._calls.running.add(self)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._calls.running.discard(self)
        if self.ended is not None:
            self.ended.set_result(None)
        if not self._failed:
            return
        # If others have cancelled the task as well, it stays cancelled.
        is_ours = self.task.uncancel() <= self._cancelling
        if is_ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            what = "was closed before this call ended; it may have taken effect"
            raise ClientClosedError(f"{self._calls.owner} {what}") from None

    def fail(self) -> None:
        """Let the call raise ClientClosedError at its ``await``."""
        self._failed = True
        self.task.cancel()


class OpenCalls:
    """The calls of one client. ``owner`` is the name of its class, for messages."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.running: set[_RunningCall] = set()

    def one(self) -> _RunningCall:
        """Return a context for one call; it raises ClientClosedError if a close cuts it short."""
        return _RunningCall(self)

    async def end(self, within_s: float) -> None:
        """Wait for all calls except the current one; those that take longer fail."""
        me = asyncio.current_task()
        others = [call for call in self.running if call.task is not me]
        if not others:
            return
        await self._wait(others, within_s)
        late = [call for call in others if call in self.running]
        if not late:
            return
        _log.warning(
            "%s: %d calls did not end within %g s after the close and raise ClientClosedError",
            self.owner,
            len(late),
            within_s,
        )
        for call in late:
            call.fail()
        await self._wait(late, FAIL_S)

    async def _wait(self, calls: list[_RunningCall], within_s: float) -> None:
        create_future = asyncio.get_running_loop().create_future
        for call in calls:
            call.ended = call.ended or create_future()
        await asyncio.wait({call.ended for call in calls if call.ended}, timeout=within_s)
