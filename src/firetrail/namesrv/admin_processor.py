"""Requests of administrators to a name server: lists of topics, permissions, settings."""

from __future__ import annotations

from collections.abc import Mapping

from firetrail.errors import ConfigError, RequestError
from firetrail.format.files.java_properties import parse_properties
from firetrail.namesrv.name_server_config import CHANGEABLE
from firetrail.namesrv.state import NameServerState
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Answer, Handler
from firetrail.remoting.messages.bodies import KVTable, TopicList
from firetrail.remoting.messages.route_headers import (
    AddedResponse,
    BrokerNameHeader,
    ClusterHeader,
    DeleteRouteHeader,
    KVHeader,
    NamespaceHeader,
    ValueResponse,
    WipedResponse,
)
from firetrail.remoting.servers.large_answers import answer_with
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

UNIT = 1
"""Bit of a topic's system flags: the topic belongs to one unit of a deployment in several sites."""
UNIT_SUBSCRIBED = 2
"""Bit of a topic's system flags: consumers of a unit have subscribed to the topic."""


class AdminProcessor:
    """Handlers of administrative requests. They read and change the tables."""

    def __init__(self, state: NameServerState) -> None:
        self._state = state
        self._routes = state.routes
        self._kv = state.kv
        self.handlers: Mapping[int, Handler] = {
            RequestCode.PUT_KV_CONFIG: self.put_kv,
            RequestCode.GET_KV_CONFIG: self.get_kv,
            RequestCode.DELETE_KV_CONFIG: self.delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.list_kv,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.add_write,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.all_topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.cluster_topics,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self.unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self.unit_subscribed,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self.subscribed_only,
            RequestCode.UPDATE_NAMESRV_CONFIG: self.update_config,
            RequestCode.GET_NAMESRV_CONFIG: self.get_config,
        }

    # -- the key-value store ------------------------------------------------------------------

    async def put_kv(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Set a value."""
        header = KVHeader.decode(request.fields)
        if header.value is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the field value is missing")
        await self._kv.put(header.namespace, header.key, header.value)
        return request.answer()

    def get_kv(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return a value."""
        header = KVHeader.decode(request.fields)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            detail = f"no value for {header.key} in the namespace {header.namespace}"
            raise RequestError(ResponseCode.QUERY_NOT_FOUND, detail)
        return request.answer(fields=ValueResponse(value).encode())

    async def delete_kv(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Remove a value."""
        header = KVHeader.decode(request.fields)
        await self._kv.delete(header.namespace, header.key)
        return request.answer()

    def list_kv(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return all values of a namespace."""
        header = NamespaceHeader.decode(request.fields)
        table = self._kv.namespace(header.namespace)
        if table is None:
            detail = f"no namespace {header.namespace}"
            raise RequestError(ResponseCode.QUERY_NOT_FOUND, detail)
        return request.answer(body=KVTable(table).encode())

    # -- topics -------------------------------------------------------------------------------

    def wipe_write(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Remove the write permission of a broker; return how many topics it has."""
        name = BrokerNameHeader.decode(request.fields).broker_name
        count = self._routes.set_writable(name, False)
        return request.answer(fields=WipedResponse(count).encode())

    def add_write(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Give a broker its write permission back; return how many topics it has."""
        name = BrokerNameHeader.decode(request.fields).broker_name
        count = self._routes.set_writable(name, True)
        return request.answer(fields=AddedResponse(count).encode())

    def all_topics(self, connection: Connection, request: RemotingCommand) -> Answer:
        """Return the names of all topics."""
        if not self._state.config.all_topic_list:
            detail = "enableAllTopicList is false: this name server does not list all topics"
            raise RequestError(ResponseCode.SYSTEM_ERROR, detail)
        return _topics(request, self._routes.topics())

    def delete_topic(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Delete the route of a topic. The administrator asks the brokers to delete the topic."""
        header = DeleteRouteHeader.decode(request.fields)
        self._routes.delete_topic(header.topic, header.cluster_name or None)
        return request.answer()

    def cluster_topics(self, connection: Connection, request: RemotingCommand) -> Answer:
        """Return the topics of a cluster."""
        return _topics(request, self._routes.topics(ClusterHeader.decode(request.fields).cluster))

    def system_topics(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return the names of clusters and brokers, which are topics too, and a broker address."""
        clusters = self._routes.clusters()
        names = [
            n for cluster, some in clusters.cluster_addr_table.items() for n in (cluster, *some)
        ]
        addresses = (
            address
            for broker in clusters.broker_addr_table.values()
            for address in broker.broker_addrs.values()
        )
        return request.answer(body=TopicList(names, next(addresses, None)).encode())

    def unit_topics(self, connection: Connection, request: RemotingCommand) -> Answer:
        """Return the topics of a unit."""
        return _topics(request, self._routes.topics_with(lambda flag: bool(flag & UNIT)))

    def unit_subscribed(self, connection: Connection, request: RemotingCommand) -> Answer:
        """Return the topics that consumers of a unit have subscribed to."""
        wanted = self._routes.topics_with(lambda flag: bool(flag & UNIT_SUBSCRIBED))
        return _topics(request, wanted)

    def subscribed_only(self, connection: Connection, request: RemotingCommand) -> Answer:
        """Return the subscribed topics that do not belong to a unit."""
        wanted = self._routes.topics_with(
            lambda flag: flag & (UNIT | UNIT_SUBSCRIBED) == UNIT_SUBSCRIBED
        )
        return _topics(request, wanted)

    # -- the name server's own settings -------------------------------------------------------

    def update_config(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Change settings that may be changed at run time."""
        text = request.content.decode("utf-8", "replace")
        code = ResponseCode.INVALID_PARAMETER
        try:
            entries = parse_properties(text)
            if not entries.keys() <= set(CHANGEABLE):
                code = ResponseCode.NO_PERMISSION
            self._state.config = self._state.config.changed(entries)
            self._state.config.log_level.apply()
        except ConfigError as error:
            raise RequestError(code, str(error)) from None
        return request.answer()

    def get_config(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return all settings."""
        return request.answer(body=self._state.config.to_properties().encode())


def _topics(request: RemotingCommand, names: list[str]) -> Answer:
    """Return the topics that the sender may see."""

    def encode() -> bytes:
        seen = names if request.caller is None else request.caller.may_list(names)
        return TopicList(seen).encode()

    return answer_with(request, encode, len(names))
