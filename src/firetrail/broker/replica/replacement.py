"""The replacement of a member of a group: its number is free for an empty store afterwards.

The group must not count on the member meanwhile. A member of the in-sync set can be elected, and
one with an empty store would remove everything. So the member leaves the set first: it is stopped,
and the master removes it. Only then the store is moved aside, and its identity is forgotten.
"""

from datetime import UTC, datetime
from pathlib import Path

from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.replica.group_coordinator import group_coordinator
from firetrail.errors import ConfigError, ElectionError
from firetrail.replication.group.etcd import EtcdCoordinator
from firetrail.replication.group.group_view import GroupView, InSyncSet
from firetrail.system import System

LEASES_MAX = 3
"""The number of leases to wait until the master removes a member, after the time that a member may
lag: one to elect a master, if the member was the master, and one in case of another failure."""
POLL_S = 1.0
"""The time to wait for a change of the group before the clock is checked again."""


class Replacement:
    """The replacement of one member. Its broker must not run after :meth:`check`."""

    def __init__(self, system: System, config: BrokerConfig, store: Path) -> None:
        """Initialize; nothing is changed yet.

        Args:
            system: Files and clock.
            config: The settings of the member.
            store: The folder of its store.

        Raises:
            ConfigError: The settings are not those of a member of a group.
        """
        if not config.etcd_servers:
            raise ConfigError("etcd_endpoints", "", "is missing: the broker is in no group")
        self._system = system
        self._config = config
        self._store = store
        self._coordinator: EtcdCoordinator = group_coordinator(config, system)

    def check(self) -> None:
        """Check that the group can do without the member.

        Raises:
            ElectionError: It cannot, or etcd has no group.
            NotReachedError: etcd cannot be reached.
        """
        if self._in_sync(self._look()).members == {self._config.ha_member}:
            raise ElectionError(
                f"member {self._config.ha_member} is the only one of its group that has everything "
                "that was acknowledged, so replacing it would lose messages; start another member, "
                "and wait until it is in sync"
            )

    def run(self) -> Path | None:
        """Free the number of the member; return where its store is now, None if it had none.

        If this is interrupted, run it again.

        Raises:
            ElectionError: The group still counts on the member.
            NotReachedError: etcd cannot be reached.
            OSError: The store cannot be moved.
        """
        member = self._config.ha_member
        in_sync = self._until_left()
        kept = self._set_aside()
        while not self._coordinator.release(member, in_sync):
            in_sync = self._until_left()
        return kept

    def close(self) -> None:
        """Close the connections to etcd."""
        self._coordinator.close()

    def _look(self, known: int = 0, timeout_s: float = 0.0) -> GroupView:
        return self._coordinator.watch(known, timeout_s)

    def _in_sync(self, view: GroupView) -> InSyncSet:
        if view.in_sync is None:
            raise ElectionError(
                f"etcd has no group {self._config.name} of cluster {self._config.cluster}; start "
                "the member that is configured as master"
            )
        return view.in_sync

    def _until_left(self) -> InSyncSet:
        config, clock = self._config, self._system.clock
        limit_s = config.ha_lag_ms / 1000 + LEASES_MAX * config.ha_lease_s
        over_at = clock.monotonic() + limit_s
        view = self._look()
        while config.ha_member in self._in_sync(view).members:
            if clock.monotonic() > over_at:
                members = ", ".join(map(str, sorted(self._in_sync(view).members)))
                raise ElectionError(
                    f"the group still counts on member {config.ha_member} after {limit_s:g} s: its "
                    f"in-sync set is {members}. Nothing was changed. The set does not get smaller "
                    "than inSyncReplicas (2): start the other members, add one, or set "
                    "enableAutoInSyncReplicas=true"
                )
            view = self._look(view.revision, POLL_S)
        return self._in_sync(view)

    def _set_aside(self) -> Path | None:
        if not self._store.exists():
            return None
        now = datetime.fromtimestamp(self._system.clock.now_ms() / 1000, UTC)
        aside = self._store.with_name(f"{self._store.name}-replaced-{now:%Y%m%d-%H%M%S}")
        self._system.files.rename(self._store, aside)
        return aside
