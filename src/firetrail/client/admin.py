"""Administration of a cluster: topics, groups, offsets, messages, settings."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from firetrail.client.arguments import INT32_MAX, check_settings, checked_address, checked_group
from firetrail.client.cluster_client import ClusterClient
from firetrail.client.offsets import Offsets
from firetrail.client.received import Received, decode_all
from firetrail.client.session import queues_of
from firetrail.errors import NoRouteYetError, RequestError
from firetrail.format.arguments import instance, number, text, truth
from firetrail.format.hosts import format_host
from firetrail.format.ids import decode_message_id
from firetrail.format.java_properties import parse_properties
from firetrail.format.names import AUTO_CREATE_TOPIC, check_topic
from firetrail.remoting.admin_bodies import (
    ConsumerConnection,
    ConsumeStats,
    ProducerConnection,
    ResetOffsets,
    TopicStats,
)
from firetrail.remoting.admin_headers import (
    ConsumeStatsHeader,
    DeleteGroupHeader,
    MessageIdHeader,
    ProducerGroupHeader,
)
from firetrail.remoting.bodies import (
    ClusterInfo,
    GroupList,
    KVTable,
    MessageQueue,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicRouteData,
)
from firetrail.remoting.codes import Permission, RequestCode, ResponseCode
from firetrail.remoting.command import Command
from firetrail.remoting.header import Header
from firetrail.remoting.headers import (
    CreateTopicHeader,
    GroupHeader,
    QueryMessageHeader,
    ResetOffsetHeader,
    TopicHeader,
    ViewMessageHeader,
)
from firetrail.remoting.route_headers import (
    AddedResponse,
    BrokerNameHeader,
    DeleteRouteHeader,
    KVHeader,
    ValueResponse,
    WipedResponse,
)

LATEST = (1 << 63) - 1
"""A time after all messages."""
PERM_MAX = 15
"""All bits of a topic's permissions."""


