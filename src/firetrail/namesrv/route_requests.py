"""Requests of brokers and clients to a name server: registration, routes, clusters."""

from collections.abc import Mapping

from firetrail.auth.caller import NO_PERMISSION
from firetrail.auth.resources import Action, ResourceType, need
from firetrail.errors import RequestError
from firetrail.namesrv.kv import ORDER_TOPICS
from firetrail.namesrv.routes import EXPIRY_MAX_S, EXPIRY_S, TOPICS_MAX, Registration
from firetrail.namesrv.state import NameServerState
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.messages.bodies import (
    MASTER_ID,
    BrokerMemberGroup,
    BrokerMemberGroupBody,
    DataVersion,
    KVTable,
    TopicRouteData,
)
from firetrail.remoting.messages.headers import (
    RegisterBrokerHeader,
    RegisterBrokerResponse,
    TopicHeader,
)
from firetrail.remoting.messages.registration_body import checksum, decode_registration
from firetrail.remoting.messages.route_headers import (
    BrokerGroupHeader,
    BrokerHeartbeatHeader,
    DataVersionResponse,
)
from firetrail.remoting.wire.codes import RequestCode, ResponseCode, Version
from firetrail.remoting.wire.command import RemotingCommand

FORMER = "another broker of this name, with a newer epoch, is or was the master"
"""The remark for a former master."""
YOUNG_S = 45.0
"""After this time a name server knows all brokers: they register every 30 s."""


