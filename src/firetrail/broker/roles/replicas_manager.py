"""The manager of a broker's role, at its start and while it runs.

With etcd servers in the settings, the role follows the lease of the broker's group. Otherwise it is
the role in the settings, until an administrator changes it; a file keeps the change over a restart.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.replica.group_recovery import GroupRecovery
from firetrail.broker.replica.hand_over.group_hand_over import FrozenBroker, GroupHandOver
from firetrail.broker.replica.hand_over.succession import Succession
from firetrail.broker.replica.saved_role import RoleFile
from firetrail.broker.roles.failover import Failover, Switchable, lease_keeper
from firetrail.broker.roles.promotion import Promotion
from firetrail.remoting.connections.handlers import Handler
from firetrail.replication.group.group_memory import MemberFile
from firetrail.replication.group.group_status import GroupStatus
from firetrail.replication.group.lease_keeper import LeaseKeeper
from firetrail.store.settings.store_config import BrokerRole, StoreConfig
from firetrail.system import System

_log = logging.getLogger(__name__)


class ManagedBroker(FrozenBroker, Switchable, Protocol):
    """A broker whose role commands and leases can change."""


class RoleSettings(NamedTuple):
    """The settings of a broker and its store, which include its role and its id."""

    broker: BrokerConfig
    store: StoreConfig


class ReplicasManager:
    """Decides on the role of a broker.

    Attributes:
        roles: The file that keeps a changed role over a restart.
        promotion: Changes the role by command.
        keeper: Keeps the lease of the group, after :meth:`begin`; None if the role is fixed.
    """

    def __init__(
        self, broker: ManagedBroker, system: System, folder: Path, role: BrokerRole
    ) -> None:
        """Initialize.

        Args:
            broker: The broker.
            system: Files and clock to use.
            folder: The folder of the store.
            role: The role in the settings.
        """
        self._broker = broker
        self._system = system
        self._folder = folder
        self._role = role
        self.roles = RoleFile(system, folder, role, broker.config.broker_id)
        self.promotion = Promotion(broker)
        self._recovery = GroupRecovery(broker)
        self.keeper: LeaseKeeper | None = None
        self._failover: Failover | None = None
        self._succession: Succession | None = None

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """The handlers of requests about the role, which serve in every role."""
        return {**self.promotion.handlers, **self._recovery.handlers}

    @property
    def group(self) -> GroupStatus | None:
        """The state of the group, after :meth:`begin`; None if the role is fixed."""
        if self.keeper is None or self._failover is None:
            return None
        return replace(self.keeper.status, older_master=self._failover.older_master)

    def begin(self, store: StoreConfig) -> RoleSettings:
        """Find out in which role the broker starts.

        The address of the broker must be known.

        Args:
            store: The settings of the store.

        Returns:
            The settings of the broker and its store, with the role and the id to start with.

        Raises:
            ConfigError: A setting for etcd is not valid.
            OSError: A file cannot be read.
        """
        config = self._broker.config
        return self._join_group(config, store) if config.etcd_servers else self._restored(store)

    def _join_group(self, config: BrokerConfig, store: StoreConfig) -> RoleSettings:
        """Return the settings of a slave, as which every member begins."""
        config = config.replace(broker_id=config.ha_member)
        is_founder = self._role is not BrokerRole.SLAVE
        keeper = lease_keeper(config, self._broker.address, self._system, may_found=is_founder)
        master_role = self._role if is_founder else BrokerRole.SYNC_MASTER
        if master_role is BrokerRole.ASYNC_MASTER:
            _log.warning(
                "member %d is an ASYNC_MASTER when it is elected: a failover then loses messages "
                "that it has acknowledged and no replica has; set brokerRole=SYNC_MASTER, unless "
                "that is wanted",
                config.ha_member,
            )
        self._failover = Failover(keeper, self._broker, master_role, config)
        self.promotion.group = GroupHandOver(self._broker, keeper)
        self._succession = Succession(self._broker, keeper, self.promotion.take_over)
        self._failover.on_look = self._succession.look
        self.keeper = self._recovery.keeper = keeper
        keeper.log_epoch = lambda: self._broker.epochs.number
        return RoleSettings(config, store.replace(role=BrokerRole.SLAVE))

    def _restored(self, store: StoreConfig) -> RoleSettings:
        """Return the settings with the role that the broker was given before it was stopped."""
        saved, config = self.roles.load(), self._broker.config
        if saved is None:
            return RoleSettings(config, store)
        if saved.is_changed:
            _log.warning(
                "this broker is %s with id %d since its role was changed; brokerRole and brokerId "
                "in its settings are still %s and %d",
                saved.role,
                saved.broker_id,
                store.role.value,
                config.broker_id,
            )
        restored = config.replace(
            broker_id=saved.broker_id, master_address=saved.master_address or config.master_address
        )
        return RoleSettings(restored, store.replace(role=BrokerRole(saved.role)))

    def opened(self) -> None:
        """Note that the store is open: another process could have had it open before.

        A member of a group begins to watch it.

        Raises:
            OSError: A file cannot be read or written.
            StoreError: The file of the member cannot be decoded.
        """
        if self.keeper is not None:
            file = MemberFile(self._system, self._folder)
            file.create()
            self.keeper.start(file)
        else:
            self.roles.discard_outdated()

    def start(self) -> None:
        """Change the role from now on, when the first term of the broker has started."""
        self.promotion.start()
        if self._failover is not None:
            self._failover.start()

    async def hold(self) -> None:
        """Leave the role as it is from now on. A change in progress is finished first.

        The master of a group lets another member take over before, if one is in sync, and a replica
        leaves the in-sync set. A member that has begun to take over finishes that first.
        """
        if self._succession is not None:
            await self._succession.settled(lambda: not self.promotion.step)
            await self._succession.stop()
        if self._failover is not None:
            await self._failover.stop()

    async def stop(self) -> None:
        """Give up a change by command that is waiting for another broker."""
        await self.promotion.stop()

    async def leave(self) -> None:
        """Leave the group, after the last term."""
        if self.keeper is not None:
            await asyncio.to_thread(self.keeper.stop)
