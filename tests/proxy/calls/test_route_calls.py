"""QueryRoute and QueryAssignment: queues, permissions, types, addresses, and error codes."""

import pytest
from tests.proxy.fakes import FakeBrokers, FakeCall

from firetrail.errors import ProxyError, RequestError
from firetrail.format.message_types import MessageType as TopicType
from firetrail.proxy.calls.route_calls import (
    ADDRESSES_MAX,
    RouteCalls,
    accepted_types,
    endpoints_of,
    numbered_queues,
)
from firetrail.proxy.calls.status_codes import error_of
from firetrail.proxy.schema.messages import (
    Address,
    AddressScheme,
    Code,
    Endpoints,
    MessageType,
    Permission,
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueryRouteRequest,
    QueryRouteResponse,
    Resource,
)
from firetrail.proxy.upstream.grpc_clients import ProxyClient
from firetrail.proxy.upstream.interface import resolved
from firetrail.remoting.messages.bodies import (
    BrokerData,
    QueueData,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicRouteData,
)

USED = Endpoints(
    scheme=AddressScheme.DOMAIN_NAME, addresses=[Address(host="mq.example", port=9081)]
)
READ, WRITE = 4, 2


@pytest.fixture(params=["at once", "later"])
def brokers(request: pytest.FixtureRequest) -> FakeBrokers:
    return FakeBrokers(waits=request.param == "later")


async def route_of(
    brokers: FakeBrokers, topic: str, endpoints: Endpoints = USED
) -> QueryRouteResponse:
    request = QueryRouteRequest(topic=Resource(name=topic), endpoints=endpoints)
    return await resolved(RouteCalls(brokers).route(FakeCall(), ProxyClient("c"), request))


async def assignment_of(
    brokers: FakeBrokers, topic: str, group: str = "G"
) -> QueryAssignmentResponse:
    request = QueryAssignmentRequest(
        topic=Resource(name=topic), group=Resource(name=group), endpoints=USED
    )
    return await RouteCalls(brokers).assignment(FakeCall(), ProxyClient("c"), request)


async def test_a_route_has_one_entry_per_queue_and_broker(brokers: FakeBrokers) -> None:
    brokers.topics["T"] = TopicConfig("T", attributes={"message.type": "FIFO"})
    brokers.routes["T"] = TopicRouteData(
        [QueueData("a", 2, 2, READ | WRITE), QueueData("b", 1, 1, READ | WRITE)],
        [
            BrokerData("a", "C", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}),
            BrokerData("b", "C", {0: "x:1"}),
        ],
    )
    response = await route_of(brokers, "T")
    assert response.status.code == Code.OK
    assert [(each.broker.name, each.broker.id, each.id) for each in response.message_queues] == [
        *(("a", 0, 0), ("a", 0, 1), ("a", 1, 0), ("a", 1, 1), ("b", 0, 0))
    ]
    for queue in response.message_queues:
        assert queue.topic.name == "T"
        assert queue.permission == Permission.READ_WRITE
        assert list(queue.accept_message_types) == [MessageType.FIFO]
        assert queue.broker.endpoints == USED


async def test_a_route_without_attributes_is_for_normal_messages(brokers: FakeBrokers) -> None:
    brokers.add("T")
    (queue,) = (await route_of(brokers, "T")).message_queues
    assert list(queue.accept_message_types) == [MessageType.NORMAL]


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("", Code.ILLEGAL_TOPIC),
        ("a b", Code.ILLEGAL_TOPIC),
        ("TBW102", Code.ILLEGAL_TOPIC),
        ("own", Code.ILLEGAL_TOPIC),
        ("none", Code.TOPIC_NOT_FOUND),
    ],
)
async def test_routes_that_are_refused(brokers: FakeBrokers, topic: str, code: Code) -> None:
    brokers.reserved = {"own"}
    with pytest.raises((ProxyError, RequestError)) as caught:
        await route_of(brokers, topic)
    assert error_of(caught.value).code == code


@pytest.mark.parametrize(
    ("reads", "writes", "perm", "expected"),
    [
        (2, 2, READ | WRITE, "RW RW"),
        (3, 1, READ | WRITE, "R R RW"),
        (1, 3, READ | WRITE, "W W RW"),
        (2, 3, READ, "R R"),
        (2, 3, WRITE, "W W W"),
        (2, 3, 0, "- - -"),
        (0, 0, 0, "-"),
        (0, 0, READ | WRITE, ""),
    ],
)
def test_queues_are_numbered_as_in_java(reads: int, writes: int, perm: int, expected: str) -> None:
    signs = {
        Permission.READ: "R",
        Permission.WRITE: "W",
        Permission.READ_WRITE: "RW",
        Permission.NONE: "-",
    }
    found = list(numbered_queues(QueueData("a", reads, writes, perm)))
    assert " ".join(signs[permission] for _, permission in found) == expected
    assert [queue_id for queue_id, _ in found] == list(range(len(found)))