class RouteProcessor:
    """Handlers of the requests of brokers and clients. They read and change the tables."""

    def __init__(self, state: NameServerState) -> None:
        self._state = state
        self._routes = state.routes
        self._kv = state.kv
        self._monotonic = state.clock.monotonic
        self._started = self._monotonic()
        self.handlers: Mapping[int, Handler] = {
            RequestCode.REGISTER_BROKER: self.register,
            RequestCode.UNREGISTER_BROKER: self.unregister,
            RequestCode.QUERY_DATA_VERSION: self.query_version,
            RequestCode.BROKER_HEARTBEAT: self.heartbeat,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self.register_topic,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.clusters,
            RequestCode.GET_BROKER_MEMBER_GROUP: self.members,
        }

    # -- from brokers -------------------------------------------------------------------------

    def register(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Register a broker with its topics; tell a follower the address of its master."""
        header = RegisterBrokerHeader.decode(request.fields)
        raw = request.content
        if header.body_crc32 and header.body_crc32 != checksum(raw):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the body has the CRC {checksum(raw)}, not {header.body_crc32}: it was damaged on "
                "the way; send it again",
            )
        body = decode_registration(raw, compressed=header.compressed)
        expiry_ms = header.heartbeat_timeout_millis
        who = Registration(
            cluster=header.cluster_name,
            name=header.broker_name,
            address=header.broker_addr,
            broker_id=header.broker_id,
            ha_address=header.ha_server_addr or "",
            expiry_s=min(expiry_ms / 1000, EXPIRY_MAX_S) if expiry_ms else EXPIRY_S,
            filter_servers=body.filter_server_list,
            user=request.caller.user_name if request.caller is not None else "",
        )
        if not (who.cluster and who.name and who.address):
            detail = "a registration needs the names of cluster and broker, and an address"
            raise RequestError(ResponseCode.SYSTEM_ERROR, detail)
        self._require_owner(request, who.name, who.broker_id, who.address)
        topics = body.topic_config_serialize_wrapper
        if refusal := self._routes.refusal(who, topics.topic_config_table):
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"broker {who.name:.255} is not registered: {refusal}. Remove unused ones",
            )
        rival = self._routes.register(who, topics, self._monotonic(), connection)
        former = self._routes.is_former(who, topics)
        return request.answer(
            remark=FORMER if former else self._state.duplicates.remark(who, rival),
            fields=self._master_for(who).encode(),
            body=self._order_topics(),
        )

    def _master_for(self, who: Registration) -> RegisterBrokerResponse:
        master = self._routes.master_of(who.name)
        version = self._routes.state_version(who.name) or None
        if who.broker_id == MASTER_ID or master is None:
            return RegisterBrokerResponse(state_version=version)
        address, ha_address = master
        return RegisterBrokerResponse(ha_address, address, version)

    def _order_topics(self) -> bytes:
        table = self._kv.namespace(ORDER_TOPICS)
        return KVTable(table).encode() if table and self._state.config.return_order_topics else b""

    def _require_owner(
        self, request: RemotingCommand, name: str, broker_id: int, address: str
    ) -> None:
        """Refuse a request about a broker that another user has registered.

        The cluster in the request is a claim: the one of the registered broker counts.
        """
        caller = request.caller
        if caller is None or not caller.is_checked or caller.is_super:
            return
        for broker in self._routes.registered(name, broker_id, address):
            caller.require(need(ResourceType.CLUSTER, broker.cluster, Action.UPDATE))
            if broker.user != caller.user_name:
                raise RequestError(
                    NO_PERMISSION,
                    f"broker {name:.255} with id {broker_id}, or the address {address:.255}, was "
                    "registered by another user; use that user, or stop the other broker first",
                )

    def unregister(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Remove a broker that stops."""
        header = RegisterBrokerHeader.decode(request.fields)
        self._require_owner(request, header.broker_name, header.broker_id, header.broker_addr)
        self._routes.unregister(header.broker_name, header.broker_id, header.broker_addr)
        return request.answer()

    def query_version(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Tell a broker whether it has to register its topics again. Counts as a heartbeat."""
        header = RegisterBrokerHeader.decode(request.fields)
        self._require_owner(request, header.broker_name, header.broker_id, header.broker_addr)
        changed = self._routes.is_changed(header.broker_addr, DataVersion.decode(request.content))
        if not changed:
            self._routes.heard_of(header.broker_addr, self._monotonic())
        known = self._routes.version_of(header.broker_addr)
        return request.answer(
            fields=DataVersionResponse(changed).encode(), body=known.encode() if known else b""
        )

    def heartbeat(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Note that a broker is alive."""
        header = BrokerHeartbeatHeader.decode(request.fields)
        broker_id = MASTER_ID if header.broker_id is None else header.broker_id
        self._require_owner(request, header.broker_name, broker_id, header.broker_addr)
        self._routes.heard_of(header.broker_addr, self._monotonic())
        return request.answer()

    def register_topic(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Add one topic of a registered broker."""
        header = TopicHeader.decode(request.fields)
        if not self._routes.has_room_for(header.topic):
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"topic {header.topic:.255} is not registered: there are {TOPICS_MAX} topics, which"
                " is the limit of a name server. Delete unused ones",
            )
        self._routes.add_topic(header.topic, TopicRouteData.decode(request.content).queue_datas)
        return request.answer()

    # -- from clients -------------------------------------------------------------------------

    def route(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return the route of a topic."""
        header = TopicHeader.decode(request.fields)
        route = self._routes.route(header.topic)
        if route is None:
            detail = f"No topic route info in name server for the topic: {header.topic}"
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, detail + self._age_hint())
        if self._state.config.order_message_enable:
            order = self._kv.get(ORDER_TOPICS, header.topic)
            route = TopicRouteData(
                route.queue_datas, route.broker_datas, route.filter_server_table, order
            )
        standard = takes_plain_json(request) or bool(header.accept_standard_json_only)
        return request.answer(body=route.encode(standard=standard))

    def _age_hint(self) -> str:
        """Return a hint that brokers may not have registered yet; empty after some time."""
        age = self._monotonic() - self._started
        if age >= YOUNG_S:
            return ""
        return f" (the name server started {age:.0f} s ago, and brokers may still register)"

    def clusters(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return all brokers by cluster."""
        body = self._routes.clusters().encode(standard=takes_plain_json(request))
        return request.answer(body=body)

    def members(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return the brokers of one name."""
        header = BrokerGroupHeader.decode(request.fields)
        data = self._routes.broker(header.broker_name)
        addresses = data.broker_addrs if data and data.cluster == header.cluster_name else {}
        group = BrokerMemberGroup(header.cluster_name, header.broker_name, addresses)
        body = BrokerMemberGroupBody(group).encode(standard=takes_plain_json(request))
        return request.answer(body=body)


def takes_plain_json(request: RemotingCommand) -> bool:
    """Whether the peer accepts integer keys in quotes; older versions need them without."""
    return request.version >= Version.V4_9_4
