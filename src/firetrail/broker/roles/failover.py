"""Automatic failover: the role of a broker follows the lease of its group.

The broker starts as a slave. When it holds the lease it becomes the master. When another member
holds it, the broker is a slave and follows that member; messages that only this broker has are
removed first, and a copy of them is kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.replica.group_coordinator import group_coordinator
from firetrail.broker.replica.replica_service import ReplicaService
from firetrail.errors import DivergedError, OlderMasterError
from firetrail.pace.periodic import GuardedStep, woken
from firetrail.remoting.connections.access import Access
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import MASTER_ID
from firetrail.replication.group.election import LeaseTiming
from firetrail.replication.group.group_check import LEFT_OUT_REMEDY
from firetrail.replication.group.group_status import GroupStatus
from firetrail.replication.group.group_view import GroupMember
from firetrail.replication.group.lease_keeper import LeaseKeeper
from firetrail.replication.group.lineage import next_epoch
from firetrail.replication.log.epochs import EpochFile
from firetrail.replication.replica.follower_status import FollowerState
from firetrail.replication.replica.master_check import Master, MasterAddress
from firetrail.replication.replica.rewind import RewindPlan, rewind
from firetrail.store.settings.store_config import BrokerRole
from firetrail.system import System

POLL_S = 0.5
"""Pause between two checks of a replica whose log may differ from the master's."""
RETRY_S, RETRY_MAX_S = 5.0, 60.0
"""Pause after a change of role, or a rewind, that failed. It doubles up to the longest one."""

_log = logging.getLogger(__name__)


class Switchable(Protocol):
    """The broker, as its failover sees it."""

    @property
    def role(self) -> BrokerRole:
        """The current role."""

    @property
    def replica(self) -> ReplicaService | None:
        """The service that follows the master, while the broker is a slave."""

    @property
    def epochs(self) -> EpochFile:
        """The epochs of the log: the master that wrote each part."""

    async def become(self, role: BrokerRole, broker_id: int, *, epoch: int = 0) -> None:
        """Change the role; a new master begins an epoch."""

    async def rewind(self, master: MasterAddress, *, keep_confirmed: bool = False) -> None:
        """Remove messages that a master does not have, while the broker is a slave."""


def lease_keeper(
    config: BrokerConfig, address: str, system: System, *, may_found: bool
) -> LeaseKeeper:
    """Return the keeper of the lease for a broker whose group is in etcd.

    Args:
        config: The settings of the broker.
        address: ``ip:port`` of the broker.
        system: Files and clock.
        may_found: Whether the broker may create the group.

    Raises:
        ConfigError: See :func:`group_coordinator`.
    """
    lag_s = config.ha_lag_ms / 1000
    return LeaseKeeper(
        group_coordinator(config, system),
        GroupMember(config.ha_member, address, config.ha_address, may_found, lag_s),
        LeaseTiming(config.ha_lease_s),
        system,
    )


async def rewind_store(
    system: System,
    folder: Path,
    master: MasterAddress,
    access: Access | None = None,
    confirmed_end: int = 0,
) -> None:
    """Remove the messages of a closed store that a master does not have; keep a copy of them.

    Args:
        system: Files and clock.
        folder: The folder of the store.
        master: The master.
        access: Credentials and TLS. Default: those in the environment.
        confirmed_end: The offset before which nothing is removed, because it was acknowledged.
            Default: 0, anything may be removed.

    Raises:
        OlderMasterError: A confirmed message would be removed.
        DivergedError: The logs have nothing in common, or the store's log is damaged.
        FiretrailError: The master cannot be asked, or the store cannot be cut.
        OSError: A file cannot be written.
    """

    def check(plan: RewindPlan) -> None:
        if plan.removed is None or plan.removed.first >= confirmed_end:
            return
        if plan.is_damaged:
            raise DivergedError(
                f"the log of this replica is damaged at offset {plan.cut.end}, so the messages "
                f"after it cannot be compared with those of master {master.broker}; they were "
                f"confirmed up to {confirmed_end}, so nothing is removed here; replace the store "
                "of this replica with 'firetrail replica replace' or 'firetrail cluster replace'"
            )
        raise OlderMasterError(
            f"the elected master {master.broker} lacks messages from offset "
            f"{plan.removed.first} on, which all members of the in-sync set had confirmed up to"
            f" {confirmed_end}: its store is older than the group, so nothing is removed here; "
            "stop that member and replace its store with 'firetrail replica replace' or "
            "'firetrail cluster replace'"
        )

    client = RemotingClient(access=access)
    try:
        done = await rewind(system, folder, Master(client, master), check)
    finally:
        await client.close()
    _log.warning(
        "the log was cut from %d to %d, the last record in common with master %s; the removed "
        "messages are kept in %s",
        done.plan.own_end,
        done.plan.cut.end,
        master.broker,
        done.kept,
    )


