"""The broker as the tools of replication see it: its role, its log and its master."""

from typing import Protocol

from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.replica.epoch_fence import EpochFence
from firetrail.broker.replica.replica_service import ReplicaService
from firetrail.broker.replica.saved_role import RoleFile
from firetrail.broker.state.slave_mark import SlaveMark
from firetrail.remoting.connections.access import Access
from firetrail.remoting.messages.replica_bodies import (
    EpochEntry,
    EpochEntryCache,
    FollowerReport,
    GroupReport,
    HandOverReport,
    ReplicaStatus,
    SeenReport,
)
from firetrail.replication.group.group_check import Refusal, StateConflict
from firetrail.replication.group.group_status import GroupStatus
from firetrail.replication.log.epochs import EpochFile
from firetrail.store.broker_store import BrokerStore
from firetrail.store.settings.store_config import BrokerRole
from firetrail.text import counted


class ReplicatedBroker(Protocol):
    """A broker whose role can change."""

    @property
    def address(self) -> str:
        """``ip:port`` of the broker."""

    @property
    def config(self) -> BrokerConfig:
        """The settings in force."""

    @property
    def client_access(self) -> Access | None:
        """Credentials and TLS of the broker's own requests."""

    @property
    def namesrv(self) -> str:
        """``ip:port`` of the name server in the same process; empty without one."""

    @property
    def broker_store(self) -> BrokerStore:
        """The store; closed during a change of role."""

    @property
    def replica(self) -> ReplicaService | None:
        """The service that follows the master; None if this broker is a master."""

    @property
    def epoch_fence(self) -> EpochFence | None:
        """The fence that knows of newer masters; None if this broker is a slave."""

    @property
    def epochs(self) -> EpochFile:
        """The epochs of the log."""

    @property
    def slave_mark(self) -> SlaveMark:
        """The store's notes about the broker's time as a slave."""

    @property
    def group(self) -> GroupStatus | None:
        """The state of the group; None if the role of the broker is fixed."""

    @property
    def registered_epoch(self) -> int:
        """The largest epoch number with which a master has registered; 0 if it is not known."""

    @property
    def roles(self) -> RoleFile:
        """The file that keeps the role over a restart."""

    async def become(
        self, role: BrokerRole, broker_id: int, *, epoch: int = 0, master_address: str = ""
    ) -> None:
        """Change the role."""


def newest_epoch(broker: ReplicatedBroker) -> int:
    """Return the largest epoch number that a broker knows; 0 if it knows none."""
    heard = broker.epoch_fence.newest if broker.epoch_fence is not None else 0
    noted = max(broker.roles.known_epoch, broker.slave_mark.notes.known_epoch)
    return max(heard, broker.registered_epoch, broker.epochs.number, noted)


def replica_status(
    broker: ReplicatedBroker, step: str, error: str, hand_over: HandOverReport | None
) -> ReplicaStatus:
    """Return the status of a broker.

    Args:
        broker: The broker.
        step: The present step of a change of its role; empty if there is none.
        error: The reason why the last change failed; empty if it did not.
        hand_over: A hand-over that is not finished; None if there is none.
    """
    store, group = broker.broker_store, broker.group
    first, end = store.embedded.log_range
    epoch = broker.epochs.last
    return ReplicaStatus(
        address=broker.address,
        cluster_name=broker.config.cluster,
        broker_name=broker.config.name,
        broker_id=broker.config.broker_id,
        role=store.config.role.value,
        epoch=epoch.number if epoch is not None else 0,
        min_offset=first,
        max_offset=end,
        refusal="" if broker.replica is not None else store.writer.refusal,
        step=step,
        step_error=error,
        follower=_follower_report(broker.replica) if broker.replica is not None else None,
        group=_group_report(group, broker.config.ha_member) if group is not None else None,
        hand_over=hand_over,
        name_servers=[*filter(None, [broker.namesrv]), *broker.config.name_servers_as_master],
        unconfirmed=_why_unconfirmed(store),
        epoch_start_offset=epoch.start_offset if epoch is not None else -1,
        damaged_records=len(store.damage),
        confirmed_offset=store.log.confirmed_end if store.log.is_confirmed_end_known else -1,
    )


