"""Statistics of topics and groups, and the lists of connected clients."""

import asyncio
from collections.abc import Iterable

from firetrail.broker.broker_state import BrokerState
from firetrail.broker.services.clients import LANGUAGES, Client
from firetrail.broker.services.traffic import MINUTE
from firetrail.errors import RequestError
from firetrail.format.names import RETRY_PREFIX, pop_retry_topic, pop_retry_topic_v2
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler, WaitingHandler
from firetrail.remoting.messages.admin.admin_bodies import (
    ClientConnection,
    ConsumerConnection,
    ConsumeStats,
    ConsumeStatsList,
    OffsetWrapper,
    ProducerConnection,
    QueueTimeSpan,
    TimeSpans,
    TopicOffset,
    TopicStats,
)
from firetrail.remoting.messages.admin.admin_headers import (
    BrokerConsumeStatsHeader,
    ConsumeStatsHeader,
    GroupNameHeader,
    ProducerGroupHeader,
    TopicGroupHeader,
)
from firetrail.remoting.messages.bodies import (
    GroupList,
    MessageModel,
    MessageQueue,
    TopicConfig,
    TopicList,
)
from firetrail.remoting.messages.headers import GroupHeader, TopicHeader
from firetrail.remoting.wire.codes import Language, RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

POP_RETRY_TOPICS = (pop_retry_topic, pop_retry_topic_v2)
"""Functions that name the topics for redelivery of messages that a group has popped."""


