"""Pops that outlive the call that started them, so that a cancelled ``receive`` loses no message.

A broker makes messages invisible when it answers a pop, whether or not a call still waits for the
answer. So a pop continues when the call that started it is cancelled. The next call with the same
arguments gets its messages. If they arrive before such a call, they are returned to the broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from firetrail.client.cluster.session import Session
from firetrail.client.consumers.pop_client import PopClient, Popped
from firetrail.client.consumers.subscription import wanted_by
from firetrail.errors import ClientClosedError, FiretrailError
from firetrail.remoting.messages.bodies import SubscriptionData

SETTLE_S = 3.0
"""The time that a close waits until messages are returned to their brokers."""

_log = logging.getLogger(__name__)

_Pop = asyncio.Task[list[Popped]]
_Key = tuple[str, str, int, float]


class PopArguments(NamedTuple):
    """The arguments of a pop."""

    wanted: SubscriptionData
    broker_name: str
    most: int
    invisible_s: float

    @property
    def key(self) -> _Key:
        """A key that interchangeable pops share: one may return the messages of another."""
        return self.wanted.topic, self.broker_name, self.most, self.invisible_s


class PendingPops:
    """The pops of an open consumer."""

    def __init__(self, session: Session, popper: PopClient) -> None:
        self._session = session
        self._popper = popper
        self._abandoned: dict[_Key, list[_Pop]] = {}  # pops that no call waits for
        self._settling: set[asyncio.Task[Any]] = set()  # tasks that a close waits for
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def messages(self, ask: PopArguments, wait_s: float) -> list[Popped]:
        """Return messages as soon as there are any, or an empty list after ``wait_s``."""
        abandoned = self._abandoned.get(ask.key)
        if abandoned:
            pop = abandoned.pop()
            if not abandoned:
                del self._abandoned[ask.key]
            if await self._ends(ask, pop, wait_s):
                return pop.result()
            wait_s = 0.0  # that pop continues to wait; this one must return at once
        pop = self._session.spawn(self._pop(ask, wait_s), watched=True)
        if wait_s <= 0:
            self._settle(pop)
        await self._ends(ask, pop, None)
        return pop.result()

    async def _ends(self, ask: PopArguments, pop: _Pop, wait_s: float | None) -> bool:
        """Return whether a pop ends in time. If not, or if this is cancelled, abandon the pop."""
        try:
            ends: set[asyncio.Future[Any]] = {pop, self._closed}
            await asyncio.wait(ends, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            self._session.check_open()
        except BaseException:
            self._abandon(ask, pop)
            raise
        if not pop.done():
            self._abandon(ask, pop)
        return pop.done()

    async def _pop(self, ask: PopArguments, wait_s: float) -> list[Popped]:
        found = await self._popper.pop(
            ask.broker_name, ask.wanted, count=ask.most, invisible_s=ask.invisible_s, wait_s=wait_s
        )
        if not ask.wanted.is_by_tag:
            return found
        is_wanted = wanted_by(ask.wanted)
        # Brokers compare only hashes of tags. Acknowledge collisions so they are not redelivered.
        unwanted = [message for message in found if not is_wanted(message)]
        try:
            await self.ack(unwanted)
        except (OSError, FiretrailError) as error:
            _log.warning(
                "%s: messages with other tags could not be acknowledged and will be redelivered: "
                "%s",
                ask.wanted.topic,
                error,
            )
        return [message for message in found if is_wanted(message)]

    async def ack(self, messages: Iterable[Popped]) -> None:
        """Acknowledge messages, with one request per broker."""
        by_broker: dict[str, list[Popped]] = {}
        for message in messages:
            by_broker.setdefault(message.receipt.broker_name, []).append(message)
        for broker_name, together in by_broker.items():
            if len(together) == 1:
                await self._popper.ack(together[0])
            else:
                await self._popper.ack_all(broker_name, together)

    # -- abandoned pops -----------------------------------------------------------------------

    def _abandon(self, ask: PopArguments, pop: _Pop) -> None:
        """Leave a pop to the next call with the same key, or return its messages at its end."""
        abandoned = self._abandoned.setdefault(ask.key, [])
        abandoned.append(pop)

        def ended(_: _Pop) -> None:
            if pop in abandoned:  # otherwise another call waits for it by now
                abandoned.remove(pop)
                if not abandoned and self._abandoned.get(ask.key) is abandoned:
                    del self._abandoned[ask.key]
                self._give_back(ask, pop)

        if pop.done():
            ended(pop)
        else:
            pop.add_done_callback(ended)

    def _give_back(self, ask: PopArguments, pop: _Pop) -> None:
        if pop.cancelled():
            return  # it was cancelled by the end of the session
        if (error := pop.exception()) is not None:
            _log.warning("%s: the pop of a cancelled receive failed: %s", ask.wanted.topic, error)
        elif pop.result():
            with suppress(ClientClosedError):
                self._settle(self._session.spawn(self._return(pop.result())))

    async def _return(self, messages: Sequence[Popped]) -> None:
        """Return messages to their brokers, which redeliver them at once."""
        returned = (self._popper.change(message, 0.0) for message in messages)
        for outcome in await asyncio.gather(*returned, return_exceptions=True):
            if isinstance(outcome, Exception):
                _log.warning(
                    "returning a message to the broker failed, so it may be redelivered only after "
                    "its invisible time: %s",
                    outcome,
                )

    def _settle(self, task: asyncio.Task[Any]) -> None:
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def pause(self, seconds: float) -> None:
        """Wait; raise ClientClosedError if the session is closed during that time."""
        await asyncio.wait({self._closed}, timeout=seconds)
        self._session.check_open()

    def stop(self) -> None:
        """Let all running calls of :meth:`messages` and :meth:`pause` raise ClientClosedError."""
        if not self._closed.done():
            self._closed.set_result(None)

    async def settle(self) -> None:
        """Wait until received messages are returned to their brokers, but not for long polls."""
        async with asyncio.timeout(SETTLE_S):
            while self._settling:
                await asyncio.wait(self._settling)