class Admin(ClusterClient):
    """Looks at a cluster and changes it::

        async with Admin("127.0.0.1:9876") as admin:
            await admin.create_topic("orders", queues=8)

    What concerns all brokers is done on every master, or raises what the first one said that could
    not do it.
    """

    def __init__(self, namesrv: str | Sequence[str]) -> None:
        super().__init__(namesrv)
        self.offsets = Offsets(self._session)
        """Offsets of the queues of :meth:`queues`."""

    # -- brokers ------------------------------------------------------------------------------

    async def cluster(self) -> ClusterInfo:
        """All brokers."""
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        return ClusterInfo.decode((await self._session.ask_name_server(code)).content)

    async def masters(self, cluster: str | None = None) -> dict[str, str]:
        """Names and addresses of the brokers that take messages."""
        if cluster is not None:
            text("cluster", cluster)
        info = await self.cluster()
        return {
            name: data.master
            for name, data in sorted(info.broker_addr_table.items())
            if data.master is not None and cluster in (None, data.cluster)
        }

    async def runtime_info(self, address: str) -> dict[str, str]:
        """What a broker says about itself."""
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        answer = await self._session.ask(checked_address(address), code)
        return KVTable.decode(answer.content).table

    async def broker_config(self, address: str) -> dict[str, str]:
        """The settings of a broker."""
        answer = await self._session.ask(checked_address(address), RequestCode.GET_BROKER_CONFIG)
        entries = parse_properties(answer.content.decode("utf-8", "replace"))
        return {key: entry.text for key, entry in entries.items()}

    async def update_broker_config(self, address: str, settings: Mapping[str, str]) -> None:
        """Change settings of a broker, of those that it lets be changed."""
        checked_address(address)
        check_settings(settings)
        body = "".join(f"{key}={value}\n" for key, value in settings.items()).encode()
        await self._session.ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def set_writable(self, broker_name: str, writable: bool) -> int:
        """Let clients send messages to a broker, or not; how many topics it has."""
        header = BrokerNameHeader(text("broker_name", broker_name))
        truth("writable", writable)
        names = sorted((await self.cluster()).broker_addr_table)
        if broker_name not in names:
            what = f"the name server knows no broker {broker_name}, only: {', '.join(names)}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, what)
        if writable:
            code = RequestCode.ADD_WRITE_PERM_OF_BROKER
            answer = await self._session.ask_name_server(code, header)
            return AddedResponse.decode(answer.fields).add_topic_count
        code = RequestCode.WIPE_WRITE_PERM_OF_BROKER
        answer = await self._session.ask_name_server(code, header)
        return WipedResponse.decode(answer.fields).wipe_topic_count

    async def _masters_to_change(self, cluster: str | None = None) -> dict[str, str]:
        """The masters; RequestError if there are none: a change that nobody makes is not made."""
        masters = await self.masters(cluster)
        if not masters:
            what = f"no master in the cluster {cluster}" if cluster else "no broker is there"
            raise RequestError(ResponseCode.SYSTEM_ERROR, what)
        return masters

    async def _addresses(self) -> Iterable[str]:
        return (await self._masters_to_change()).values()

    async def _everywhere(
        self,
        code: RequestCode,
        header: Header | None = None,
        body: bytes = b"",
        addresses: Iterable[str] | None = None,
    ) -> list[Command]:
        targets = (await self.masters()).values() if addresses is None else addresses
        asked = (self._session.ask(address, code, header, body) for address in targets)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if isinstance(answer, Command)]

    # -- topics -------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """The names of all topics."""
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        answer = await self._session.ask_name_server(code)
        return sorted(TopicList.decode(answer.content).topic_list)

    async def route(self, topic: str) -> TopicRouteData:
        """Where the queues of a topic are."""
        return await self._session.route(text("topic", topic), fresh=True)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be read."""
        return queues_of(topic, await self.route(topic), Permission.READ)

    async def create_topic(
        self,
        topic: str,
        queues: int = 8,
        *,
        perm: Permission = Permission.READ | Permission.WRITE,
        order: bool = False,
        cluster: str | None = None,
        attributes: str | None = None,
    ) -> None:
        """Make a topic, or change it, with so many queues on every master (of a cluster).

        Returns when the name server knows it.
        """
        check_topic(text("topic", topic))
        number("queues", queues, 1, INT32_MAX)
        number("perm", perm, most=PERM_MAX)
        truth("order", order)
        if attributes is not None:
            instance("attributes", attributes, str)
        header = CreateTopicHeader(
            topic, AUTO_CREATE_TOPIC, queues, queues, int(perm), "SINGLE_TAG", 0, order, attributes
        )
        masters = await self._masters_to_change(cluster)
        code = RequestCode.UPDATE_AND_CREATE_TOPIC
        await self._everywhere(code, header, addresses=masters.values())
        await self._known(topic, masters)

    async def _known(self, topic: str, brokers: Iterable[str]) -> None:
        """Wait until the name server knows a topic on these brokers."""
        while True:
            try:
                route = await self.route(topic)
            except RequestError as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
            else:
                if set(brokers) <= {data.broker_name for data in route.queue_datas}:
                    return
            await asyncio.sleep(0.05)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic, on brokers and name servers.

        RequestError if there was no such topic. What an earlier deletion, which was interrupted,
        may have left is deleted all the same.
        """
        text("topic", topic)
        addresses = await self._addresses()
        missing: RequestError | None = None
        try:
            await self.route(topic)
        except RequestError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST or isinstance(error, NoRouteYetError):
                raise
            missing = error
        code = RequestCode.DELETE_TOPIC_IN_BROKER
        await self._everywhere(code, TopicHeader(topic), addresses=addresses)
        for address in self._session.name_servers:
            header = DeleteRouteHeader(topic)
            await self._session.ask(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, header)
        self._session.forget_route(topic)
        if missing is not None:
            raise missing

    async def topic_configs(self, address: str) -> dict[str, TopicConfig]:
        """The topics of a broker."""
        code = RequestCode.GET_ALL_TOPIC_CONFIG
        answer = await self._session.ask(checked_address(address), code)
        return TopicConfigTable.decode(answer.content).topic_config_table

    async def topic_stats(self, topic: str) -> TopicStats:
        """How far the queues of a topic reach."""
        text("topic", topic)
        code = RequestCode.GET_TOPIC_STATS_INFO
        found: TopicStats = TopicStats()
        for answer in await self._on_brokers_of(topic, code, TopicHeader(topic)):
            found.offset_table.update(TopicStats.decode(answer.content).offset_table)
        return found

    async def groups_of(self, topic: str) -> list[str]:
        """The groups that consume a topic."""
        text("topic", topic)
        code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
        answers = await self._on_brokers_of(topic, code, TopicHeader(topic))
        return sorted({g for a in answers for g in GroupList.decode(a.content).group_list})

    async def _on_brokers_of(self, topic: str, code: RequestCode, header: Header) -> list[Command]:
        route = await self.route(topic)
        addresses = [data.master for data in route.broker_datas if data.master]
        return await self._everywhere(code, header, addresses=addresses)

    # -- groups -------------------------------------------------------------------------------

    async def groups(self) -> dict[str, SubscriptionGroupConfig]:
        """All consumer groups; the settings are those of one of the brokers that have it."""
        found: dict[str, SubscriptionGroupConfig] = {}
        for answer in await self._everywhere(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG):
            found |= SubscriptionGroupTable.decode(answer.content).subscription_group_table
        return found

    async def create_group(self, group: SubscriptionGroupConfig | str) -> None:
        """Make a consumer group, or change it, on every master."""
        config = SubscriptionGroupConfig(group) if isinstance(group, str) else group
        checked_group(instance("group", config, SubscriptionGroupConfig).group_name)
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self._everywhere(code, body=config.encode(), addresses=await self._addresses())

    async def delete_group(self, group: str, *, offsets: bool = True) -> None:
        """Delete a consumer group, and its offsets.

        RequestError if there was no such group; offsets that one may have left are deleted all the
        same.
        """
        header = DeleteGroupHeader(text("group", group), truth("offsets", offsets))
        is_known = group in await self.groups()
        code = RequestCode.DELETE_SUBSCRIPTIONGROUP
        await self._everywhere(code, header, addresses=await self._addresses())
        if not is_known:
            raise _unknown(group)

    async def consume_stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """How far a group is, in one topic or in all that it consumes."""
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
        """The members of a group that are connected to a broker."""
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        header = GroupHeader(text("group", group))
        answer = await self._session.ask(checked_address(address), code, header)
        return ConsumerConnection.decode(answer.content)

    async def producers(self, group: str, address: str) -> ProducerConnection:
        """The producers of a group that are connected to a broker."""
        code = RequestCode.GET_PRODUCER_CONNECTION_LIST
        header = ProducerGroupHeader(text("group", group))
        answer = await self._session.ask(checked_address(address), code, header)
        return ProducerConnection.decode(answer.content)

    async def reset_offsets(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Let a group go on at a time: -1 for the end. The new offsets.

        Members that are connected are told so. Without ``force``, offsets only go back.
        RequestError if a broker does not know the topic or the group.
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
        if group not in await self.groups():  # brokers before 5.x do not say so
            raise _unknown(group)
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
        """Let a broker ask again about a transaction that it has given up.

        ``message_id`` is that of the message in ``TRANS_CHECK_MAX_TIME_TOPIC`` (its record's, or
        the one in the broker's log). Doing it twice stores the message twice if both are committed.
        """
        address = format_host(decode_message_id(text("message_id", message_id)).host)
        code = RequestCode.RESUME_CHECK_HALF_MESSAGE
        await self._session.ask(address, code, MessageIdHeader(message_id))

    async def find(
        self, topic: str, key: str, *, count: int = 32, begin_ms: int = 0, end_ms: int = LATEST
    ) -> list[Received]:
        """The messages of a topic with a key, in the order of their times."""
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
                    if key in message.keys:  # the index knows hashes only
                        queue = MessageQueue(topic, data.broker_name, message.record.queue_id)
                        found.append(Received(queue, message.record))
            elif answer.code != ResponseCode.QUERY_NOT_FOUND:
                raise RequestError(answer.code, answer.remark or "no reason given")
        return sorted(found, key=lambda message: message.record.store_time)

    async def view(self, offset_message_id: str) -> Received:
        """The message with the id that a broker gave it."""
        place = decode_message_id(text("offset_message_id", offset_message_id))
        header = ViewMessageHeader(place.physical_offset)
        code = RequestCode.VIEW_MESSAGE_BY_ID
        answer = await self._session.ask(format_host(place.host), code, header)
        (message,) = decode_all(MessageQueue("", "", 0), answer.content)
        record = message.record
        return Received(MessageQueue(record.topic, "", record.queue_id), record)

    # -- settings of name servers -------------------------------------------------------------

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Let all name servers keep a value."""
        header = KVHeader(
            text("namespace", namespace), text("key", key), instance("value", value, str)
        )
        for address in self._session.name_servers:
            await self._session.ask(address, RequestCode.PUT_KV_CONFIG, header)

    async def get_kv(self, namespace: str, key: str) -> str:
        """A value that name servers keep; RequestError if there is none."""
        code = RequestCode.GET_KV_CONFIG
        header = KVHeader(text("namespace", namespace), text("key", key))
        answer = await self._session.ask_name_server(code, header)
        return ValueResponse.decode(answer.fields).value

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Let all name servers forget a value."""
        header = KVHeader(text("namespace", namespace), text("key", key))
        for address in self._session.name_servers:
            await self._session.ask(address, RequestCode.DELETE_KV_CONFIG, header)


def _unknown(group: str) -> RequestError:
    what = f"no broker knows the group {group}; create_group creates it"
    return RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, what)
