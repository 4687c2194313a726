"""Administration of brokers and topics, the base of :class:`firetrail.client.Admin`."""

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial

from firetrail.client.cluster.client_arguments import check_settings, checked_address
from firetrail.client.cluster.cluster_client import ClusterClient
from firetrail.client.cluster.topic_route import queues_of
from firetrail.errors import NoRouteYetError, RequestError
from firetrail.format.files.java_properties import parse_properties
from firetrail.format.message_types import TYPE_ATTRIBUTE, MessageType
from firetrail.format.names import AUTO_CREATE_TOPIC, check_topic
from firetrail.format.values.arguments import instance, number, text, truth
from firetrail.format.values.integers import INT32_MAX
from firetrail.remoting.connections.remoting_client import REQUEST_S
from firetrail.remoting.messages.admin.admin_bodies import TopicStats
from firetrail.remoting.messages.bodies import (
    ClusterInfo,
    GroupList,
    KVTable,
    MessageQueue,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicRouteData,
)
from firetrail.remoting.messages.headers import CreateTopicHeader, TopicHeader
from firetrail.remoting.messages.route_headers import (
    AddedResponse,
    BrokerNameHeader,
    DeleteRouteHeader,
    WipedResponse,
)
from firetrail.remoting.messages.typed_header import Header
from firetrail.remoting.wire.codes import Permission, RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

PERM_MAX = 15
"""All bits of a topic's permissions."""
ROUTE_POLL_S = 0.05
"""Interval at which the name server is asked whether it knows a new topic."""


