"""Planned changes of the master inside a group, whose roles follow the lease.

The member that takes over carries the change out:

1. HAND_OVER: the master is frozen. It answers the requests in progress, lets new ones wait, and no
longer changes its log and tables. 2. The member receives the end of the log, and copies the tables.
3. STEP_DOWN: the master leaves the in-sync set if enough others remain, and gives the lease to the
   member. No other member can win it for the time of a lease.
4. The member becomes the master because it holds the lease, and the former master its slave. Then
   the former master passes the requests that have waited on.

The lease decides at every moment who is the master, so no state has to be saved on disk. If a step
before the third fails, the master continues; it also does so on its own after ``FROZEN_S``. If the
lease was given away and the member does not take it, the group elects a master as after a failure.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from firetrail.broker.replica.hand_over.hand_over import HandOver
from firetrail.broker.replica.replicated_broker import ReplicatedBroker
from firetrail.errors import ElectionError, NotReachedError, ReplicationError, RequestError
from firetrail.remoting.messages.replica_headers import HandOverHeader, StepDownHeader
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.replication.group.lease_keeper import LeaseKeeper

FROZEN_S = 5.0
"""The time for which a master is frozen if its successor is silent. Requests do not wait that
long."""
LEASE_S = 10.0
"""The time that a member that was given the lease waits until it is the master."""
POLL_S = 0.02

_log = logging.getLogger(__name__)


class FrozenBroker(ReplicatedBroker, Protocol):
    """A broker that can be frozen."""

    async def freeze(self, reason: str) -> None:
        """Change neither log nor tables."""

    def thaw(self) -> None:
        """Continue as the master."""


class GroupHandOver:
    """Hands the lease of a group over, and takes it over.

    Attributes:
        successor: ``ip:port`` of the member to which this broker hands over; empty for none.
    """

    def __init__(self, broker: FrozenBroker, keeper: LeaseKeeper) -> None:
        """Initialize.

        Args:
            broker: The broker.
            keeper: Keeps the lease of its group.
        """
        self._broker = broker
        self._keeper = keeper
        self._thawing: asyncio.TimerHandle | None = None
        self.successor = ""

    # -- on the member that takes over --------------------------------------------------------

    def check(self) -> None:
        """Raise RequestError if this member must not take over."""
        group, member = self._keeper.status, self._broker.config.ha_member
        if member not in group.in_sync:
            members = ", ".join(map(str, sorted(group.in_sync)))
            raise _refused(
                f"member {member} may lack acknowledged messages: the in-sync set is {members}; "
                "wait until it has caught up"
            )

    async def take_over(self, enter: Callable[[str], None]) -> None:
        """Become the master after the present one has handed over.

        Args:
            enter: Called with the name of each step.

        Raises:
            FiretrailError: A step has failed; the present master continues, or the group elects
                one.
            OSError: The master does not answer.
        """
        broker = self._broker
        replica = broker.replica
        if replica is None or replica.master is None:
            raise ReplicationError("the group has no master that could hand over")
        member, master = broker.config.ha_member, replica.master.broker
        hand_over = HandOver(broker, master, broker.address, enter)
        try:
            before = await hand_over.begin(member)
            await hand_over.catch_up(before.max_offset)
            try:
                await hand_over.copy_tables()
            except BaseException:
                await hand_over.cancel()
                raise
            await hand_over.receive_lease(member)
            enter("opening the store as the master")
            with suppress(NotReachedError, ElectionError):  # then the keeper hears of it later
                await asyncio.to_thread(self._keeper.refresh)
            await self._await_lease(master)
        finally:
            await hand_over.close()

    async def _await_lease(self, master: str) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LEASE_S
        while self._broker.replica is not None:
            if loop.time() > deadline:
                raise ReplicationError(
                    f"{master} was asked for the lease of the group, but this member did not become"
                    f" the master within {LEASE_S:g} seconds: {self._keeper.status.obstacle}"
                )
            await asyncio.sleep(POLL_S)

    # -- on the master ------------------------------------------------------------------------

    async def freeze(self, header: HandOverHeader) -> None:
        """Prepare to hand over to a member.

        Raises:
            RequestError: This broker is not the master, or the member cannot take over.
            ReplicationError: Requests in progress take too long; this broker continues.
            OSError: A file cannot be written.
        """
        self._check_may_leave(header)
        self.successor = header.successor
        loop = asyncio.get_running_loop()
        self._thawing = loop.call_later(FROZEN_S, self.thaw)
        _log.warning("requests wait from now on: %s will be the master", header.successor)
        try:
            await self._broker.freeze(f"{header.successor} will be the master")
        except BaseException:
            self.thaw()
            raise

    def _check_may_leave(self, header: HandOverHeader) -> None:
        broker, group = self._broker, self._keeper.status
        if broker.replica is not None or not group.epoch or group.fenced_s:
            raise _refused(f"{broker.address} is not the master, so it cannot hand over")
        if self.successor:
            raise _refused(f"{broker.address} is handing over to {self.successor}")
        connected = broker.broker_store.replica_acks.by_member()
        if header.member not in group.in_sync or header.member not in connected:
            raise _refused(
                f"member {header.member} is not connected, or not in the in-sync set of the master;"
                " wait until it has caught up"
            )

    def cancel(self, successor: str) -> None:
        """Continue as the master, because the successor has given up."""
        if successor == self.successor:
            self.thaw()

    def thaw(self) -> None:
        """Continue as the master, if the lease was not given away."""
        if self._thawing is None:
            return
        self._end()
        if self._broker.replica is None:
            _log.warning("the hand-over has failed; this broker continues as the master")
            self._broker.thaw()

    def _end(self) -> None:
        if self._thawing is not None:
            self._thawing.cancel()
        self._thawing, self.successor = None, ""

    async def give_lease(self, header: StepDownHeader) -> None:
        """Give the lease to the member for which this broker is frozen.

        Raises:
            RequestError: This broker is not frozen for that member.
            NotReachedError: The consensus engine cannot be reached.
            ElectionError: It refuses the request.
        """
        if self._thawing is None or header.successor != self.successor:
            raise _refused(f"{self._broker.address} is not handing over to {header.successor}")
        self._thawing.cancel()
        _log.warning("%s replaces this broker as the master", header.successor)
        try:
            await asyncio.to_thread(self._keeper.hand_over, header.broker_id)
        except BaseException:
            if self._keeper.status.epoch:
                self.thaw()
            raise
        finally:
            self._end()


def _refused(reason: str) -> RequestError:
    return RequestError(ResponseCode.NO_PERMISSION, reason)
