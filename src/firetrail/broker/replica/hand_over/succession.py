"""A member of a group that leaves it in order: before it stops, or a master with a full disk.

A replica says farewell over its HA connection, and stops when the master has removed it from the
in-sync set: then nobody waits for it. It confirms messages until then. The farewell ends with the
connection, so one that is lost, repeated or late costs time at most.

A master asks another member to take over. It names a member in the consensus engine. That member
takes over as after ``firetrail replica promote``
(:mod:`firetrail.broker.replica.hand_over.group_hand_over`), unless its disk is nearly full as well,
so two full members do not hand over to each other. Before it stops, the former master waits until
it knows the new one, because it passes on the requests that have waited.
"""

import asyncio
import logging
import math
from collections.abc import Callable

from firetrail.broker.replica.relay import CHANGE_S
from firetrail.broker.replica.replica_service import ReplicaService
from firetrail.broker.replica.replicated_broker import ReplicatedBroker
from firetrail.errors import FiretrailError, RequestError
from firetrail.pace.reminders import Reminders
from firetrail.replication.group.group_status import GroupStatus
from firetrail.replication.group.lease_keeper import LeaseKeeper
from firetrail.replication.replica.follower_status import FollowerState
from firetrail.store.log.replica_acks import copies_needed
from firetrail.store.settings.store_config import BrokerRole

TRY_S = 3.0
"""The time that a master waits for one member that it has asked to take over."""
LEAVE_S = 5.0
"""The time for which it tries in all before it stops. Service managers give a process little time
to stop."""
FULL_S = 30.0
"""Pause before a master with a full disk asks the other members again."""
KNOWN_S = CHANGE_S
"""The time that a former master waits until it knows the new one. No request waits longer."""
KEPT = 2
"""The members that remain in the in-sync set if all of them stop in order."""
FAREWELL_S = 2.0
"""The time that a replica waits until it has left the in-sync set."""
POLL_S = 0.02

_log = logging.getLogger(__name__)


class Succession:
    """Finds a successor for a master, and lets this member become one."""

    def __init__(
        self, broker: ReplicatedBroker, keeper: LeaseKeeper, take_over: Callable[[], None]
    ) -> None:
        """Initialize.

        Args:
            broker: The broker.
            keeper: Keeps the lease of its group.
            take_over: Begins to take over from the master; raises RequestError if that is not
                possible.
        """
        self._broker = broker
        self._keeper = keeper
        self._take_over = take_over
        self._leaving: asyncio.Task[bool] | None = None
        self._ask_again_at = -math.inf
        self._reminders = Reminders(asyncio.get_running_loop().time)

    def look(self, group: GroupStatus) -> None:
        """React to the state of the group; called regularly."""
        broker, holder = self._broker, group.holder
        if broker.replica is not None:
            is_named = group.successor == broker.config.ha_member
            if is_named and holder is not None and holder.member != group.successor:
                self._accept()
        elif group.epoch and broker.broker_store.space.is_full:
            self._leave_full_disk()

    def _accept(self) -> None:
        """Take over, unless this member could not accept messages for long."""
        obstacle = (
            "" if self._broker.broker_store.space.is_ample else "its disk is nearly full as well"
        )
        try:
            if not obstacle:
                self._take_over()
        except RequestError as error:
            obstacle = error.remark
        if obstacle and self._reminders.is_due(obstacle):
            _log.warning("this member does not take over as the master asks: %s", obstacle)

    def _leave_full_disk(self) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._ask_again_at or (self._leaving is not None and not self._leaving.done()):
            return
        self._ask_again_at = now + FULL_S
        _log.warning("the disk is nearly full; another member of the group is asked to take over")
        self._leaving = asyncio.get_running_loop().create_task(self.leave(math.inf))

    async def settled(self, is_idle: Callable[[], bool]) -> None:
        """Wait for the end of a change of the role, for LEAVE_S at most."""
        await _wait(LEAVE_S, is_idle)

    async def stop(self) -> None:
        """Leave the group before the broker stops, if other members are in sync."""
        if self._leaving is not None:
            self._leaving.cancel()
            await asyncio.gather(self._leaving, return_exceptions=True)
        has_left = self._broker.replica is None and await self.leave(LEAVE_S)
        replica = self._broker.replica
        if replica is None:
            return
        self._keeper.retire()
        replica.follower.leave()
        if has_left:
            await _wait(KNOWN_S, lambda: replica.master is not None)
        else:
            await _wait(FAREWELL_S, lambda: not self._is_waited_for(replica))

    def _is_waited_for(self, replica: ReplicaService) -> bool:
        """Whether the master of this replica waits for it, but need not."""
        broker, in_sync, follower = self._broker, self._keeper.status.in_sync, replica.follower
        is_sync = follower.master_role == BrokerRole.SYNC_MASTER.value
        as_master = broker.broker_store.config.replace(role=BrokerRole.SYNC_MASTER)
        return (
            is_sync
            and broker.config.ha_member in in_sync
            and len(in_sync) > max(copies_needed(as_master, 0, in_group=True), KEPT)
            and follower.status.state is FollowerState.FOLLOWING
        )

    async def leave(self, patience_s: float) -> bool:
        """Ask the connected members of the in-sync set, one after the other, to take over.

        Args:
            patience_s: The time for which it tries.

        Returns:
            Whether this broker is no longer the master.
        """
        deadline = asyncio.get_running_loop().time() + patience_s
        for member in self._candidates():
            try:
                await asyncio.to_thread(self._keeper.nominate, member)
            except FiretrailError as error:
                _log.warning("member %d cannot be asked to take over: %s", member, error)
                break
            if await self._has_left(member, deadline):
                return True
        return self._broker.replica is not None

    def _candidates(self) -> list[int]:
        """Return the members that can take over, those with the longest logs first."""
        group = self._keeper.status
        if self._broker.replica is not None or not group.epoch:
            return []
        acks = self._broker.broker_store.replica_acks
        ends = acks.by_member()
        staying = group.in_sync & ends.keys() - acks.leaving
        return sorted(staying, key=lambda member: (-ends[member], member))

    async def _has_left(self, member: int, deadline: float) -> bool:
        """Wait until a member has taken over, unless it cannot or does not."""
        loop = asyncio.get_running_loop()
        until = min(deadline, loop.time() + TRY_S)
        while self._broker.replica is None:
            acks = self._broker.broker_store.replica_acks
            is_connected = member in acks.by_member().keys() - acks.leaving
            is_given = not self._keeper.status.epoch  # it is the member's turn
            if loop.time() > until or not (is_connected or is_given):
                return False
            await asyncio.sleep(POLL_S)
        return True


async def _wait(patience_s: float, is_over: Callable[[], bool]) -> None:
    """Wait until something is over, or for this time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while not is_over() and loop.time() < deadline:
        await asyncio.sleep(POLL_S)
