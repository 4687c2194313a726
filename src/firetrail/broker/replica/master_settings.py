"""The settings that a replica adopts from its master, and the search for the master."""

from __future__ import annotations

from typing import NamedTuple

from firetrail.broker.config import BrokerConfig, load_entries
from firetrail.errors import NoSuchError, NotReachedError, ReplicationError, RequestError
from firetrail.format.java_properties import Entry, parse_properties
from firetrail.remoting.bodies import ClusterInfo
from firetrail.remoting.client import RemotingClient
from firetrail.remoting.codes import RequestCode
from firetrail.remoting.command import RemotingCommand
from firetrail.store.config import BrokerRole, StoreConfig
from firetrail.text import did_you_mean

ADOPTED = (
    *("brokerClusterName", "brokerName"),
    *("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum"),
    *("maxMessageSize", "messageDelayLevel", "enableLmq"),
)
"""Keys of ``broker.conf`` that must not differ between a master and its replicas."""
FIRST_SLAVE_ID = 1


class ReplicaSettings(NamedTuple):
    """The settings of a broker that follows a master and serves reads.

    Args:
        broker: The settings of the broker.
        store: The settings of its store.
    """

    broker: BrokerConfig
    store: StoreConfig


async def replica_settings(master: str, broker_id: int = FIRST_SLAVE_ID) -> ReplicaSettings:
    """Return the settings of a replica: names and sizes are those of the master.

    Args:
        master: ``host:port`` of the master's broker.
        broker_id: The id of the replica. Default: 1.

    Raises:
        NotReachedError: The master does not answer.
        ReplicationError: It refuses to answer, or is a slave itself.
        ConfigError: Firetrail cannot have the same settings.
    """
    entries = await _settings_of(master)
    if entries.get("brokerRole", Entry("", "")).text.upper() == BrokerRole.SLAVE.value:
        raise ReplicationError(
            f"the broker at {master} is a slave itself, with brokerId "
            f"{entries.get('brokerId', Entry('?', '')).text}; give the address of its master"
        )
    loaded = load_entries({key: entries[key] for key in ADOPTED if key in entries})
    return ReplicaSettings(
        loaded.broker.replace(broker_id=broker_id, master_address=master, slave_read=True),
        loaded.store.replace(role=BrokerRole.SLAVE),
    )


async def find_master(name_servers: str, name: str) -> str:
    """Return the address of the master of a broker name, from the first name server that answers.

    Args:
        name_servers: ``host:port`` of name servers, separated by ``;``.
        name: The name of the broker.

    Raises:
        NotReachedError: No name server answers.
        NoSuchError: The name server knows no such broker, or no master of that name.
    """
    failures = []
    for address in filter(None, name_servers.split(";")):
        try:
            answer = await _ask(address, RequestCode.GET_BROKER_CLUSTER_INFO)
        except (OSError, RequestError) as error:
            failures.append(str(error) or f"{address}: no answer in time")
            continue
        return _master_in(ClusterInfo.decode(answer.content), address, name)
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
        raise NoSuchError(
            f"name server {address} knows broker {name!r}, but no master of it is running"
        )
    return data.master


async def _settings_of(master: str) -> dict[str, Entry]:
    try:
        answer = await _ask(master, RequestCode.GET_BROKER_CONFIG)
    except OSError as error:
        raise NotReachedError(
            f"the master does not answer: {str(error) or f'{master}: no answer in time'}; give the "
            "address of a running broker (not that of a name server or of an HA port)"
        ) from None
    except RequestError as error:
        raise ReplicationError(
            f"the server at {master} does not tell the settings of a broker: "
            f"{error.remark.removeprefix(f'{master}: ').strip()}"
        ) from None
    return parse_properties(answer.content.decode("utf-8", "replace"), master)


async def _ask(address: str, code: RequestCode) -> RemotingCommand:
    client = RemotingClient()
    try:
        return await client.ask(address, RemotingCommand(code))
    finally:
        await client.close()
