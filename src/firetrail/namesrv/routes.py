"""The tables of a name server: brokers by name and cluster, queues by topic.

A broker is listed from its registration until it unregisters, its connection closes, or it has sent
nothing for too long. Only masters register queues. A topic that a broker no longer names stays in
the table, as in RocketMQ, where a registration may contain only changes. It is removed with the
broker, or when an administrator deletes it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.messages.bodies import (
    MASTER_ID,
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicConfigTable,
    TopicRouteData,
)
from firetrail.remoting.wire.codes import Permission

NAMES_MAX = 10_000
"""Maximum number of brokers that have left whose newest state version is remembered."""
BROKERS_MAX = 10_000
"""Maximum number of brokers, including slaves."""
TOPICS_MAX = 500_000
"""Maximum number of topics of all brokers."""
ROUTES_MAX = 1_000_000
"""Maximum number of routes: a topic has one for each broker."""
FILTER_SERVERS_MAX = 64
"""Maximum number of filter servers of a broker."""
RIVALS_MAX = 1_000
"""Maximum number of brokers that wait for another one to leave; the oldest is forgotten."""
NAME_MAX = 255
"""Characters of the name of a cluster or a broker, and of an address."""
EXPIRY_MAX_S = 300.0
"""The longest time without a heartbeat that a broker can ask for."""
EXPIRY_S = 120.0
"""A broker that has sent nothing for this long is removed, unless it asks for another time."""


@dataclass(slots=True)
class RegisteredBroker:
    """A registered broker. ``user`` has registered it; empty without access control."""

    cluster: str
    name: str
    broker_id: int
    address: str
    heard_at: float
    expiry_s: float | None = EXPIRY_S
    """None for a broker of this process."""
    connection: Connection | None = None
    version: DataVersion = field(default_factory=DataVersion)
    ha_address: str = ""
    filter_servers: list[str] = field(default_factory=list)
    user: str = ""


@dataclass(frozen=True, slots=True)
class Registration:
    """The description of a broker in its registration, and the user who sent it."""

    cluster: str
    name: str
    address: str
    broker_id: int = MASTER_ID
    ha_address: str = ""
    expiry_s: float | None = EXPIRY_S
    filter_servers: list[str] = field(default_factory=list)
    user: str = ""


class Routes:
    """The registered brokers and their queues."""

    def __init__(self) -> None:
        self._brokers: dict[str, dict[int, RegisteredBroker]] = {}
        self._rivals: list[RegisteredBroker] = []  # their name and id belong to another broker now
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._state_versions: dict[str, int] = {}  # the highest one of a master, by name

    # -- registration -------------------------------------------------------------------------

    def register(
        self,
        who: Registration,
        topics: TopicConfigTable,
        now: float,
        connection: Connection | None = None,
        *,
        complete: bool = False,
    ) -> str | None:
        """Register a broker; return the address of a rival, None if there is none.

        Rivals have the same name and id. The one with the higher state version is in the routes, or
        else the one that registered last, as in RocketMQ. With equal versions, another takes its
        place when it leaves. ``complete`` says that ``topics`` are all topics of the broker.
        """
        holder = self._brokers.get(who.name, {}).get(who.broker_id)
        version = topics.data_version.state_version or 0
        if who.broker_id == MASTER_ID:
            self._note_state_version(who.name, version)
        if holder is not None and holder.address != who.address:
            held = holder.version.state_version or 0
            if held > version:  # a former master
                return holder.address
            if held < version:
                self._forget_rivals(who.name, who.broker_id)
                self.unregister(who.name, who.broker_id, holder.address)
                holder = None
        if holder is not None and holder.address != who.address:
            known = self._rivals_of(who.name, who.broker_id, who.address)
            if known:  # it stays a rival; otherwise routes would alternate between the two
                known[0].heard_at, known[0].connection = now, connection
                return holder.address
            self._rivals.append(holder)
            del self._rivals[:-RIVALS_MAX]
        changed = self.is_changed(who.address, topics.data_version)
        members = self._brokers.setdefault(who.name, {})
        for broker_id, member in list(members.items()):
            if member.address == who.address and broker_id != who.broker_id:
                del members[broker_id]  # a follower that has become the master
        first = who.broker_id not in members
        members[who.broker_id] = RegisteredBroker(
            cluster=who.cluster,
            name=who.name,
            broker_id=who.broker_id,
            address=who.address,
            heard_at=now,
            expiry_s=who.expiry_s,
            connection=connection,
            version=topics.data_version,
            ha_address=who.ha_address,
            filter_servers=who.filter_servers,
            user=who.user,
        )
        if who.broker_id == MASTER_ID and (changed or first):
            self._set_queues(who.name, topics.topic_config_table.values())
            if complete:
                self._forget_queues(who.name, keep=topics.topic_config_table)
        rivals = self._rivals_of(who.name, who.broker_id)
        return rivals[-1].address if rivals else None

    def refusal(self, who: Registration, topics: Collection[str]) -> str:
        """Return why a broker cannot be registered, an empty text if it can.

        Args:
            who: The broker.
            topics: The names of its topics.
        """
        if len(who.filter_servers) > FILTER_SERVERS_MAX:
            count = len(who.filter_servers)
            return f"it has {count} filter servers; at most {FILTER_SERVERS_MAX} are allowed"
        for text in (who.cluster, who.name, who.address, who.ha_address, *who.filter_servers):
            if len(text) > NAME_MAX:
                return f"a name or address of {len(text)} characters; {NAME_MAX} are allowed"
        is_new = who.broker_id not in self._brokers.get(who.name, {})
        if is_new and sum(map(len, self._brokers.values())) >= BROKERS_MAX:
            return f"there are {BROKERS_MAX} brokers, which is the limit of a name server"
        if len(self._topics) + len(topics) > TOPICS_MAX:
            new = sum(topic not in self._topics for topic in topics)
            if new and len(self._topics) + new > TOPICS_MAX:
                return f"there are {len(self._topics)} topics; with {new} more, there would be " + (
                    f"more than {TOPICS_MAX}, which is the limit of a name server"
                )
        if not self._has_room(who.name, topics):
            return f"there would be more than {ROUTES_MAX} routes, one for each topic and broker"
        return ""

    def _has_room(self, name: str, topics: Collection[str]) -> bool:
        """Return whether a broker may have routes to topics; counting all of them is costly."""
        if (len(self._topics) + len(topics)) * (len(self._brokers) + 1) <= ROUTES_MAX:
            return True
        routes = sum(map(len, self._topics.values()))
        new = sum(name not in self._topics.get(topic, {}) for topic in topics)
        return routes + new <= ROUTES_MAX

    def _note_state_version(self, name: str, version: int) -> None:
        if version > self._state_versions.get(name, 0):
            self._state_versions.pop(name, None)
            if len(self._state_versions) >= NAMES_MAX:
                del self._state_versions[next(iter(self._state_versions))]
            self._state_versions[name] = version

    def is_former(self, who: Registration, topics: TopicConfigTable) -> bool:
        """Whether a broker registers as a master although there was a newer one."""
        version = topics.data_version.state_version or 0
        return who.broker_id == MASTER_ID and version < self.state_version(who.name)

    def state_version(self, name: str) -> int:
        """Return the highest state version with which a master of a name has ever registered."""
        return self._state_versions.get(name, 0)

    def _forget_rivals(self, name: str, broker_id: int) -> None:
        for rival in self._rivals_of(name, broker_id):
            self._rivals.remove(rival)

    def _rivals_of(
        self, name: str, broker_id: int, address: str | None = None
    ) -> list[RegisteredBroker]:
        return [
            broker
            for broker in self._rivals
            if (broker.name, broker.broker_id) == (name, broker_id)
            and address in (None, broker.address)
        ]

    def unregister(self, name: str, broker_id: int, address: str) -> None:
        """Remove a broker. Its queues are removed with the last broker of its name."""
        for rival in self._rivals_of(name, broker_id, address):
            self._rivals.remove(rival)
        members = self._brokers.get(name, {})
        member = members.get(broker_id)
        if member is None or member.address != address:
            return
        del members[broker_id]
        for successor in self._rivals_of(name, broker_id)[-1:]:
            self._rivals.remove(successor)
            successor.version = DataVersion()  # its topics are unknown until it registers again
            members[broker_id] = successor
        if not members:
            del self._brokers[name]
            self._forget_queues(name)

    def disconnected(self, connection: Connection) -> list[str]:
        """Remove the brokers of a closed connection; return their addresses."""
        return self._drop(lambda broker: broker.connection is connection)

    def expire(self, now: float) -> list[str]:
        """Remove the brokers that have sent nothing for too long; return their addresses."""
        return self._drop(
            lambda broker: broker.expiry_s is not None and now - broker.heard_at > broker.expiry_s
        )

    def _drop(self, is_gone: Callable[[RegisteredBroker], bool]) -> list[str]:
        gone = [broker for broker in (*self._rivals, *self._all()) if is_gone(broker)]
        for broker in gone:
            self.unregister(broker.name, broker.broker_id, broker.address)
        return [broker.address for broker in gone]

    def heard_of(self, address: str, now: float) -> None:
        """Note that a broker is alive."""
        for broker in (*self._rivals, *self._all()):
            if broker.address == address:
                broker.heard_at = now

    def _all(self) -> Iterator[RegisteredBroker]:
        for members in self._brokers.values():
            yield from members.values()

    # -- brokers ------------------------------------------------------------------------------

    def registered(self, name: str, broker_id: int, address: str) -> list[RegisteredBroker]:
        """Return the brokers with a name and id, and those with an address."""
        return [
            broker
            for broker in (*self._rivals, *self._all())
            if (broker.name, broker.broker_id) == (name, broker_id) or broker.address == address
        ]

    def version_of(self, address: str) -> DataVersion | None:
        """Return the version of the topics with which a broker has registered."""
        return next((b.version for b in self._all() if b.address == address), None)

    def is_changed(self, address: str, version: DataVersion) -> bool:
        """Whether the topics of a broker have changed since its registration."""
        return self.version_of(address) != version

    def master_of(self, name: str) -> tuple[str, str] | None:
        """Return the address of the master of a name, and its address for replication."""
        master = self._brokers.get(name, {}).get(MASTER_ID)
        return (master.address, master.ha_address) if master else None

    def broker(self, name: str) -> BrokerData | None:
        """Return the brokers of a name, None if there are none."""
        members = self._brokers.get(name)
        if not members:
            return None
        cluster = next(iter(members.values())).cluster
        return BrokerData(name, cluster, {i: members[i].address for i in sorted(members)})

    def clusters(self) -> ClusterInfo:
        """Return all brokers by cluster."""
        found = {name: data for name in self._brokers if (data := self.broker(name))}
        clusters: dict[str, list[str]] = {}
        for name, data in found.items():
            clusters.setdefault(data.cluster, []).append(name)
        return ClusterInfo(found, clusters)

    # -- topics -------------------------------------------------------------------------------

    def route(self, topic: str) -> TopicRouteData | None:
        """Return the route of a topic; None if it has no queues."""
        queues = self._topics.get(topic, {})
        brokers = [data for name in queues if (data := self.broker(name))]
        if not brokers:
            return None
        known = {data.broker_name for data in brokers}
        return TopicRouteData(
            [queue for name, queue in queues.items() if name in known],
            brokers,
            {
                broker.address: broker.filter_servers
                for name in known
                for broker in self._brokers[name].values()
                if broker.filter_servers
            },
        )

    def topics(self, cluster: str | None = None) -> list[str]:
        """Return the names of all topics, or of those of a cluster."""
        if cluster is None:
            return list(self._topics)
        names = self.clusters().cluster_addr_table.get(cluster, [])
        return [
            topic for topic, queues in self._topics.items() if not queues.keys().isdisjoint(names)
        ]

    def topics_with(self, wanted: Callable[[int], bool]) -> list[str]:
        """Return the topics whose system flags satisfy ``wanted``."""
        return [
            topic
            for topic, queues in self._topics.items()
            if any(wanted(queue.topic_sys_flag) for queue in queues.values())
        ]

    def has_room_for(self, topic: str) -> bool:
        """Whether a topic is known, or may be added."""
        return topic in self._topics or len(self._topics) < TOPICS_MAX

    def add_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Add the queues of one topic between two registrations."""
        for queue in queues:
            if queue.broker_name in self._brokers:
                self._topics.setdefault(topic, {})[queue.broker_name] = queue

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove the queues of a topic, everywhere or in a cluster."""
        if cluster is None:
            self._topics.pop(topic, None)
            return
        for name in self.clusters().cluster_addr_table.get(cluster, []):
            self._remove_queue(topic, name)

    def set_writable(self, name: str, writable: bool) -> int:
        """Allow or forbid writes to the queues of a broker; return how many topics it has."""
        count = 0
        for queues in self._topics.values():
            queue = queues.get(name)
            if queue is not None:
                perm = queue.perm & ~Permission.WRITE
                if writable:
                    perm = Permission.READ | Permission.WRITE
                queues[name] = replace(queue, perm=int(perm))
                count += 1
        return count

    def _set_queues(self, name: str, topics: Iterable[TopicConfig]) -> None:
        for topic in topics:
            self._topics.setdefault(topic.topic_name, {})[name] = QueueData(
                name,
                topic.read_queue_nums,
                topic.write_queue_nums,
                topic.perm,
                topic.topic_sys_flag,
            )

    def _forget_queues(self, name: str, keep: Iterable[str] = ()) -> None:
        kept = set(keep)
        for topic in [t for t, queues in self._topics.items() if name in queues and t not in kept]:
            self._remove_queue(topic, name)

    def _remove_queue(self, topic: str, name: str) -> None:
        queues = self._topics.get(topic, {})
        queues.pop(name, None)
        if not queues:
            self._topics.pop(topic, None)