class StatsProcessor:
    """Handles the requests for statistics, subscriptions and connections."""

    def __init__(self, state: BrokerState) -> None:
        self._store = state.store
        self._topics = state.topics
        self._offsets = state.offsets
        self._clients = state.clients
        self._traffic = state.traffic
        self._config = state.config
        self._now_ms = state.system.clock.now_ms
        self._address = state.address
        dispatched = state.store.dispatch.catch_up
        self.handlers: dict[int, Handler] = {
            RequestCode.GET_TOPIC_STATS_INFO: WaitingHandler(dispatched, self._topic_stats),
            RequestCode.GET_CONSUME_STATS: WaitingHandler(dispatched, self._consume_stats),
            RequestCode.GET_BROKER_CONSUME_STATS: WaitingHandler(dispatched, self._all_stats),
            RequestCode.QUERY_CONSUME_TIME_SPAN: WaitingHandler(dispatched, self._time_spans),
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self._groups_of_topic,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self._topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self._subscription,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self._producers,
        }

    # -- topics and groups --------------------------------------------------------------------

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._config.name, queue_id)

    def _topic_stats(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        topic = self._topics.require(TopicHeader.decode(request.fields).topic)
        table = {}
        for queue_id in topic.queues:
            name = topic.topic_name
            end = self._store.queues.max_offset(name, queue_id)
            time = self._store.queues.store_time(name, queue_id, end - 1) if end else None
            table[self._queue(name, queue_id)] = TopicOffset(
                self._store.queues.min_offset(name, queue_id), end, time or 0
            )
        rate = self._traffic.messages(self._traffic.topics.get(topic.topic_name), MINUTE).tps
        return request.answer(body=TopicStats(table, rate).encode())

    def _consume_stats(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = ConsumeStatsHeader.decode(request.fields)
        group = header.consumer_group
        names = [header.topic] if header.topic else self._topic_names(group)
        online = self._clients.consumers.get(group)
        if online is not None and online.message_model is MessageModel.BROADCASTING:
            names = []  # each member keeps its own offsets, so the broker does not know them
        return request.answer(body=self._stats_of(group, names).encode())

    def _stats_of(self, group: str, names: Iterable[str]) -> ConsumeStats:
        """Return the progress of a group in topics, and its rate."""
        table = {}
        rate = 0.0
        for name in names:
            topic = self._topics.get(name)
            for queue_id in range(topic.read_queue_nums if topic is not None else 0):
                table[self._queue(name, queue_id)] = self._progress(group, name, queue_id)
            rate += self._traffic.messages(self._traffic.groups.get((name, group)), MINUTE).tps
        return ConsumeStats(table, rate)

    async def _all_stats(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        only_ordered = BrokerConsumeStatsHeader.decode(request.fields).is_order
        found: dict[str, list[ConsumeStats]] = {}
        for group, names in sorted(self._offsets.topics_by_group().items()):
            stats = found[group] = []
            for name in self._with_retries(group, names):
                topic = self._topics.get(name)
                if topic is not None and (topic.order or not only_ordered):
                    stats.append(self._stats_of(group, [name]))
                    await asyncio.sleep(0)  # there may be thousands of groups and topics
        behind = sum(
            progress.broker_offset - progress.consumer_offset
            for each in found.values()
            for one in each
            for progress in one.offset_table.values()
        )
        body = ConsumeStatsList([{g: each} for g, each in found.items()], self._address, behind)
        return request.answer(body=await asyncio.to_thread(body.encode))  # it may be megabytes

    def _topic_names(self, group: str) -> list[str]:
        """Return the topics in which a group has an offset or to which it is subscribed."""
        consumers = self._clients.consumers.get(group)
        wanted = consumers.subscriptions if consumers is not None else {}
        return self._with_retries(group, [*self._offsets.of_group(group), *wanted])

    def _with_retries(self, group: str, names: Iterable[str]) -> list[str]:
        """Return topics together with those that redeliver messages that a group has popped from
        them.

        The group has no offset in these before it receives from them.
        """
        all_names = set(names)
        retries = {retry(name, group) for name in all_names for retry in POP_RETRY_TOPICS}
        return sorted(all_names | {name for name in retries if self._topics.get(name) is not None})

    def _progress(self, group: str, topic: str, queue_id: int) -> OffsetWrapper:
        offset = self._offsets.get(group, topic, queue_id) or 0
        time = self._store.queues.store_time(topic, queue_id, offset - 1) if offset else None
        pulled = self._offsets.pulled(group, topic, queue_id)
        return OffsetWrapper(
            self._store.queues.max_offset(topic, queue_id), offset, time or 0, pulled
        )

    def _time_spans(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = TopicGroupHeader.decode(request.fields)
        topic = self._topics.require(header.topic)
        spans = [self._span(topic, header.group, queue_id) for queue_id in topic.queues]
        return request.answer(body=TimeSpans(spans).encode())

    def _span(self, topic: TopicConfig, group: str, queue_id: int) -> QueueTimeSpan:
        name = topic.topic_name
        first, end = (
            self._store.queues.min_offset(name, queue_id),
            self._store.queues.max_offset(name, queue_id),
        )
        offset = self._offsets.get(group, name, queue_id) or 0
        now = self._now_ms()
        earliest = self._store.queues.store_time(name, queue_id, first)
        latest = self._store.queues.store_time(name, queue_id, end - 1)
        consumed = self._store.queues.store_time(name, queue_id, max(offset - 1, first))
        waiting = self._store.queues.store_time(name, queue_id, offset) if offset < end else None
        return QueueTimeSpan(
            self._queue(name, queue_id),
            -1 if earliest is None else earliest,
            -1 if latest is None else latest,
            -1 if consumed is None else consumed,
            0 if waiting is None else now - waiting,
        )

    def _groups_of_topic(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        topic = TopicHeader.decode(request.fields).topic
        online = {name for name, g in self._clients.consumers.items() if topic in g.subscriptions}
        groups = sorted(online | set(self._offsets.groups_of(topic)))
        return request.answer(body=GroupList(groups).encode())

    def _topics_of_group(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        group = GroupNameHeader.decode(request.fields).group
        names = [n for n in self._topic_names(group) if not n.startswith(RETRY_PREFIX)]
        return request.answer(body=TopicList(names).encode())

    def _subscription(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = TopicGroupHeader.decode(request.fields)
        found = self._clients.subscription(header.group, header.topic)
        return request.answer(body=found.encode() if found is not None else b"")

    # -- connections --------------------------------------------------------------------------

    def _consumers(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        name = GroupHeader.decode(request.fields).consumer_group
        group = self._clients.consumers.get(name)
        if group is None:
            raise RequestError(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name:.255}] not online"
            )
        body = ConsumerConnection(
            [_connected(client) for client in group.clients.values()],
            group.subscriptions,
            group.consume_type,
            group.message_model,
            group.from_where,
        )
        return request.answer(body=body.encode())

    def _producers(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        name = ProducerGroupHeader.decode(request.fields).producer_group
        found = [_connected(client) for client in self._clients.producers_of(name)]
        if not found:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"the producer group[{name:.255}] not exist"
            )
        return request.answer(body=ProducerConnection(found).encode())


def _connected(client: Client) -> ClientConnection:
    return ClientConnection(
        client.client_id,
        client.connection.peer,
        LANGUAGES.get(client.language, Language.OTHER.name),
        client.version,
    )
