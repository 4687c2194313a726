"""Pops that outlive the call that began them: a cancelled ``receive`` swallows no message.

A broker makes messages invisible when it answers a pop, whether or not anybody waits for the
answer. So a pop goes on when the call that began it is cancelled. The next call that asks for the
same gets its messages; if they arrive before there is one, they are returned to the broker at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from firetrail.client.pop import Popped, Popper
from firetrail.client.session import Session
from firetrail.client.subscription import wanted_by
from firetrail.errors import ClientClosedError, FiretrailError
from firetrail.remoting.bodies import BY_TAG, SubscriptionData

SETTLE_S = 3.0
"""How long a consumer that is closed waits until messages are given back."""

_log = logging.getLogger(__name__)

_Pop = asyncio.Task[list[Popped]]
_Key = tuple[str, str, int, float]


class Ask(NamedTuple):
    """What is asked of a broker."""

    wanted: SubscriptionData
    broker_name: str
    most: int
    invisible_s: float

    @property
    def key(self) -> _Key:
        """Equal for those that may get each other's messages."""
        return self.wanted.topic, self.broker_name, self.most, self.invisible_s


class PendingPops:
    """The pops of an open consumer."""

    def __init__(self, session: Session, popper: Popper) -> None:
        self._session = session
        self._popper = popper
        self._left: dict[_Key, list[_Pop]] = {}  # pops that nobody waits for
        self._settling: set[asyncio.Task[Any]] = set()  # what a close waits for
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def messages(self, ask: Ask, wait_s: float) -> list[Popped]:
        """Messages as soon as there are any, none after ``wait_s``."""
        left = self._left.get(ask.key)
        if left:
            pop = left.pop()
            if not left:
                del self._left[ask.key]
            if await self._ends(ask, pop, wait_s):
                return pop.result()
            wait_s = 0.0  # that one goes on waiting; this call only looks what is there
        pop = self._session.spawn(self._pop(ask, wait_s), watched=True)
        if wait_s <= 0:
            self._settle(pop)
        await self._ends(ask, pop, None)
        return pop.result()

    async def _ends(self, ask: Ask, pop: _Pop, wait_s: float | None) -> bool:
        """Whether a pop ends in time. If not, or if this is cancelled, it is left to others."""
        try:
            ends: set[asyncio.Future[Any]] = {pop, self._closed}
            await asyncio.wait(ends, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            self._session.check_open()
        except BaseException:
            self._leave(ask, pop)
            raise
        if not pop.done():
            self._leave(ask, pop)
        return pop.done()

    async def _pop(self, ask: Ask, wait_s: float) -> list[Popped]:
        found = await self._popper.pop(
            ask.broker_name,
            ask.wanted,
            count=ask.most,
            invisible_s=ask.invisible_s,
            wait_s=wait_s,
        )
        if ask.wanted.expression_type != BY_TAG:
            return found
        is_wanted = wanted_by(ask.wanted)
        # Brokers compare hashes of tags; what came by chance must not come again.
        unwanted = [message for message in found if not is_wanted(message)]
        try:
            await self.ack(unwanted)
        except (OSError, FiretrailError) as error:
            _log.warning(
                "%s: messages with other tags will be redelivered: %s", ask.wanted.topic, error
            )
        return [message for message in found if is_wanted(message)]

    async def ack(self, messages: Iterable[Popped]) -> None:
        """The messages are done with."""
        by_broker: dict[str, list[Popped]] = {}
        for message in messages:
            by_broker.setdefault(message.receipt.broker_name, []).append(message)
        for broker_name, together in by_broker.items():
            if len(together) == 1:
                await self._popper.ack(together[0])
            else:
                await self._popper.ack_all(broker_name, together)

    # -- messages that nobody waits for -------------------------------------------------------

    def _leave(self, ask: Ask, pop: _Pop) -> None:
        """Nobody waits for a pop any more, until another call asks for the same."""
        left = self._left.setdefault(ask.key, [])
        left.append(pop)

        def ended(_: _Pop) -> None:
            if pop in left:  # else somebody waits for it again
                left.remove(pop)
                if not left and self._left.get(ask.key) is left:
                    del self._left[ask.key]
                self._give_back(ask, pop)

        if pop.done():
            ended(pop)
        else:
            pop.add_done_callback(ended)

    def _give_back(self, ask: Ask, pop: _Pop) -> None:
        if pop.cancelled():
            return  # it ended with the session
        if (error := pop.exception()) is not None:
            _log.warning("%s: a receive that was cancelled has failed: %s", ask.wanted.topic, error)
        elif pop.result():
            with suppress(ClientClosedError):
                self._settle(self._session.spawn(self._return(pop.result())))

    async def _return(self, messages: Sequence[Popped]) -> None:
        """Let messages come again at once."""
        returned = (self._popper.change(message, 0.0) for message in messages)
        for outcome in await asyncio.gather(*returned, return_exceptions=True):
            if isinstance(outcome, Exception):
                _log.warning("a message is redelivered only after its invisible time: %s", outcome)

    def _settle(self, task: asyncio.Task[Any]) -> None:
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def pause(self, seconds: float) -> None:
        """Wait. ClientClosedError if the session is closed meanwhile."""
        await asyncio.wait({self._closed}, timeout=seconds)
        self._session.check_open()

    def stop(self) -> None:
        """Let all calls of :meth:`messages` and :meth:`pause` raise: the session is closed."""
        if not self._closed.done():
            self._closed.set_result(None)

    async def settle(self) -> None:
        """Wait until what brokers have sent is given back to them; not for pops that wait."""
        async with asyncio.timeout(SETTLE_S):
            while self._settling:
                await asyncio.wait(self._settling)
