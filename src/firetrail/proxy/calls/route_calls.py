"""QueryRoute and QueryAssignment: which queues a topic has, and where a client reaches them.

Clients reach every queue through the proxy. They are sent to the address that they have used: only
that one is known to work for a client in a container or on another network.
"""

from collections.abc import Awaitable, Iterator, Sequence
from ipaddress import ip_address

from firetrail.errors import ProxyError
from firetrail.format.message_types import IN_MIXED_TOPICS, type_of_topic
from firetrail.format.message_types import MessageType as TopicType
from firetrail.proxy.calls.resource_names import group_name, topic_name
from firetrail.proxy.calls.status_codes import OK
from firetrail.proxy.schema.messages import (
    Address,
    AddressScheme,
    Assignment,
    Broker,
    Code,
    Endpoints,
    MessageQueue,
    MessageType,
    Permission,
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueryRouteRequest,
    QueryRouteResponse,
    Resource,
)
from firetrail.proxy.transport.call import Call
from firetrail.proxy.upstream.grpc_clients import ProxyClient
from firetrail.proxy.upstream.interface import Brokers, resolved
from firetrail.remoting.connections.remoting_client import split_address
from firetrail.remoting.messages.bodies import MASTER_ID, QueueData, TopicConfig, TopicRouteData
from firetrail.remoting.messages.pop.pop_headers import ANY_QUEUE
from firetrail.remoting.wire.codes import Permission as TopicPermission

ADDRESSES_MAX = 64
"""Maximum number of addresses that a client may have used; they are repeated for every queue."""


class RouteCalls:
    """Handles QueryRoute and QueryAssignment."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    def route(
        self, call: Call, client: ProxyClient, request: QueryRouteRequest
    ) -> QueryRouteResponse | Awaitable[QueryRouteResponse]:
        """Return all queues of a topic. The topic is not created."""
        topic = topic_name(request.topic, self._brokers.reserved)
        endpoints = endpoints_of(call, request.endpoints)
        route = self._brokers.route(topic)
        if not isinstance(route, TopicRouteData):
            return self._route_later(topic, endpoints, route)
        config = self._brokers.topic(topic)
        if config is None or isinstance(config, TopicConfig):
            return _route_response(topic, endpoints, route, config)
        return self._route_later(topic, endpoints, route, config)

    async def _route_later(
        self,
        topic: str,
        endpoints: Endpoints,
        route: TopicRouteData | Awaitable[TopicRouteData],
        config: Awaitable[TopicConfig | None] | None = None,
    ) -> QueryRouteResponse:
        found = await resolved(route)
        if config is None:
            config = resolved(self._brokers.topic(topic))
        return _route_response(topic, endpoints, found, await config)

    async def assignment(
        self, call: Call, client: ProxyClient, request: QueryAssignmentRequest
    ) -> QueryAssignmentResponse:
        """Return the queues that a member of a group receives from: all, pops share the work.

        A member of a group that consumes in order receives from each queue by itself, and other
        members from all queues of a broker together.
        """
        topic = topic_name(request.topic, self._brokers.reserved)
        group = group_name(request.group)
        endpoints = endpoints_of(call, request.endpoints)
        route = await resolved(self._brokers.route(topic))
        config = await resolved(self._brokers.group(group))
        is_fifo = bool(config is not None and config.consume_message_orderly)
        assignments = [
            Assignment(
                message_queue=MessageQueue(
                    topic=Resource(name=topic),
                    id=queue_id,
                    permission=_permission(queues),
                    broker=Broker(name=queues.broker_name, id=MASTER_ID, endpoints=endpoints),
                )
            )
            for queues, found in route.open_queues(TopicPermission.READ, masters_only=True)
            for queue_id in (found if is_fifo else (ANY_QUEUE,))
        ]
        if not assignments:
            raise ProxyError(Code.FORBIDDEN, f"topic {topic} has no queue that can be read")
        return QueryAssignmentResponse(status=OK, assignments=assignments)


def _route_response(
    topic: str, endpoints: Endpoints, route: TopicRouteData, config: TopicConfig | None
) -> QueryRouteResponse:
    attributes = config.attributes if config is not None else None
    types = accepted_types(type_of_topic(attributes))
    brokers = {data.broker_name: data for data in route.broker_datas}
    queues = [
        MessageQueue(
            topic=Resource(name=topic),
            id=queue_id,
            permission=permission,
            broker=Broker(name=data.broker_name, id=broker_id, endpoints=endpoints),
            accept_message_types=types,
        )
        for data in route.queue_datas
        if data.broker_name in brokers
        for broker_id in sorted(brokers[data.broker_name].broker_addrs)
        for queue_id, permission in numbered_queues(data)
    ]
    return QueryRouteResponse(status=OK, message_queues=queues)


def numbered_queues(queues: QueueData) -> Iterator[tuple[int, Permission]]:
    """Yield the queues of a topic with the permissions of clients; as in Java, the surplus comes
    first."""
    if not queues.perm & (TopicPermission.READ | TopicPermission.WRITE):
        most = max(queues.read_queue_nums, queues.write_queue_nums, 1)
        yield from ((queue_id, Permission.NONE) for queue_id in range(most))
        return
    reads = len(queues.open_queues(TopicPermission.READ))
    writes = len(queues.open_queues(TopicPermission.WRITE))
    both = min(reads, writes)
    kinds = [
        *[Permission.READ] * (reads - both),
        *[Permission.WRITE] * (writes - both),
        *[Permission.READ_WRITE] * both,
    ]
    yield from enumerate(kinds)


def accepted_types(topic: TopicType) -> Sequence[MessageType]:
    """Return the types of messages that clients may send to a topic of a type."""
    if topic is TopicType.MIXED:
        return [MessageType[each.value] for each in IN_MIXED_TOPICS]
    if topic is TopicType.UNSPECIFIED:
        return [MessageType.MESSAGE_TYPE_UNSPECIFIED]
    return [MessageType[topic.value]]


def _permission(queues: QueueData) -> Permission:
    is_writable = queues.perm & TopicPermission.WRITE
    return Permission.READ_WRITE if is_writable else Permission.READ


def endpoints_of(call: Call, used: Endpoints) -> Endpoints:
    """Return the endpoints at which a client reaches the proxy.

    Args:
        call: The call of the client.
        used: The addresses that the client says it uses. They are used unless one of them is no
            address of a machine, such as 0.0.0.0.

    Raises:
        ProxyError: The addresses are not valid.
    """
    addresses = used.addresses
    if len(addresses) > ADDRESSES_MAX:
        raise ProxyError(
            Code.ILLEGAL_ACCESS_POINT,
            f"the request has {len(addresses)} addresses, the limit is {ADDRESSES_MAX}",
        )
    if addresses and not any(_is_wildcard(address.host) for address in addresses):
        return used
    host, port = split_address(call.local)
    scheme = AddressScheme.IPv6 if ":" in host else AddressScheme.IPv4
    return Endpoints(scheme=scheme, addresses=[Address(host=host, port=port)])


def _is_wildcard(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_unspecified
    except ValueError:  # the name of a machine
        return not host
