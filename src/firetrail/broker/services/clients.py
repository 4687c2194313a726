"""The connected producers and consumers by group, as their heartbeats describe them.

A client leaves when it unregisters, when its connection is closed, or when it has sent no heartbeat
for too long. The other consumers of its groups are notified, and rebalance.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from firetrail.access.guard import Guard
from firetrail.auth.caller import Caller
from firetrail.auth.resources import Requirement
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.filter.consumer_filters import ConsumerFilters
from firetrail.broker.filter.message_selector import check_tags, parse_filter
from firetrail.broker.services.memberships import GroupMembership, Memberships
from firetrail.broker.services.rebalance_locks import check_client_id
from firetrail.broker.state.group_table import GroupTable, check_group
from firetrail.broker.state.topic_table import TopicTable
from firetrail.errors import RequestError
from firetrail.format.names import retry_topic
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.messages.bodies import (
    CheckClientBody,
    ConsumeFromWhere,
    ConsumerData,
    ConsumerIdList,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)
from firetrail.remoting.messages.headers import GroupHeader, UnregisterClientHeader
from firetrail.remoting.wire.codes import Language, RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.settings.settings_table import Live

SUBSCRIPTIONS_MAX = 1_000
"""Maximum number of topics that a consumer group subscribes to."""
SUBSCRIPTION_BYTES = 128 << 20
"""Maximum estimated size of the subscriptions of all groups in bytes. A subscription takes about
300."""
_OBJECT_BYTES = 200

PRODUCER, CONSUMER = "producer", "consumer"

LANGUAGES = {language.value: language.name for language in Language}


@dataclass(slots=True)
class Client:
    """A client on a connection."""

    client_id: str
    connection: Connection
    language: int
    version: int
    last_seen: float
    caller: Caller | None = None
    """The sender of its last heartbeat, if that is checked."""


@dataclass(slots=True)
class ConsumerGroup:
    """The connected consumers of a group, and their subscriptions."""

    name: str
    clients: dict[Connection, Client] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    """By topic. All consumers of a group must subscribe alike; the newest heartbeat counts."""
    consume_type: ConsumeType = ConsumeType.PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    kept_bytes: int = 0
    """Estimated bytes of the subscriptions."""

    @property
    def client_ids(self) -> list[str]:
        """The client ids, each once."""
        return list(dict.fromkeys(client.client_id for client in self.clients.values()))

    def find(self, client_id: str) -> Client | None:
        """Return the consumer with this client id, None if it is not connected."""
        return next((c for c in self.clients.values() if c.client_id == client_id), None)

    def describe(self, data: ConsumerData) -> bool:
        """Adopt a heartbeat's description of the group; return whether subscriptions changed."""
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.from_where = data.consume_from_where
        wanted = {}
        for subscription in data.subscription_data_set:
            known = self.subscriptions.get(subscription.topic)
            newer = known is None or subscription.sub_version >= known.sub_version
            wanted[subscription.topic] = subscription if newer or known is None else known
        changed = {t: (s.sub_string, s.expression_type) for t, s in wanted.items()} != {
            t: (s.sub_string, s.expression_type) for t, s in self.subscriptions.items()
        }
        self.subscriptions = wanted
        return changed


