"""How the clients of a cluster are opened and closed, whatever interrupts that."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Self

from firetrail.client.session import Session
from firetrail.remoting.answering import Handler

_log = logging.getLogger(__name__)


class ClusterClient:
    """The base of all clients: opened once, closed once, and usable in between.

    An ``open`` that fails or is cancelled leaves nothing behind, and can be tried again. A
    ``close`` that is cancelled still ends all tasks and connections; brokers then notice by
    themselves that the client is gone.
    """

    def __init__(
        self, namesrv: str | Sequence[str], handlers: Mapping[int, Handler] | None = None
    ) -> None:
        self._session = Session(namesrv, handlers, type(self).__name__)

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
            await self._abandon()
            raise

    async def _abandon(self) -> None:
        """Undo an ``open`` that did not come to its end."""
        try:
            await self.close()
        finally:
            self._session.renew()

    async def close(self) -> None:
        """Leave the cluster. Closing a client again, or one that was never opened, does nothing."""
        if not self._session.start_closing():
            return
        try:
            await self._leave()
        except Exception as error:
            _log.warning("%s: closing: %s", type(self).__name__, error)
        finally:
            await self._session.close()

    async def _join(self) -> None:
        """What is to be done when the session is open."""

    async def _leave(self) -> None:
        """What is to be done before the session is closed."""
