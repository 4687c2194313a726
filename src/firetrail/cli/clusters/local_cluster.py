"""The folder of a cluster on one machine: a ``broker.conf`` and a store per member.

The settings of the members say everything about the cluster, so nothing else is kept::

    FOLDER/member-1/broker.conf   the settings of member 1; the other members have the same files
    FOLDER/member-1/store/        its store
    FOLDER/member-1/broker.log    its log
    FOLDER/member-1/held          while a process has locked this file, the member is not started
    FOLDER/etcd/, FOLDER/etcd.log
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from firetrail.broker.broker_conf_file import LoadedBroker, load_entries
from firetrail.cli.replication.member_states import GroupStates, MemberView
from firetrail.cli.servers import server_command
from firetrail.errors import ConfigError, NoSuchError, NotReachedError
from firetrail.remoting.connections.remoting_client import split_address
from firetrail.remoting.messages.replica_bodies import ReplicaStatus
from firetrail.replication.group.group_memory import NOTHING_SEEN, MemberFile
from firetrail.store.root.folder import lock_owner
from firetrail.store.settings.store_config import BrokerRole
from firetrail.system import SYSTEM

HOST = "127.0.0.1"
MEMBER, CONF, STORE, LOG, HELD = "member-", "broker.conf", "store", "broker.log", "held"
ETCD, ETCD_LOG = "etcd", "etcd.log"
PORT_STEP = 10
"""The distance between the ports of two members. A broker has two more ports near its own."""
_CONF = """\
# Member {number} of a group on one machine. Stop the cluster before you change this file.
brokerRole={role}
brokerId={broker_id}
ha_member={number}
listenPort={port}
namesrvAddr={namesrv}
etcd_endpoints={etcd}
"""


@dataclass(frozen=True, slots=True)
class ClusterPorts:
    """The ports of a new cluster.

    Attributes:
        first: The port of member 1.
        name_server: The port of the name server.
        etcd: The port of etcd for clients.
    """

    first: int
    name_server: int
    etcd: int


class LocalMember:
    """One member of a cluster on this machine."""

    def __init__(self, folder: Path) -> None:
        """Refer to a member."""
        self.folder = folder
        self.conf, self.store, self.log = folder / CONF, folder / STORE, folder / LOG
        self.held = folder / HELD

    @cached_property
    def settings(self) -> LoadedBroker:
        """Its settings.

        Raises:
            ConfigError: The file is not valid, or does not belong to a member of a group.
            OSError: It cannot be read.
        """
        loaded = load_entries(server_command.read_conf(self.conf))
        config = loaded.broker
        for key, value in (
            ("ha_member", config.ha_member),
            ("etcd_endpoints", config.etcd_servers),
        ):
            if not value:
                raise ConfigError(key, "", f"is missing in {self.conf}, the settings of a member")
        return loaded

    @property
    def number(self) -> int:
        """Its number in the group."""
        return self.settings.broker.ha_member

    @property
    def address(self) -> str:
        """``ip:port`` of its broker."""
        return f"{HOST}:{self.settings.store.store_host.port}"

    @property
    def process(self) -> int | None:
        """The process that has its store open; None if there is none."""
        return lock_owner(SYSTEM, self.store) if self.store.is_dir() else None

    @property
    def replacer(self) -> int | None:
        """The other process that replaces the member; None if there is none."""
        try:
            descriptor = SYSTEM.files.open(self.held, writable=False)
        except FileNotFoundError:
            return None
        try:
            return SYSTEM.files.lock_owner(descriptor)
        finally:
            SYSTEM.files.close(descriptor)

    def answers(self, status: ReplicaStatus) -> bool:
        """Return whether an answer from its address can be its own.

        Another cluster may use the same ports. The store is closed for a moment during a change of
        the role, so its process decides only if the member has never been in a group.
        """
        running_group = status.group.seen.group if status.group and status.group.seen else ""
        memory = MemberFile(SYSTEM, self.store).memory if self.store.is_dir() else NOTHING_SEEN
        if memory is None or not running_group:
            return True
        return running_group == memory.group if memory.group else self.process is not None


class LocalCluster:
    """A cluster in a folder of this machine.

    Attributes:
        folder: The folder.
        members: The members, by number.
    """

    def __init__(self, folder: Path) -> None:
        """Read the settings of the members.

        Args:
            folder: The folder of the cluster.

        Raises:
            NoSuchError: There is no cluster in the folder.
            ConfigError: The settings of a member are not valid.
        """
        self.folder = folder
        found = [LocalMember(conf.parent) for conf in folder.glob(f"{MEMBER}*/{CONF}")]
        if not found:
            raise NoSuchError(
                f"{folder}: there is no cluster; 'firetrail cluster up {folder}' creates one"
            )
        self.members = {member.number: member for member in sorted(found, key=lambda m: m.number)}

    @property
    def name_server(self) -> str:
        """``ip:port`` of the name server."""
        return self._common("namesrvAddr", lambda member: member.settings.broker.namesrv)

    @property
    def etcd(self) -> str:
        """``ip:port`` of etcd."""
        return self._common("etcd_endpoints", lambda member: member.settings.broker.etcd_endpoints)

    def member(self, number: int) -> LocalMember:
        """Return a member; raise NoSuchError if there is none with this number."""
        if number not in self.members:
            raise NoSuchError(
                f"{self.folder}: no member {number}; the cluster has the members "
                f"{', '.join(map(str, self.members))}"
            )
        return self.members[number]

    def check_answers(self, states: GroupStates) -> None:
        """Check that the members themselves have answered.

        Raises:
            NotReachedError: The broker of another cluster listens at the address of a member.
        """
        for view in states.members:
            member = self.members.get(view.number)
            if view.status is not None and member is not None and not member.answers(view.status):
                raise NotReachedError(
                    f"{self.folder}: member {view.number} does not run; the broker at "
                    f"{view.address} belongs to another cluster, which uses the same ports"
                )

    def with_replacements(self, states: GroupStates) -> GroupStates:
        """Return the states, in which a member that is being replaced says so."""
        return GroupStates(tuple(map(self._with_replacement, states.members)))

    def _with_replacement(self, view: MemberView) -> MemberView:
        member = self.members.get(view.number)
        replacer = member.replacer if member is not None and view.status is None else None
        if replacer is None:
            return view
        reason = f"'firetrail cluster replace' (process {replacer}) replaces it; wait for its end"
        return replace(view, reason=reason)

    def _common(self, key: str, value_of: Callable[[LocalMember], str]) -> str:
        """Return a setting that all members must have in common: the address of one server."""
        values = {value_of(member) for member in self.members.values()}
        if len(values) != 1:
            raise ConfigError(key, " and ".join(sorted(values)), "must be the same for all members")
        (value,) = values
        split_address(value)
        return value


def create_cluster(folder: Path, members: int, ports: ClusterPorts) -> LocalCluster:
    """Write the settings of a new cluster, and return it.

    Args:
        folder: Its folder; created if missing.
        members: The number of members that it has.
        ports: Its ports.

    Raises:
        OSError: A file cannot be written.
    """
    files = SYSTEM.files
    for number in range(1, members + 1):
        is_first = number == 1
        content = _CONF.format(
            number=number,
            role=(BrokerRole.SYNC_MASTER if is_first else BrokerRole.SLAVE).value,
            broker_id=0 if is_first else number,
            port=ports.first + PORT_STEP * (number - 1),
            namesrv=f"{HOST}:{ports.name_server}",
            etcd=f"{HOST}:{ports.etcd}",
        )
        files.make_folder(folder / f"{MEMBER}{number}")
        files.replace(folder / f"{MEMBER}{number}" / CONF, content.encode())
    return LocalCluster(folder)
