"""Administration of a cluster: topics, groups, offsets, messages, users, settings."""

from collections.abc import Sequence
from dataclasses import replace

from firetrail.client.administration.user_admin import UserAdmin
from firetrail.client.cluster.client_arguments import checked_address, checked_group
from firetrail.client.cluster.offsets import Offsets
from firetrail.client.messages.received_message import Received, decode_all
from firetrail.errors import RequestError
from firetrail.format.values.arguments import instance, number, text, truth
from firetrail.format.values.hosts import format_host
from firetrail.format.values.ids import decode_message_id
from firetrail.format.values.integers import INT32_MAX
from firetrail.remoting.connections.access import Access
from firetrail.remoting.messages.admin.admin_bodies import (
    ConsumerConnection,
    ConsumeStats,
    ProducerConnection,
    ResetOffsets,
)
from firetrail.remoting.messages.admin.admin_headers import (
    ConsumeStatsHeader,
    DeleteGroupHeader,
    MessageIdHeader,
    ProducerGroupHeader,
)
from firetrail.remoting.messages.bodies import (
    MessageQueue,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from firetrail.remoting.messages.headers import (
    GroupHeader,
    QueryMessageHeader,
    ResetOffsetHeader,
    ViewMessageHeader,
)
from firetrail.remoting.messages.route_headers import KVHeader, ValueResponse
from firetrail.remoting.wire.codes import RequestCode, ResponseCode

LATEST = (1 << 63) - 1
"""A time after all messages."""


class Admin(UserAdmin):
    """Inspects a cluster and changes it::

        async with Admin("127.0.0.1:9876") as admin:
            await admin.create_topic("orders", queues=8)

    Methods that concern the whole cluster send a request to every master and raise the first
    failure; the other masters may have made the change. Every method raises RequestError if a
    broker or name server answers with an error, OSError if one cannot be reached or does not answer
    in time (TimeoutError), ConfigError or WrongTypeError for a wrong argument, and
    ClientClosedError if the client is not open. Errors with a meaning of their own are listed.

    Args:
        namesrv: The address ``host:port`` of a name server, or several: a sequence, or a string
            that separates them by ``;``.
        access: Credentials and TLS. Default: those in the environment
            (:mod:`firetrail.remoting.connections.access`).
    """

    def __init__(self, namesrv: str | Sequence[str], *, access: Access | None = None) -> None:
        super().__init__(namesrv, access=access)
        self.offsets = Offsets(self._session)
        """Requests for the offsets of queues (from :meth:`queues`) and groups."""

    # -- groups -------------------------------------------------------------------------------

    async def groups(self) -> dict[str, SubscriptionGroupConfig]:
        """Return all consumer groups, each with its settings on one of its brokers."""
        found: dict[str, SubscriptionGroupConfig] = {}
        for answer in await self._everywhere(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG):
            found |= SubscriptionGroupTable.decode(answer.content).subscription_group_table
        return found

    async def create_group(
        self, group: SubscriptionGroupConfig | str, *, orderly: bool = False
    ) -> None:
        """Create a consumer group, or change it, on every master.

        Args:
            group: The name of the group, for the default settings, or its settings.
            orderly: Whether gRPC clients get the messages in order, regardless of the settings.
                Remoting clients decide that themselves. Default: False, as the settings say.
        """
        config = SubscriptionGroupConfig(group) if isinstance(group, str) else group
        checked_group(instance("group", config, SubscriptionGroupConfig).group_name)
        if truth("orderly", orderly):
            config = replace(config, consume_message_orderly=True)
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self._everywhere(code, body=config.encode(), addresses=await self._addresses())

    async def delete_group(self, group: str, *, offsets: bool = True) -> None:
        """Delete a consumer group.

        Args:
            group: The name of the group.
            offsets: Whether to delete its offsets, too. Default: True.

        Raises:
            RequestError: The group did not exist. Offsets that it left are deleted nevertheless.
        """
        header = DeleteGroupHeader(text("group", group), truth("offsets", offsets))
        is_known = group in await self.groups()
        code = RequestCode.DELETE_SUBSCRIPTIONGROUP
        await self._everywhere(code, header, addresses=await self._addresses())
        if not is_known:
            raise _no_such_group(group)

    async def consume_stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """Return the progress of a group: the committed and the last offset of each queue.

        Args:
            group: The name of the group.
            topic: The name of a topic. Default: all topics that the group consumes.
        """
        text("group", group)
        if topic is not None:
            text("topic", topic)
        code = RequestCode.GET_CONSUME_STATS
        offsets = {}
        tps = 0.0
        for answer in await self._everywhere(code, ConsumeStatsHeader(group, topic)):
            stats = ConsumeStats.decode(answer.content)
            offsets.update(stats.offset_table)
            tps += stats.consume_tps
        return ConsumeStats(offsets, tps)

    async def consumers(self, group: str, address: str) -> ConsumerConnection:
        """Return the members of a consumer group that are connected to a broker.

        Args:
            group: The name of the group.
            address: The address ``host:port`` of the broker.
        """
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        header = GroupHeader(text("group", group))
        answer = await self._session.ask(checked_address(address), code, header)
        return ConsumerConnection.decode(answer.content)

    async def producers(self, group: str, address: str) -> ProducerConnection:
        """Return the producers of a group that are connected to a broker.

        Args:
            group: The name of the producer group.
            address: The address ``host:port`` of the broker.
        """
        code = RequestCode.GET_PRODUCER_CONNECTION_LIST
        header = ProducerGroupHeader(text("group", group))
        answer = await self._session.ask(checked_address(address), code, header)
        return ProducerConnection.decode(answer.content)

    async def reset_offsets(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Let a group continue at a store time. Connected members are notified.

        Args:
            group: The name of the consumer group.
            topic: The name of the topic.
            timestamp_ms: The store time to continue at, in ms since 1970; -1 for the end.
            force: Whether offsets may also move forward; otherwise only back. Default: True.

        Returns:
            The new offset of each queue.

        Raises:
            RequestError: A broker does not know the topic or the group.
        """
        header = ResetOffsetHeader(
            text("topic", topic),
            text("group", group),
            number("timestamp_ms", timestamp_ms, -1),
            truth("force", force),
        )
        found: dict[MessageQueue, int] = {}
        for data in (await self.route(topic)).broker_datas:
            if data.master is None:
                continue
            code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
            answer = await self._session.request(data.master, code, header)
            if answer.code == ResponseCode.SUCCESS:
                found |= ResetOffsets.decode(answer.content).offset_table
            elif answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
                found |= await self._reset_offline(group, topic, data.broker_name, timestamp_ms)
            else:
                what = f"{data.broker_name}: {answer.remark or 'no reason given'}"
                raise RequestError(answer.code, what)
        return found

    async def _reset_offline(
        self, group: str, topic: str, broker_name: str, timestamp_ms: int
    ) -> dict[MessageQueue, int]:
        if group not in await self.groups():  # brokers before 5.x do not report that
            raise _no_such_group(group)
        found = {}
        for queue in await self.queues(topic):
            if queue.broker_name == broker_name:
                if timestamp_ms < 0:
                    offset = await self.offsets.end(queue)
                else:
                    offset = await self.offsets.at_time(queue, timestamp_ms)
                await self.offsets.commit(group, queue, offset)
                found[queue] = offset
        return found

    # -- messages -----------------------------------------------------------------------------

    async def resume_transaction(self, message_id: str) -> None:
        """Let a broker ask again for the outcome of a transaction that it has given up.

        If this is done twice and both are committed, the message is stored twice.

        Args:
            message_id: The id of the message in ``TRANS_CHECK_MAX_TIME_TOPIC``: the one of its
                record, or the one in the broker's log.
        """
        place = decode_message_id(text("message_id", message_id))
        address = await self._session.name_servers.listed(format_host(place.host))
        code = RequestCode.RESUME_CHECK_HALF_MESSAGE
        await self._session.ask(address, code, MessageIdHeader(message_id))

    async def find(
        self, topic: str, key: str, *, count: int = 32, begin_ms: int = 0, end_ms: int = LATEST
    ) -> list[Received]:
        """Return the messages of a topic with a key, in the order of their store times.

        Args:
            topic: The name of the topic.
            key: A key that the producer gave the messages, or the id of a message.
            count: The most messages per broker. Default: 32. Brokers return at most
                ``maxMsgsNumBatch`` of them, 64 by default.
            begin_ms: The earliest store time, in ms since 1970. Default: 0.
            end_ms: The latest store time, in ms since 1970. Default: no limit.

        Raises:
            RequestError: The topic does not exist.
        """
        header = QueryMessageHeader(
            text("topic", topic),
            text("key", key),
            number("count", count, 1, INT32_MAX),
            number("begin_ms", begin_ms),
            number("end_ms", end_ms),
        )
        found: list[Received] = []
        for data in (await self.route(topic)).broker_datas:
            if data.master is None:
                continue
            code = RequestCode.QUERY_MESSAGE
            answer = await self._session.request(data.master, code, header)
            if answer.code == ResponseCode.SUCCESS:
                anywhere = MessageQueue(topic, data.broker_name, 0)
                for message in decode_all(anywhere, answer.content):
                    # The index contains only hashes.
                    if key in message.keys or key == message.message_id:
                        queue = MessageQueue(topic, data.broker_name, message.record.queue_id)
                        found.append(Received(queue, message.record))
            elif answer.code != ResponseCode.QUERY_NOT_FOUND:
                raise RequestError(answer.code, answer.remark or "no reason given")
        return sorted(found, key=lambda message: message.record.store_time)

    async def view(self, offset_message_id: str) -> Received:
        """Return the message with an id that a broker assigned.

        Args:
            offset_message_id: The id, for example :attr:`SendResult.offset_message_id`.

        Raises:
            NoSuchError: The name server lists no broker with the address in the id.
            RequestError: The broker has no such message, for example because retention deleted it.
        """
        place = decode_message_id(text("offset_message_id", offset_message_id))
        header = ViewMessageHeader(place.physical_offset)
        code = RequestCode.VIEW_MESSAGE_BY_ID
        # An id is input: it must not make this client connect, and sign, to any other address.
        address = await self._session.name_servers.listed(format_host(place.host))
        answer = await self._session.ask(address, code, header)
        (message,) = decode_all(MessageQueue("", "", 0), answer.content)
        record = message.record
        return Received(MessageQueue(record.topic, "", record.queue_id), record)

    # -- settings of name servers -------------------------------------------------------------

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Store a value in all name servers.

        Args:
            namespace: The namespace of the key.
            key: The key.
            value: The value.
        """
        header = KVHeader(
            text("namespace", namespace), text("key", key), instance("value", value, str)
        )
        for address in self._session.name_servers.addresses:
            await self._session.ask(address, RequestCode.PUT_KV_CONFIG, header)

    async def get_kv(self, namespace: str, key: str) -> str:
        """Return a value that the name servers store.

        Args:
            namespace: The namespace of the key.
            key: The key.

        Raises:
            RequestError: There is no such key.
        """
        code = RequestCode.GET_KV_CONFIG
        header = KVHeader(text("namespace", namespace), text("key", key))
        answer = await self._session.name_servers.ask(code, header)
        return ValueResponse.decode(answer.fields).value

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Delete a value from all name servers.

        Args:
            namespace: The namespace of the key.
            key: The key.
        """
        header = KVHeader(text("namespace", namespace), text("key", key))
        for address in self._session.name_servers.addresses:
            await self._session.ask(address, RequestCode.DELETE_KV_CONFIG, header)


def _no_such_group(group: str) -> RequestError:
    what = f"no broker knows the group {group}; create_group creates it"
    return RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, what)