@pytest.mark.parametrize(
    ("topic", "accepted"),
    [
        (TopicType.NORMAL, "NORMAL"),
        (TopicType.DELAY, "DELAY"),
        (TopicType.PRIORITY, "PRIORITY"),
        (TopicType.MIXED, "NORMAL FIFO DELAY TRANSACTION"),
        (TopicType.UNSPECIFIED, "MESSAGE_TYPE_UNSPECIFIED"),
    ],
)
def test_accepted_types(topic: TopicType, accepted: str) -> None:
    assert [each.name for each in accepted_types(topic)] == accepted.split()


def one_address(host: str) -> Endpoints:
    return Endpoints(scheme=AddressScheme.IPv4, addresses=[Address(host=host, port=81)])


@pytest.mark.parametrize("host", ["10.1.2.3", "mq.example", "localhost", "fe80::1"])
def test_a_client_is_sent_to_the_address_that_it_uses(host: str) -> None:
    assert endpoints_of(FakeCall(), one_address(host)) == one_address(host)


@pytest.mark.parametrize("used", [Endpoints(), one_address("0.0.0.0"), one_address("::")])
def test_without_a_useful_address_the_local_one_counts(used: Endpoints) -> None:
    call = FakeCall()
    found = endpoints_of(call, used)
    assert (found.scheme, found.addresses[0]) == (
        AddressScheme.IPv4,
        Address(host="127.0.0.1", port=8081),
    )
    call.local = "[::1]:8081"
    found = endpoints_of(call, used)
    assert (found.scheme, found.addresses[0].host) == (AddressScheme.IPv6, "::1")


def test_the_number_of_addresses_is_limited() -> None:
    many = Endpoints(addresses=[Address(host="h", port=1)] * (ADDRESSES_MAX + 1))
    with pytest.raises(ProxyError, match="the limit is 64") as caught:
        endpoints_of(FakeCall(), many)
    assert caught.value.code == Code.ILLEGAL_ACCESS_POINT


async def test_members_receive_from_all_queues_of_a_broker_together(brokers: FakeBrokers) -> None:
    brokers.add("T", queues=4)
    response = await assignment_of(brokers, "T", "unknown")
    assert response.status.code == Code.OK
    (assignment,) = response.assignments
    queue = assignment.message_queue
    assert (queue.topic.name, queue.id, queue.broker.name) == ("T", -1, "broker-a")
    assert queue.permission == Permission.READ_WRITE
    assert queue.broker.endpoints == USED
    assert not queue.accept_message_types


async def test_members_of_ordered_groups_receive_from_each_queue(brokers: FakeBrokers) -> None:
    brokers.add("T", queues=3)
    brokers.groups["G"] = SubscriptionGroupConfig("G", consume_message_orderly=True)
    response = await assignment_of(brokers, "T")
    assert [each.message_queue.id for each in response.assignments] == [0, 1, 2]


@pytest.mark.parametrize(
    ("topic", "group", "code"),
    [
        ("", "G", Code.ILLEGAL_TOPIC),
        ("T", "", Code.ILLEGAL_CONSUMER_GROUP),
        ("T", "CID_RMQ_SYS_X", Code.ILLEGAL_CONSUMER_GROUP),
        ("none", "G", Code.TOPIC_NOT_FOUND),
        ("written", "G", Code.FORBIDDEN),
        ("orphan", "G", Code.FORBIDDEN),
    ],
)
async def test_assignments_that_are_refused(
    brokers: FakeBrokers, topic: str, group: str, code: Code
) -> None:
    brokers.add("T")
    brokers.add("written", perm=WRITE)
    brokers.add("orphan", broker_id=1)
    with pytest.raises((ProxyError, RequestError)) as caught:
        await assignment_of(brokers, topic, group)
    assert error_of(caught.value).code == code


async def test_an_assignment_says_that_a_queue_can_only_be_read(brokers: FakeBrokers) -> None:
    brokers.add("T", perm=READ)
    (assignment,) = (await assignment_of(brokers, "T")).assignments
    assert assignment.message_queue.permission == Permission.READ
