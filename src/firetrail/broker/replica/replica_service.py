"""The service of a slave: it finds its master, and follows its log and its tables."""

import asyncio
import logging
from collections.abc import Callable

from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.broker_parts import Environment, Parts
from firetrail.broker.replica.slave_synchronize import SlaveSynchronize
from firetrail.broker.replica.user_synchronize import UserSynchronize
from firetrail.broker.services.registered_masters import RegisteredMaster
from firetrail.broker.state.slave_mark import full_name
from firetrail.pace.periodic import repeat, woken
from firetrail.pace.reminders import Reminders
from firetrail.remoting.connections.access import Access
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.replication.group.group_memory import member_identity
from firetrail.replication.replica.follower import Follower, FollowerSettings
from firetrail.replication.replica.follower_status import FollowerState
from firetrail.replication.replica.master_check import MasterAddress

UNHEARD_HEARTBEATS, UNHEARD_PART = 1.5, 3 / 8
"""A replica reports that it does not follow when its master has been silent for this number of
heartbeat intervals, and for this part of the time after which it reconnects. The second is for a
master that is configured with longer pauses between its heartbeats."""
SETTLING_S = 0.1
"""Pause before the next look at a follower that has not checked its master yet."""

_log = logging.getLogger(__name__)


class ReplicaService:
    """Follows the master of a slave.

    The master is the one that is configured, or else the one that name servers name. Another one is
    followed as soon as it is known. Its tables are copied once its log is known to continue the log
    of this slave: the tables of a wrong master would replace good ones.

    Attributes:
        follower: Copies the log.
        tables: Copies topics, groups, offsets and other tables.
        users: Compares the users; None without access control.
    """

    def __init__(self, env: Environment, parts: Parts) -> None:
        self._live = live = env.live
        self._mark = env.slave_mark
        self._keeper = env.keeper
        self._registration = parts.registration
        self._client = RemotingClient(access=env.client_access)
        config = live.current
        notes, self._name = env.slave_mark.notes, full_name(config)
        self.follower = Follower(
            parts.state.store.log_copy(),
            env.epochs,
            self._client,
            env.system,
            FollowerSettings(
                config.ha_heartbeat_ms / 1000,
                config.ha_silence_ms / 1000,
                names=(config.cluster, config.name),
                member=config.ha_member if config.etcd_servers else 0,
                identity=member_identity(env.system, env.folder),
                copy_of=notes.log_of if notes.log_of != self._name else "",
                access=_access(env),
                unheard_s=_unheard_s(config),
            ),
            notes.diverged,
        )
        self.follower.on_compared = self._compared
        # A slave that is registered may be read from while its master is down.
        self._registration.is_withheld = not notes.is_copy_of(self._name)
        self.tables = SlaveSynchronize(self._client, parts, env.system.clock, env.epochs)
        self.users: UserSynchronize | None = None
        if env.users is not None:
            self.users = UserSynchronize(self._client, env.users, env.system.clock)
        self._task: asyncio.Task[None] | None = None
        self._is_due = asyncio.Event()  # another master was found
        self._elected: MasterAddress | None = None
        self._reminders = Reminders(env.system.clock.monotonic)
        self._is_known = False  # whether the last comparison found the log to be the master's
        self._on_known: Callable[[], None] | None = None

    @property
    def master(self) -> MasterAddress | None:
        """The master to follow; None if it is not known yet."""
        config, found = self._live.current, self._registration.masters.known
        if config.etcd_servers:
            return self._elected
        if config.master_address:
            return MasterAddress(config.master_address, config.ha_master_address)
        if found is None:
            return None
        return MasterAddress(found.address, config.ha_master_address or found.ha_address)

    @property
    def is_caught_up(self) -> bool:
        """Whether log and tables are as far as the master's were when they were last seen."""
        status = self.follower.status
        return self.is_checked and status.lag == 0 and self.tables.status.copied_at_ms > 0

    def start(self) -> None:
        """Start following."""
        config = self._live.current
        if config.ha_master_address and not (config.master_address or config.name_servers):
            _log.warning(
                "haMasterAddress=%s is not enough to follow a master: its broker has to be asked "
                "before; set namesrvAddr, or master_address to the address of the master's broker",
                config.ha_master_address,
            )
        self._registration.masters.on_change = self._found
        self.follower.start()
        self.follower.follow(self.master)
        self._task = asyncio.get_running_loop().create_task(
            repeat(self._step, "the tables of the master cannot be followed now; will retry", _log)
        )

    async def stop(self) -> None:
        """Leave the master."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.follower.stop()
        await self._client.close()

    def follow_elected(self, master: MasterAddress | None) -> None:
        """Follow the master that the group has elected; None if it has none now."""
        if master != self._elected:
            self._elected = master
            self._found()

    def expect(self, master: str) -> None:
        """Follow a broker that is about to become the master, unless a master is known already.

        Args:
            master: ``ip:port`` of the broker.
        """
        if self.master is None:
            self._registration.masters.known = RegisteredMaster(master, "")
            self._found()

    def _found(self, _: RegisteredMaster | None = None) -> None:
        """Leave the previous master at once, and copy the tables of the new one soon."""
        self.follower.follow(self.master)
        self._is_due.set()

    @property
    def is_checked(self) -> bool:
        """Whether the master's log continues this slave's, or both are empty."""
        status = self.follower.status
        return status.state is FollowerState.FOLLOWING or (
            status.state is FollowerState.WAITING and status.master_max == 0
        )

    def when_known(self, action: Callable[[], None]) -> None:
        """Call ``action`` once a comparison in this term has found the log to be the master's."""
        if self._is_known:
            action()
        else:
            self._on_known = action

    async def trust(self) -> None:
        """Serve this log, which is known to be the master's without a comparison.

        A master that has handed over has the same log as its successor.
        """
        if not self.follower.divergence:
            await self._compared("")

    async def _compared(self, divergence: str) -> None:
        """Keep the outcome of a comparison, and let consumers find only a log that is the master's.

        A consumer of another log would read messages that its group must not get, and skip those of
        the master that have the same numbers.
        """
        try:
            self._mark.learn_comparison(self._name, divergence)
            self._is_known = not divergence
            if self._is_known and self._keeper is not None:
                self._keeper.followed()
            if self._is_known and self._on_known is not None:
                self._on_known()
                self._on_known = None
        except OSError as error:
            _log.warning(
                "the result of the comparison with the master's log could not be saved: %s", error
            )
        if divergence:
            await self._registration.withhold()
        else:
            await self._registration.release()

    async def _step(self) -> float:
        self._is_due.clear()
        master = self.master
        if self.follower.status.state is FollowerState.CHECKING:
            return SETTLING_S
        if master is not None and self.is_checked:
            await self._copy_tables(master.broker)
        await woken(self._is_due, self._live.current.sync_interval_ms / 1000)
        is_settled = self._live.current.master_address or self.is_checked
        self._registration.look_for_master(ask=not is_settled)
        return 0.0

    async def _copy_tables(self, master: str) -> None:
        try:
            follower = self.follower
            self._mark.learn_role(follower.master_role, has_controller=follower.has_controller)
            await self.tables.copy(master)
            if self.users is not None:
                await self.users.copy(master)
        except OSError as error:  # such as a full disk
            if self._reminders.is_due(str(error)):
                _log.warning("the tables of master %s cannot be saved: %s", master, error)
        except Exception:
            _log.exception("the tables of master %s cannot be copied; will retry", master)


def _unheard_s(config: BrokerConfig) -> float:
    heartbeats_ms = UNHEARD_HEARTBEATS * config.ha_heartbeat_ms
    return max(heartbeats_ms, UNHEARD_PART * config.ha_silence_ms) / 1000


def _access(env: Environment) -> Access | None:
    """Return the credentials and the TLS for the HA port; None for neither, as in Java."""
    if env.live.current.ha_java_peers:
        return None
    return env.client_access or Access.from_environment()