def _left_out(master: MasterAddress) -> str:
    return (
        "an operator has decided without this member which log is the group's, and this member has "
        f"confirmed messages that the elected master {master.broker} lacks. It does not follow, and"
        f" removes nothing. {LEFT_OUT_REMEDY}"
    )


class Failover:
    """Changes the role of a broker."""

    def __init__(
        self, keeper: LeaseKeeper, broker: Switchable, master_role: BrokerRole, config: BrokerConfig
    ) -> None:
        """Initialize.

        Args:
            keeper: Keeps the lease.
            broker: The broker.
            master_role: The role that it has as master.
            config: The settings of the broker.
        """
        self._keeper = keeper
        self._broker = broker
        self._master_role = master_role
        self._member = config.ha_member
        self._lease_s = config.ha_lease_s
        self._changed = asyncio.Event()
        self._retry_s = RETRY_S
        self._looking = GuardedStep(
            self._look,
            "the role of this broker cannot be changed; it is tried again",
            _log,
            level=logging.WARNING,
        )
        self._is_stopping = False
        self._task: asyncio.Task[None] | None = None
        self._older: tuple[MasterAddress, str] | None = None
        self.on_look: Callable[[GroupStatus], None] = lambda group: None
        """Called regularly with the state of the group, after the role was adapted to it."""

    def start(self) -> None:
        """Follow the lease from now on."""
        loop = asyncio.get_running_loop()

        def tell() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._changed.set)

        self._keeper.on_change = tell
        self._changed.set()
        self._task = loop.create_task(self._run())

    async def stop(self) -> None:
        """Leave the role as it is. A change in progress is finished first."""
        self._is_stopping = True
        self._changed.set()
        if self._task is not None:
            await self._task

    @property
    def older_master(self) -> str:
        """The reason why nothing is removed that the master lacks; empty if there is none."""
        return self._older[1] if self._older is not None else ""

    async def _run(self) -> None:
        while not self._is_stopping:
            self._changed.clear()
            await self._looking.run()
            if self._looking.is_failing:
                pause_s, self._retry_s = self._retry_s, min(2 * self._retry_s, RETRY_MAX_S)
            else:
                pause_s, self._retry_s = POLL_S, RETRY_S
            await woken(self._changed, pause_s)

    async def _look(self) -> None:
        self._keeper.beat()
        await self._adapt(self._keeper.status)

    async def _adapt(self, group: GroupStatus) -> None:
        """React to the state of the group."""
        broker = self._broker
        if broker.role is BrokerRole.SLAVE and group.epoch and not group.fenced_s:
            await self._promote(group)
        elif broker.role is not BrokerRole.SLAVE and self._is_deposed(group):
            await broker.become(BrokerRole.SLAVE, self._member)
            holder = self._keeper.status.holder
            if holder is not None and holder.member != self._member:
                _log.warning("this broker is now a replica of %s", holder.address)
            else:
                _log.warning("this broker is now a replica, because no member holds the lease")
        if broker.role is BrokerRole.SLAVE:
            await self._follow(self._keeper.status)
        self.on_look(self._keeper.status)

    def _is_deposed(self, group: GroupStatus) -> bool:
        """Whether a master has to step down.

        One that cannot reach the engine waits for the time of a lease: it acknowledges nothing, and
        continues if its lease is renewed or won again.
        """
        if group.epoch:
            return group.fenced_s > self._lease_s
        return group.holder is not None or bool(group.obstacle)

    async def _promote(self, group: GroupStatus) -> None:
        self._older = None
        number, last = group.log_epoch, self._broker.epochs.number
        if number <= last:  # a promotion that failed has begun it
            number = next_epoch(self._member, last)
        _log.info(
            "this broker holds lease %d and becomes the master; epoch %d of the log begins",
            group.epoch,
            number,
        )
        try:
            await self._broker.become(self._master_role, MASTER_ID, epoch=number)
        except BaseException:
            await asyncio.to_thread(self._keeper.resign, self._lease_s)
            raise

    async def _follow(self, group: GroupStatus) -> None:
        """Follow the holder of the lease, after a rewind if the logs differ."""
        replica, holder = self._broker.replica, group.holder
        if replica is None:
            return
        if holder is None or holder.member == self._member or not group.is_member:
            replica.follow_elected(None)
            self._older = None
            return
        master = MasterAddress(holder.address, holder.ha_address)
        replica.follow_elected(master)
        status = replica.follower.status
        if self._older is not None and (
            self._older[0] != master or status.state is FollowerState.FOLLOWING
        ):
            self._older = None
        if status.master == master and replica.follower.is_different:
            try:
                await self._broker.rewind(master, keep_confirmed=not group.memory.may_truncate)
            except OlderMasterError as error:
                older = OlderMasterError(_left_out(master)) if group.memory.was_excluded else error
                self._older = master, str(older)
                raise older from None