class TopicAdmin(ClusterClient):
    """The part of :class:`Admin` for brokers and topics."""

    # -- brokers ------------------------------------------------------------------------------

    async def cluster(self) -> ClusterInfo:
        """Return all brokers and clusters that the name server knows."""
        return await self._session.name_servers.clusters()

    async def masters(self, cluster: str | None = None) -> dict[str, str]:
        """Return the names and addresses of all masters, the brokers that accept messages.

        Args:
            cluster: The name of a cluster. Default: all clusters.
        """
        if cluster is not None:
            text("cluster", cluster)
        info = await self.cluster()
        return {
            name: data.master
            for name, data in sorted(info.broker_addr_table.items())
            if data.master is not None and cluster in (None, data.cluster)
        }

    async def runtime_info(self, address: str) -> dict[str, str]:
        """Return the version, the statistics and the state that a broker reports.

        Args:
            address: The address ``host:port`` of the broker.
        """
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        answer = await self._session.ask(checked_address(address), code)
        return KVTable.decode(answer.content).table

    async def broker_config(self, address: str) -> dict[str, str]:
        """Return the settings of a broker, by their keys in ``broker.conf``.

        Args:
            address: The address ``host:port`` of the broker.
        """
        answer = await self._session.ask(checked_address(address), RequestCode.GET_BROKER_CONFIG)
        entries = parse_properties(answer.content.decode("utf-8", "replace"))
        return {key: entry.text for key, entry in entries.items()}

    async def update_broker_config(self, address: str, settings: Mapping[str, str]) -> None:
        """Change settings of a running broker.

        Args:
            address: The address ``host:port`` of the broker.
            settings: The new values, by their keys in ``broker.conf``.

        Raises:
            RequestError: The broker rejects a value, or a key that cannot be changed at run time.
        """
        checked_address(address)
        check_settings(settings)
        body = "".join(f"{key}={value}\n" for key, value in settings.items()).encode()
        await self._session.ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def set_writable(self, broker_name: str, writable: bool) -> int:
        """Allow or forbid clients to send messages to a broker; return how many topics it has.

        Args:
            broker_name: The name of the broker.
            writable: Whether clients may send to it.

        Raises:
            RequestError: The name server does not know the broker.
        """
        header = BrokerNameHeader(text("broker_name", broker_name))
        truth("writable", writable)
        names = sorted((await self.cluster()).broker_addr_table)
        if broker_name not in names:
            what = f"the name server does not know broker {broker_name}, only: {', '.join(names)}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, what)
        if writable:
            code = RequestCode.ADD_WRITE_PERM_OF_BROKER
            answer = await self._session.name_servers.ask(code, header)
            return AddedResponse.decode(answer.fields).add_topic_count
        code = RequestCode.WIPE_WRITE_PERM_OF_BROKER
        answer = await self._session.name_servers.ask(code, header)
        return WipedResponse.decode(answer.fields).wipe_topic_count

    async def _masters_to_change(self, cluster: str | None = None) -> dict[str, str]:
        """Return the masters; raise RequestError if there are none, as a change has no effect."""
        masters = await self.masters(cluster)
        if not masters:
            where = f" in the cluster {cluster}" if cluster else ""
            what = f"no master has registered at the name server{where}; is a broker running?"
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
    ) -> list[RemotingCommand]:
        """Send a request to all masters, or to the addresses; raise the first failure.

        A broker that is registered but cannot be reached may be restarting: wait for it.
        """
        targets = (await self.masters()).values() if addresses is None else addresses
        asked = (
            self._backoff.until_reached(
                partial(self._session.ask, address, code, header, body), REQUEST_S
            )
            for address in targets
        )
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if isinstance(answer, RemotingCommand)]

    # -- topics -------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """Return the sorted names of all topics."""
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        answer = await self._session.name_servers.ask(code)
        return sorted(TopicList.decode(answer.content).topic_list)

    async def system_topics(self) -> set[str]:
        """Return the names that brokers and name servers use themselves.

        They are the internal topics of brokers, and the names of clusters and brokers, which have
        routes, too.
        """
        code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS
        answers = [await self._session.name_servers.ask(code)]
        answers += await self._everywhere(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        return {name for answer in answers for name in TopicList.decode(answer.content).topic_list}

    async def route(self, topic: str) -> TopicRouteData:
        """Return the brokers of a topic and how many queues each has.

        Args:
            topic: The name of the topic.

        Raises:
            RequestError: The topic does not exist.
        """
        return await self._session.route(text("topic", topic), fresh=True)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic.

        Args:
            topic: The name of the topic.

        Raises:
            RequestError: The topic does not exist.
        """
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
        message_type: MessageType | None = None,
    ) -> None:
        """Create a topic, or change it, on every master; return when the name server knows it.

        Args:
            topic: The name of the topic.
            queues: The number of queues on each master. Default: 8.
            perm: The permissions of clients. Default: read and write.
            order: RocketMQ's mark for ordered topics; storing is not affected. Default: False.
            cluster: The name of a cluster. Default: all clusters.
            attributes: RocketMQ's attributes of topics, for example ``+reserve.time=3600``. They
                are added to those that the topic has. Default: none.
            message_type: The type of messages that the topic is for. gRPC clients can send only
                these. Default: no change; a new topic is for NORMAL messages.

        Raises:
            RequestError: There is no master, or one of them rejects the topic.
        """
        check_topic(text("topic", topic))
        number("queues", queues, 1, INT32_MAX)
        number("perm", perm, most=PERM_MAX)
        truth("order", order)
        if attributes is not None:
            instance("attributes", attributes, str)
        if message_type is not None:
            instance("message_type", message_type, MessageType)
            attributes = ",".join(filter(None, (f"+{TYPE_ATTRIBUTE}={message_type}", attributes)))
        header = CreateTopicHeader(
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=int(perm),
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=order,
            attributes=attributes,
        )
        masters = await self._masters_to_change(cluster)
        code = RequestCode.UPDATE_AND_CREATE_TOPIC
        await self._everywhere(code, header, addresses=masters.values())
        await self._wait_for_route(topic, masters)

    async def _wait_for_route(self, topic: str, brokers: Iterable[str]) -> None:
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
            await asyncio.sleep(ROUTE_POLL_S)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic from all brokers and name servers.

        Args:
            topic: The name of the topic.

        Raises:
            RequestError: The topic did not exist. Remains of an earlier deletion that was
                interrupted are deleted nevertheless.
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
        for address in self._session.name_servers.addresses:
            header = DeleteRouteHeader(topic)
            await self._session.ask(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, header)
        self._session.forget_route(topic)
        if missing is not None:
            raise missing

    async def topic_configs(self, address: str) -> dict[str, TopicConfig]:
        """Return the topics of a broker and their settings.

        Args:
            address: The address ``host:port`` of the broker.
        """
        code = RequestCode.GET_ALL_TOPIC_CONFIG
        answer = await self._session.ask(checked_address(address), code)
        return TopicConfigTable.decode(answer.content).topic_config_table

    async def topic_types(self, topic: str | None = None) -> dict[str, dict[str, str]]:
        """Return the message types of the topics that have one, by topic and broker name.

        Args:
            topic: The name of a topic, to ask only its brokers. Default: all topics.

        Raises:
            RequestError: The topic does not exist.
        """
        if topic is None:
            masters = await self.masters()
        else:
            datas = (await self.route(topic)).broker_datas
            masters = {data.broker_name: data.master for data in datas if data.master}
        found: dict[str, dict[str, str]] = {}
        for broker, address in masters.items():
            for name, config in (await self.topic_configs(address)).items():
                kind = (config.attributes or {}).get(TYPE_ATTRIBUTE)
                if kind and topic in (None, name):
                    found.setdefault(name, {})[broker] = kind
        return found

    async def topic_stats(self, topic: str) -> TopicStats:
        """Return the first and last offset and the time of the last message of each queue.

        Args:
            topic: The name of the topic.

        Raises:
            RequestError: The topic does not exist.
        """
        text("topic", topic)
        code = RequestCode.GET_TOPIC_STATS_INFO
        found: TopicStats = TopicStats()
        for answer in await self._on_brokers_of(topic, code, TopicHeader(topic)):
            found.offset_table.update(TopicStats.decode(answer.content).offset_table)
        return found

    async def groups_of(self, topic: str) -> list[str]:
        """Return the sorted names of the groups that consume a topic.

        Args:
            topic: The name of the topic.

        Raises:
            RequestError: The topic does not exist.
        """
        text("topic", topic)
        code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
        answers = await self._on_brokers_of(topic, code, TopicHeader(topic))
        return sorted({g for a in answers for g in GroupList.decode(a.content).group_list})

    async def _on_brokers_of(
        self, topic: str, code: RequestCode, header: Header
    ) -> list[RemotingCommand]:
        route = await self.route(topic)
        addresses = [data.master for data in route.broker_datas if data.master]
        return await self._everywhere(code, header, addresses=addresses)