class Clients:
    """The table of all connected clients.

    Args:
        topics: The topics of the broker.
        groups: Its consumer groups.
        now: A monotonic clock.
        config: The settings.
        guard: Knows the users. Default: there is no access control.
    """

    def __init__(
        self,
        topics: TopicTable,
        groups: GroupTable,
        now: Callable[[], float],
        config: Live[BrokerConfig],
        guard: Guard | None = None,
    ) -> None:
        self._guard = guard
        self._topics = topics
        self._groups = groups
        self._now = now
        self._live = config
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[Connection, Client]] = {}
        self.filters: ConsumerFilters | None = None
        """Evaluates the filters of consumers when messages arrive, if the broker does that."""
        self._memberships = Memberships(now)
        self._kept_bytes = 0  # of all subscriptions
        self.handlers: dict[int, Handler] = {
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._consumer_ids,
            RequestCode.CHECK_CLIENT_CONFIG: self._check,
        }

    def serve(self, topics: TopicTable, groups: GroupTable) -> None:
        """Use other tables from now on: the broker has changed its role."""
        self._topics, self._groups = topics, groups

    def evaluate(self, filters: ConsumerFilters | None) -> None:
        """Register the filters of all consumers, and those of later ones, with ``filters``."""
        self.filters = filters
        if filters is not None:
            for group in self.consumers.values():
                filters.register(group.name, group.subscriptions.values())

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return the subscription of a group's consumers to a topic, None if there is none."""
        consumers = self.consumers.get(group)
        return None if consumers is None else consumers.subscriptions.get(topic)

    def producers_of(self, group: str) -> Iterator[Client]:
        """Yield the connected producers of a group."""
        yield from self.producers.get(group, {}).values()

    def may(self, client: Client, wanted: Requirement) -> bool:
        """Return whether a client has a permission now; checked before the broker sends it a
        request.

        Its user may have been changed, disabled or deleted since its last heartbeat.
        """
        if client.caller is None:
            return True
        caller = self._present(client.caller)
        return caller is not None and caller.refusal([wanted]) is None

    def _present(self, caller: Caller) -> Caller | None:
        """Return the sender of a heartbeat in its present state; None if its user is gone or
        disabled."""
        try:
            return caller if self._guard is None else self._guard.present(caller)
        except RequestError:
            return None

    def waiting_producer(self, client_id: str) -> Client | None:
        """Return the producer with an id that gets its replies; None if there is none.

        Of several connections, the one with the latest heartbeat counts: an earlier one may be lost
            without the broker knowing yet.
        """
        found = [
            client
            for clients in self.producers.values()
            for client in clients.values()
            if client.client_id == client_id
            and (client.caller is None or self._present(client.caller) is not None)
        ]
        return max(found, key=lambda client: client.last_seen, default=None)

    def check_again(self, connection: Connection, request: RemotingCommand) -> None:
        """Raise RequestError if the sender of a request that has waited may not make it now."""
        if self._guard is not None:
            self._guard.check_again(connection, request)

    def silent_ms(self, client: Client) -> int:
        """Return the time (ms) since the last heartbeat of the client."""
        return int((self._now() - client.last_seen) * 1000)

    # -- requests -----------------------------------------------------------------------------

    def _heartbeat(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        beat = HeartbeatData.decode(request.content)
        check_client_id(beat.client_id)
        if self._guard is not None and request.caller is not None:
            self._guard.owners.claim(beat.client_id, request.caller)
        self._memberships.check(connection, request.caller, _groups_of(beat))
        client = Client(
            beat.client_id,
            connection,
            request.language,
            request.version,
            self._now(),
            request.caller,
        )
        for producer in beat.producer_data_set:
            check_group(producer.group_name)
            self.producers.setdefault(producer.group_name, {})[connection] = client
            self._memberships.add(connection, (PRODUCER, producer.group_name))
        for consumer in beat.consumer_data_set:
            self._consumer_beat(client, consumer)
        return request.answer()

    def _check_subscriptions(self, data: ConsumerData, before: int) -> int:
        """Return the bytes of the subscriptions; raise RequestError if there are too many."""
        wanted = data.subscription_data_set
        if len(wanted) > SUBSCRIPTIONS_MAX:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"group {data.group_name} subscribes to {len(wanted)} topics; at most "
                f"{SUBSCRIPTIONS_MAX} are allowed. Divide them among several groups",
            )
        for each in wanted:
            check_tags(each.sub_string)
        size = sum(map(_size_of, wanted))
        if self._kept_bytes - before + size > SUBSCRIPTION_BYTES:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"the subscriptions of all groups need more than {SUBSCRIPTION_BYTES} bytes; "
                f"those of {data.group_name} are not kept. Subscribe to fewer topics and tags",
            )
        return size

    def _consumer_beat(self, client: Client, data: ConsumerData) -> None:
        name = data.group_name
        known_group = self.consumers.get(name)
        size = self._check_subscriptions(data, known_group.kept_bytes if known_group else 0)
        config = self._groups.require(name)
        self._topics.ensure(retry_topic(name), max(config.retry_queue_nums, 1))
        group = self.consumers.get(name)
        if group is None:
            group = self.consumers[name] = ConsumerGroup(name)
        known = group.clients.get(client.connection)
        joined = known is None or known.client_id != client.client_id
        group.clients[client.connection] = client
        self._memberships.add(client.connection, (CONSUMER, name))
        changed = group.describe(data)
        self._kept_bytes += size - group.kept_bytes
        group.kept_bytes = size
        if joined or changed:
            if self.filters is not None:
                self.filters.register(name, group.subscriptions.values())
            self._notify(group)

    def _unregister(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = UnregisterClientHeader.decode(request.fields)
        if header.producer_group:
            self._drop(connection, PRODUCER, header.producer_group)
        if header.consumer_group:
            self._drop(connection, CONSUMER, header.consumer_group)
        return request.answer()

    def _consumer_ids(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        name = GroupHeader.decode(request.fields).consumer_group
        group = self.consumers.get(name)
        if group is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name:.255}"
            )
        return request.answer(body=ConsumerIdList(group.client_ids).encode(standard=True))

    def _check(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Check whether the broker supports the filter expression of a consumer."""
        wanted = CheckClientBody.decode(request.content).subscription_data
        parse_filter(self._live.current, wanted.sub_string, wanted.expression_type)
        return request.answer()

    # -- leaving ------------------------------------------------------------------------------

    def closed(self, connection: Connection) -> None:
        """Remove all clients of a closed connection."""
        for kind, name in self._memberships.leave(connection):
            self._drop(connection, kind, name)

    def expire(self) -> None:
        """Close the connections of clients that have been silent for too long."""
        oldest = self._now() - self._live.current.client_expiry_ms / 1000
        silent = [
            client.connection
            for clients in (*self.producers.values(), *(g.clients for g in self.consumers.values()))
            for client in clients.values()
            if client.last_seen < oldest
        ]
        for connection in silent:
            connection.close()

    def _drop(self, connection: Connection, kind: str, name: str) -> None:
        self._memberships.remove(connection, (kind, name))
        if kind == PRODUCER:
            producers = self.producers.get(name, {})
            producers.pop(connection, None)
            if not producers:
                self.producers.pop(name, None)
            return
        group = self.consumers.get(name)
        if group is not None and group.clients.pop(connection, None) is not None:
            if not group.clients:
                del self.consumers[name]
                self._kept_bytes -= group.kept_bytes
                if self.filters is not None:
                    self.filters.unregister(name)
            self._notify(group)

    def _notify(self, group: ConsumerGroup) -> None:
        """Tell the consumers of a group to rebalance."""
        config = self._groups.get(group.name)
        if config is not None and not config.notify_consumer_ids_changed_enable:
            return
        fields = GroupHeader(group.name).encode()
        for client in group.clients.values():
            client.connection.tell(RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields))


def _groups_of(beat: HeartbeatData) -> set[GroupMembership]:
    return {(PRODUCER, each.group_name) for each in beat.producer_data_set} | {
        (CONSUMER, each.group_name) for each in beat.consumer_data_set
    }


def _size_of(subscription: SubscriptionData) -> int:
    """Return about how many bytes a subscription has in memory."""
    tags, codes = subscription.tags_set or (), subscription.code_set or ()
    names = len(subscription.topic) + len(subscription.sub_string)
    return _OBJECT_BYTES + names + sum(map(len, tags)) + 60 * len(tags) + 40 * len(codes)
