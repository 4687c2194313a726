"""The settings that a replica adopts from its master, and the search for the master."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Self

from firetrail.broker.broker_conf_file import load_entries
from firetrail.broker.broker_config import SETTINGS as BROKER_SETTINGS
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.broker_config_groups import ADDRESSES
from firetrail.errors import (
    FiretrailError,
    NoSuchError,
    NotReachedError,
    ReplicationError,
    RequestError,
)
from firetrail.format.files.java_properties import Entry
from firetrail.remoting.connections.access import Access
from firetrail.remoting.connections.remoting_client import RemotingClient, split_address
from firetrail.remoting.messages.bodies import ClusterInfo
from firetrail.remoting.messages.replica_bodies import is_slave_role
from firetrail.remoting.messages.typed_body import Body
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.replication.ha.ha_probe import is_ha_port
from firetrail.replication.replica.master_check import Master, MasterAddress
from firetrail.settings.conf_file import Remark
from firetrail.settings.config_file import ConfigFile
from firetrail.store.settings.store_config import SETTINGS as STORE_SETTINGS
from firetrail.store.settings.store_config import BrokerRole, StoreConfig
from firetrail.system import System
from firetrail.text import did_you_mean

ADOPTED = (
    *("brokerClusterName", "brokerName"),
    *("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum"),
    *("maxMessageSize", "messageDelayLevel", "enableLmq", "fileReservedTime"),
)
"""Keys of ``broker.conf`` whose values should be the same on a master and its replicas."""
ROLE_KEYS = ("brokerRole", "brokerId")
"""Keys that would contradict the command that starts a replica."""
NAME_SERVERS = "namesrvAddr"
FIRST_SLAVE_ID = 1
ADOPTED_JSON = "firetrailReplica.json"
PRECEDING_S = 1.0
"""The time that a broker on the port before a silent one may take to answer."""


class ReplicaSettings(NamedTuple):
    """The settings of a broker that follows a master and serves reads.

    Args:
        broker: The settings of the broker.
        store: The settings of its store.
    """

    broker: BrokerConfig
    store: StoreConfig


class OwnSettings(NamedTuple):
    """The settings in the ``broker.conf`` of a replica that it does not adopt from its master.

    Args:
        entries: The entries that count.
        remarks: Remarks about the others.
    """

    entries: Mapping[str, Entry]
    remarks: Sequence[Remark]

    @classmethod
    def of(cls, entries: Mapping[str, Entry]) -> Self:
        """Return the settings in the entries of a file."""
        tables = (*BROKER_SETTINGS.values(), *STORE_SETTINGS.values())
        adopted = {
            name
            for setting in tables
            if not set(ADOPTED).isdisjoint(setting.names_in_file)
            for name in setting.names_in_file
        }
        reasons = dict.fromkeys(adopted, "a replica has that of its master")
        reasons |= dict.fromkeys(ROLE_KEYS, "the command makes the broker a replica, with --id")
        reasons |= dict.fromkeys(
            BROKER_SETTINGS["grpc_port"].names_in_file,
            "a replica has no port for gRPC clients; run 'firetrail proxy', or 'firetrail broker'"
            " after it was promoted",
        )
        return cls(
            {key: entry for key, entry in entries.items() if key not in reasons},
            [
                Remark(key, f"has no effect: {reasons[key]}", entry.place)
                for key, entry in entries.items()
                if key in reasons
            ],
        )


@dataclass(frozen=True, slots=True)
class AdoptedSettings(Body):
    """The settings that a replica has adopted from its master, by the keys of ``broker.conf``.

    It is kept in the store's folder, so that the replica can start while its master is down.
    """

    settings: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, system: System, folder: Path) -> Self | None:
        """Return the settings that were last saved in the store of a replica; None without any."""
        saved = ConfigFile(system, folder, ADOPTED_JSON).load(cls)
        return saved if saved.settings else None

    def save(self, system: System, folder: Path) -> None:
        """Save this in the store, which the caller must have open."""
        if self != self.load(system, folder):
            ConfigFile(system, folder, ADOPTED_JSON).save(self.to_json())

    def with_name_servers(self, name_servers: str | None) -> Self:
        """Return a copy with other name servers than the master's; None for the master's."""
        if name_servers is None:
            return self
        return replace(self, settings=self.settings | {NAME_SERVERS: name_servers})

    def of_replica(
        self, master: str, broker_id: int = FIRST_SLAVE_ID, own: Mapping[str, Entry] | None = None
    ) -> ReplicaSettings:
        """Return the settings of a replica of the broker at ``master``.

        Args:
            master: ``host:port`` of the master's broker; empty if name servers know it.
            broker_id: The id of the replica. Default: 1.
            own: The entries of :class:`OwnSettings`. Default: none.

        Raises:
            ConfigError: Firetrail cannot have the same settings.
        """
        adopted = {key: Entry(self.settings[key], "") for key in ADOPTED if key in self.settings}
        loaded = load_entries({**(own or {}), **adopted})
        return ReplicaSettings(
            loaded.broker.replace(
                broker_id=broker_id,
                master_address=master,
                slave_read=True,
                promoted_namesrv=self.settings.get(NAME_SERVERS, ""),
            ),
            loaded.store.replace(role=BrokerRole.SLAVE),
        )


async def replica_settings(master: str, broker_id: int = FIRST_SLAVE_ID) -> ReplicaSettings:
    """Return the settings of a replica: names and sizes are those of the master.

    The replica does not register with name servers. If it is promoted, it registers with those of
    the master.

    Args:
        master: ``host:port`` of the master's broker.
        broker_id: The id of the replica. Default: 1.

    Raises:
        NotReachedError: The master does not answer.
        ReplicationError: It refuses to answer, is a slave itself, or is not a broker.
        ConfigError: Firetrail cannot have the same settings.
    """
    return (await adopted_settings(master)).of_replica(master, broker_id)


async def adopted_settings(master: str, access: Access | None = None) -> AdoptedSettings:
    """Return the settings that a replica has to adopt from the broker at ``master``.

    Args:
        master: ``host:port`` of the master's broker.
        access: Credentials and TLS. Default: those in the environment.

    Raises:
        NotReachedError: The master does not answer.
        ReplicationError: It refuses to answer, is a slave itself, or is not a broker.
    """
    client = RemotingClient(access=access)
    try:
        settings = await Master(client, MasterAddress(master)).settings()
    except NotReachedError as error:
        await _check_is_no_ha_port(client, master)
        raise NotReachedError(
            f"{error}; give the address of a running broker (not that of a name server or of an HA "
            "port)"
        ) from None
    finally:
        await client.close()
    if is_slave_role(settings.get("brokerRole", "")):
        raise ReplicationError(
            f"the broker at {master} is a slave itself, with brokerId "
            f"{settings.get('brokerId', '?')}; "
            "give the address of its master"
        )
    adopted = {key: settings[key] for key in ADOPTED if key in settings}
    return AdoptedSettings(adopted | {NAME_SERVERS: _name_servers(settings)})


async def _check_is_no_ha_port(client: RemotingClient, address: str) -> None:
    """Raise ReplicationError if this is an HA port; name its broker if that uses the preceding
    port.

    A master closes a connection to its HA port without an answer if it gets a request there.
    """
    is_not = f"{address} is the address of an HA port, not of a broker; give the address of its"
    _, port = split_address(address)
    broker = f"{address.removesuffix(str(port))}{port - 1}"
    try:
        settings = await Master(client, MasterAddress(broker), PRECEDING_S).settings()
    except (FiretrailError, OSError):
        settings = {}
    if settings.get("haListenPort") == str(port):
        raise ReplicationError(f"{is_not} broker, {broker}")
    if await is_ha_port(address):
        raise ReplicationError(f"{is_not} broker, whose port is listenPort in its broker.conf")


def _name_servers(settings: Mapping[str, str]) -> str:
    """Return the name servers in the settings of a master; none if they are not addresses."""
    try:
        return ADDRESSES.check(settings.get(NAME_SERVERS, "").strip())
    except ValueError:
        return ""


async def find_master(name_servers: str, name: str, access: Access | None = None) -> str:
    """Return the address of the master of a broker name, from the first name server that answers.

    Args:
        name_servers: ``host:port`` of name servers, separated by ``;``.
        name: The name of the broker.
        access: Credentials and TLS. Default: those in the environment.

    Raises:
        NotReachedError: No name server answers, or only replicas of the broker are running.
        NoSuchError: The name server knows no such broker.
    """
    clusters, address = await _clusters(name_servers, access)
    return _master_in(clusters, address, name)


async def holder_of_id(
    name_servers: str, name: str, broker_id: int, access: Access | None = None
) -> str | None:
    """Return the address of the broker with a name and an id; None if name servers know none.

    Args:
        name_servers: ``host:port`` of name servers, separated by ``;``.
        name: The name of the broker.
        broker_id: Its id.
        access: Credentials and TLS. Default: those in the environment.
    """
    try:
        clusters, _ = await _clusters(name_servers, access)
    except NotReachedError:
        return None
    data = clusters.broker_addr_table.get(name)
    return data.broker_addrs.get(broker_id) if data is not None else None


async def _clusters(name_servers: str, access: Access | None) -> tuple[ClusterInfo, str]:
    """Return all brokers, and the address of the name server that listed them."""
    failures = []
    for address in filter(None, name_servers.split(";")):
        try:
            answer = await _ask(address, RequestCode.GET_BROKER_CLUSTER_INFO, access)
        except (OSError, RequestError) as error:
            failures.append(str(error) or f"{address}: no answer in time")
            continue
        return ClusterInfo.decode(answer.content), address
    raise NotReachedError(f"no name server answers: {'; '.join(failures)}")


def _master_in(clusters: ClusterInfo, address: str, name: str) -> str:
    data = clusters.broker_addr_table.get(name)
    if data is None:
        hint = did_you_mean(name, clusters.broker_addr_table)
        known = ", ".join(sorted(clusters.broker_addr_table)) or "none"
        raise NoSuchError(
            f"name server {address} knows no broker {name!r}{hint}; it knows: {known}"
        )
    if data.master is None:
        raise NotReachedError(
            f"name server {address} knows broker {name!r}, but no master of it is running"
        )
    return data.master


async def _ask(address: str, code: RequestCode, access: Access | None) -> RemotingCommand:
    client = RemotingClient(access=access)
    try:
        return await client.ask(address, RemotingCommand(code))
    finally:
        await client.close()
