"""Automatic failover: the role of a broker follows the lease of its group.

The broker starts as a slave. When it holds the lease it becomes the master. When another member
holds it, the broker is a slave and follows that member; messages that only this broker has are
removed first, and a copy of them is kept.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from firetrail.broker.config import BrokerConfig
from firetrail.broker.replica.replica_service import ReplicaService
from firetrail.errors import FiretrailError
from firetrail.pace.reminders import Reminders
from firetrail.remoting.access import Access, secret_content
from firetrail.remoting.bodies import MASTER_ID
from firetrail.remoting.client import RemotingClient
from firetrail.replication.election import LeaseTiming
from firetrail.replication.epochs import NUMBER_MAX, EpochFile
from firetrail.replication.etcd import EtcdCoordinator
from firetrail.replication.etcd_gateway import EtcdAccess
from firetrail.replication.lease_keeper import GroupMember, GroupStatus, LeaseKeeper
from firetrail.replication.master_check import Master, MasterAddress
from firetrail.replication.rewind import rewind
from firetrail.store.config import BrokerRole
from firetrail.system import System

LOOK_S = 0.5
"""Pause between two looks at a replica whose log may differ from the master's."""
RETRY_S, RETRY_MAX_S = 5.0, 60.0
"""Pause after a change of role, or a rewind, that failed. It doubles up to the longest one."""
ETCD_PART = 5
"""A request to etcd may take this part (one fifth) of the lease's time."""
ETCD_S = 2.0
"""The longest time that a request to etcd may take."""

_log = logging.getLogger(__name__)


class Switchable(Protocol):
    """The broker, as its failover sees it."""

    @property
    def role(self) -> BrokerRole:
        """The current role."""

    @property
    def replica(self) -> ReplicaService | None:
        """What follows the master, while the broker is a slave."""

    @property
    def epochs(self) -> EpochFile:
        """Which master wrote which part of the log."""

    async def become(self, role: BrokerRole, broker_id: int, *, epoch: int = 0) -> None:
        """Change the role; a new master begins an epoch."""

    async def rewind(self, master: MasterAddress) -> None:
        """Remove what a master does not have, while the broker is a slave."""


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
        ConfigError: A setting for etcd is not valid, or the file with the password cannot be read,
            or others can read it.
    """
    password = ""
    if config.etcd_password_file:
        password = secret_content("etcd_password_file", config.etcd_password_file).strip()
    access = EtcdAccess(
        tuple(config.etcd_servers),
        min(ETCD_S, config.ha_lease_s / ETCD_PART),
        config.etcd_user,
        password,
        config.etcd_ca_file,
        config.etcd_cert_file,
    )
    prefix = f"{config.etcd_prefix}/{config.cluster}/{config.name}"
    lag_s = config.ha_lag_ms / 1000
    return LeaseKeeper(
        EtcdCoordinator(access, prefix, config.ha_lease_s, system.clock),
        GroupMember(config.ha_member, address, config.ha_address, may_found, lag_s),
        LeaseTiming(config.ha_lease_s),
        system,
    )


async def rewind_store(
    system: System, folder: Path, master: MasterAddress, access: Access | None = None
) -> None:
    """Remove the messages of a closed store that a master does not have; keep a copy of them.

    Args:
        system: Files and clock.
        folder: The folder of the store.
        master: The master.
        access: Credentials and TLS. Default: those in the environment.

    Raises:
        FiretrailError: The master cannot be asked, the logs have nothing in common, or the store
            cannot be cut.
        OSError: A file cannot be written.
    """
    client = RemotingClient(access=access)
    try:
        done = await rewind(system, folder, Master(client, master))
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


class Failover:
    """Changes the role of a broker."""

    def __init__(
        self, keeper: LeaseKeeper, broker: Switchable, master_role: BrokerRole, config: BrokerConfig
    ) -> None:
        """Prepare.

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
        self._reminders = Reminders(asyncio.get_running_loop().time)
        self._is_stopping = False
        self._task: asyncio.Task[None] | None = None

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

    async def _run(self) -> None:
        while not self._is_stopping:
            self._changed.clear()
            self._keeper.beat()
            try:
                await self._adapt(self._keeper.status)
                pause_s, self._retry_s = LOOK_S, RETRY_S
                self._reminders.forget()
            except Exception as error:
                is_known = isinstance(error, FiretrailError)
                if not is_known or self._reminders.is_due(str(error)):
                    _log.warning(
                        "the role of this broker cannot be changed: %s; will retry",
                        str(error) or type(error).__name__,
                        exc_info=not is_known,
                    )
                pause_s, self._retry_s = self._retry_s, min(2 * self._retry_s, RETRY_MAX_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()

    async def _adapt(self, group: GroupStatus) -> None:
        """Do what follows from the state of the group."""
        broker = self._broker
        if broker.role is BrokerRole.SLAVE and group.epoch and not group.fenced_s:
            await self._promote(group.epoch)
        elif broker.role is not BrokerRole.SLAVE and self._is_deposed(group):
            await broker.become(BrokerRole.SLAVE, self._member)
            if group.holder is not None:
                _log.warning("this broker is now a replica of %s", group.holder.address)
            else:
                _log.warning("this broker is now a replica, because no member holds the lease")
        if broker.role is BrokerRole.SLAVE:
            await self._follow(self._keeper.status)

    def _is_deposed(self, group: GroupStatus) -> bool:
        """Whether a master has to step down.

        One that cannot reach the engine waits for the time of a lease: it acknowledges nothing, and
        continues if its lease is renewed or won again.
        """
        if group.epoch:
            return group.fenced_s > self._lease_s
        return group.holder is not None or bool(group.obstacle)

    async def _promote(self, epoch: int) -> None:
        number = max(epoch if epoch <= NUMBER_MAX else 0, self._broker.epochs.number + 1)
        _log.info(
            "this broker holds lease %d and becomes the master; epoch %d of the log begins",
            epoch,
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
            return
        master = MasterAddress(holder.address, holder.ha_address)
        replica.follow_elected(master)
        if replica.follower.status.master == master and replica.follower.is_different:
            await self._broker.rewind(master)
