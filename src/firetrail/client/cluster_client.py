"""How the clients of a cluster are opened and closed, whatever interrupts that."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from firetrail.client.calls import Calls
from firetrail.client.session import END_S, Session
from firetrail.format.arguments import seconds
from firetrail.remoting.handlers import Handler

GRACE_S = 5.0
"""How long a client that is closed waits for what it is doing."""
HASTE_S = 1.0
"""How long a close that was cancelled still takes to tell brokers what they have to know."""

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound="ClusterClient")

_log = logging.getLogger(__name__)


def finished_by_close(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[C, P], Coroutine[Any, Any, R]]:
    """A call that ``close`` waits for. If it takes longer than that, it fails."""

    @wraps(method)
    async def call(client: C, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with client._calls.one():
            return await method(client, *args, **kwargs)

    return call


class ClusterClient:
    """The base of all clients: opened once, closed once, and usable in between.

    An ``open`` that fails or is cancelled leaves nothing behind, and can be tried again. A
    ``close`` that is cancelled waits for nothing more, but still ends all tasks and connections.
    """

    def __init__(
        self, namesrv: str | Sequence[str], handlers: Mapping[int, Handler] | None = None
    ) -> None:
        self._session = Session(namesrv, handlers, type(self).__name__)
        self._calls = Calls(type(self).__name__)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect to the cluster. ClientClosedError if that was done before."""
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
        """Finish what is being done, and leave the cluster.

        Sends and acknowledgements that take longer than ``grace_s`` raise ClientClosedError, as do
        calls that only wait for messages, at once. Listeners that take longer are cancelled, and
        their messages are redelivered; one that ignores its cancellation for 5 s is ended all the
        same, and logged. Closing a client again, or one that was never opened, does nothing.
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
                async with asyncio.timeout(HASTE_S):
                    await self._finish(0.0, HASTE_S / 2)
            except Exception as error:
                _log.warning("%s: closing in haste: %r", type(self).__name__, error)
            raise
        except Exception as error:
            _log.warning("%s: closing: %r", type(self).__name__, error)

    async def _finish(self, grace_s: float, end_s: float) -> None:
        await self._calls.end(grace_s)
        await self._leave(grace_s, end_s)

    async def _join(self) -> None:
        """What is to be done when the session is open."""

    async def _leave(self, grace_s: float, end_s: float) -> None:
        """What is to be done before the session is closed; again if that was cancelled.

        Listeners may run on for ``grace_s``, and have ``end_s`` to end when they are cancelled.
        """