def _why_unconfirmed(store: BrokerStore) -> str:
    """Return why the store does not confirm messages now; empty if it does."""
    acks, end = store.replica_acks, store.log.max_offset
    if store.config.role is not BrokerRole.SYNC_MASTER:
        return ""
    if acks.missing:
        return f"the members {acks.missing} of the in-sync set are not connected"
    if acks.are_enough(end):
        return _why_overdue(store)
    return too_few_copies(acks.in_sync(end), acks.needed)


def _why_overdue(store: BrokerStore) -> str:
    """Return that connected replicas take longer than a put waits for them; empty if they do not.

    A replica whose process is stopped, or whose network is down, stays connected for a while.
    """
    waited_ms = store.log.unconfirmed_ms
    if waited_ms <= store.config.slave_timeout_ms:
        return ""
    return (
        f"replicas are connected, but have not confirmed what was stored {waited_ms / 1000:.0f} s "
        f"ago (slaveTimeout is {store.config.slave_timeout_ms / 1000:g} s)"
    )


def too_few_copies(replicas: int, needed: int) -> str:
    """Return why messages are not confirmed that have fewer copies than ``inSyncReplicas``."""
    connected = counted(replicas, "replica") if replicas else "no replica"
    return f"{connected} in sync, but {needed} copies are required, the master's own included"


def _group_report(group: GroupStatus, number: int) -> GroupReport:
    holder, memory, older_master = group.holder, group.memory, group.older_master
    refusal = group.refusal
    if older_master and memory.was_excluded:  # the master is not older: it was preferred
        refusal, older_master = Refusal(StateConflict.DECIDED_WITHOUT, older_master), ""
    return GroupReport(
        holder=holder.address if holder is not None else "",
        member=holder.member if holder is not None else 0,
        epoch=holder.epoch if holder is not None else 0,
        in_sync=sorted(group.in_sync),
        obstacle=group.obstacle,
        error=group.error,
        number=number,
        doubt=refusal.doubt.value if refusal is not None else "",
        refusal=refusal.reason if refusal is not None else "",
        seen=SeenReport(
            group=memory.group,
            version=memory.version,
            version_id=memory.last_id,
            epoch=memory.epoch,
            in_sync=memory.in_sync,
            members=memory.members,
            history=memory.history,
            overruled=memory.overruled,
        ),
        is_member=not group.is_foreign,
        addresses=dict(group.addresses),
        older_master=older_master,
        problem=group.problem.value,
        older_log=group.older_log,
    )


def _follower_report(replica: ReplicaService) -> FollowerReport:
    status, tables = replica.follower.status, replica.tables.status
    return FollowerReport(
        state=status.state.value,
        master_address=status.master.broker if status.master is not None else "",
        master_max_offset=status.master_max,
        lag=status.lag,
        error=status.error,
        since_timestamp=status.since_ms,
        received_timestamp=status.read_at_ms,
        tables_timestamp=tables.copied_at_ms,
        table_errors=dict(tables.failures),
        master_min_offset=status.master_min,
        missing=status.missing,
    )


def epoch_entries(broker: ReplicatedBroker) -> EpochEntryCache:
    """Return the epochs of a broker's log with their ends."""
    epochs, end = broker.epochs.epochs, broker.broker_store.log.max_offset
    ends = [*(epoch.start_offset for epoch in epochs[1:]), end]
    return EpochEntryCache(
        broker.config.cluster,
        broker.config.name,
        broker.config.broker_id,
        [EpochEntry(*epoch, at) for epoch, at in zip(epochs, ends, strict=False)],
        end,
    )
