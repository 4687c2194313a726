"""The base class of all clients: opening and closing, safe against cancellation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from firetrail.client.cluster.background_tasks import END_S
from firetrail.client.cluster.backoff import Backoff
from firetrail.client.cluster.open_calls import OpenCalls
from firetrail.client.cluster.session import Session
from firetrail.format.values.arguments import instance, seconds
from firetrail.remoting.connections.access import Access
from firetrail.remoting.connections.handlers import Handler

GRACE_S = 5.0
"""The time that a close waits by default for calls and listeners that are running."""
CANCELLED_CLOSE_S = 1.0
"""The time that a cancelled close may still take to commit offsets and unregister from brokers."""

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound="ClusterClient")

_log = logging.getLogger(__name__)


def finished_by_close(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[C, P], Coroutine[Any, Any, R]]:
    """Let ``close`` wait for calls of a method; those that take too long fail."""

    @wraps(method)
    async def call(client: C, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with client._calls.one():
            return await method(client, *args, **kwargs)

    return call


class ClusterClient:
    """The base class of all clients: opened once, closed once, and usable in between.

    If ``open`` fails or is cancelled, everything is undone and it can be retried. If ``close`` is
    cancelled, it stops waiting, but still ends all tasks and connections.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        handlers: Mapping[int, Handler] | None = None,
        access: Access | None = None,
    ) -> None:
        if access is not None:
            instance("access", access, Access)
        self._session = Session(namesrv, handlers, type(self).__name__, access)
        self._calls = OpenCalls(type(self).__name__)
        self._backoff = Backoff(type(self).__name__)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect to the cluster; ``async with`` does this on entry.

        Raises:
            ClientClosedError: The client was opened or closed before.
            ConnectionError: No name server can be reached.
        """
        await self._session.open()
        try:
            await self._join()
        except BaseException:
            try:
                await self.close()
            finally:
                self._session.renew()
            raise

    async def close(self, grace_s: float = GRACE_S) -> None:
        """Finish running calls and listeners, and leave the cluster; ``async with`` does this.

        Calls that only wait for messages raise ClientClosedError at once. Sends and
        acknowledgements raise it if they take longer than ``grace_s``. Listeners that take longer
        are cancelled, and their messages are redelivered; a listener that ignores its cancellation
        for 5 s is ended nevertheless, and logged. Closing a client twice does nothing.

        Args:
            grace_s: How long to wait for running calls and listeners, in seconds. Default: 5.
        """
        seconds("grace_s", grace_s)
        if not self._session.start_closing():
            return
        try:
            await self._leave_within(grace_s)
        finally:
            await self._session.close()

    async def _leave_within(self, grace_s: float) -> None:
        try:
            await self._finish(grace_s, END_S)
        except asyncio.CancelledError:
            try:
                async with asyncio.timeout(CANCELLED_CLOSE_S):
                    await self._finish(0.0, CANCELLED_CLOSE_S / 2)
            except Exception as error:
                _log.warning("%s: a cancelled close failed: %r", type(self).__name__, error)
            raise
        except Exception as error:
            _log.warning("%s: leaving the cluster failed: %r", type(self).__name__, error)

    async def _finish(self, grace_s: float, end_s: float) -> None:
        await self._calls.end(grace_s)
        await self._leave(grace_s, end_s)

    async def _join(self) -> None:
        """Register with the cluster; called once the session is open."""

    async def _leave(self, grace_s: float, end_s: float) -> None:
        """Leave the cluster; called before the session is closed, and again if it was cancelled.

        Listeners may continue for ``grace_s``, and have ``end_s`` to end after a cancellation.
        """
