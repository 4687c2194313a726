"""Names of topics and groups, and sizes of messages, have the same limits in every way in.

Limits that differ on purpose are rows of their own, with the reason.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random

import pytest
from tests.broker.brokers import SMALL
from tests.proxy.services import code, message
from tests.rules.ways import REFUSED, Ways, all_ways, rows

from firetrail import Message, Store
from firetrail.client import Admin, SimpleConsumer, by_tags
from firetrail.client.cluster.client_arguments import checked_group
from firetrail.errors import ConfigError, IllegalMessageError, RequestError
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.layout import MAX_PROPERTIES
from firetrail.proxy.conversion.message_checks import PROPERTIES_SIZE_MAX
from firetrail.remoting.messages.bodies import SubscriptionGroupConfig
from firetrail.remoting.wire.codes import RequestCode

TAKEN = "taken"
Try = Callable[[Ways, str], Awaitable[object]]
TOPICS = rows(
    (TAKEN, "a", "a|b_c-D9", "NS%orders", "1", "x" * 127, "%RETRY%g"),
    (REFUSED, "", " ", "a b", "a.b", "a/b", "..", "a\n", "\na", "Zürich", "１", "a\0", "x" * 128),
)
GROUPS = rows(
    (TAKEN, "g", "NS%g", "a|b_c-D9", "x" * 120),
    (REFUSED, "", " ", "a b", "a.b", "g\n", "Zürich", "１", "x" * 121),
)
LARGEST = 5000
BODIES = {1: TAKEN, LARGEST: TAKEN, LARGEST + 1: REFUSED, LARGEST + 5000: REFUSED}
"""What becomes of bodies that cannot be compressed, by their size in bytes."""
PROPERTIES = {1: TAKEN, PROPERTIES_SIZE_MAX // 2: TAKEN, MAX_PROPERTIES: REFUSED}
"""The same for properties; brokers add some of their own."""


async def refusable(call: Awaitable[object]) -> str:
    try:
        await call
    except (ConfigError, IllegalMessageError, RequestError):
        return REFUSED
    return TAKEN


# -- topics -----------------------------------------------------------------------------------


async def send(ways: Ways, name: str) -> str:
    return TAKEN if (await ways.talk.send(name)).code == 0 else REFUSED


async def send_batch(ways: Ways, name: str) -> str:
    if name.startswith("%RETRY%"):
        return TAKEN  # these topics accept no batches, whatever their name
    body = encode_batch([BatchItem(0, b"x", b"")])
    return TAKEN if (await ways.talk.send(name, body, m=True)).code == 0 else REFUSED


async def create(ways: Ways, name: str) -> str:
    answer = await ways.talk.ask(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic=name,
        defaultTopic="TBW102",
        readQueueNums=1,
        writeQueueNums=1,
        perm=6,
        topicFilterType="SINGLE_TAG",
        order="false",
    )
    return TAKEN if answer.code == 0 else REFUSED


async def grpc_send(ways: Ways, name: str) -> str:
    sent = await ways.service.send(message(topic=name))
    return REFUSED if code(sent) == "ILLEGAL_TOPIC" else TAKEN


async def client_send(ways: Ways, name: str) -> str:
    return await refusable(ways.producer.send(Message(name, b"x")))


async def client_subscribe(ways: Ways, name: str) -> str:
    async def subscribe() -> None:
        by_tags(name)

    return await refusable(subscribe())


async def client_create(ways: Ways, name: str) -> str:
    async with Admin(ways.namesrv) as admin:
        return await refusable(admin.create_topic(name, 1))


def embedded(store: Store, name: str) -> str:
    try:
        store.put(Message(name, b"x"))
    except IllegalMessageError:
        return REFUSED
    return TAKEN


@pytest.fixture
async def ways(tmp_path: Path) -> AsyncIterator[Ways]:
    async with all_ways(tmp_path / "broker") as ways:
        yield ways


async def test_names_of_topics(ways: Ways, tmp_path: Path) -> None:
    every_way: list[Try] = [
        *(create, send, send_batch, grpc_send, client_send, client_create, client_subscribe)
    ]
    for way in every_way:
        assert {name: await way(ways, name) for name in TOPICS} == TOPICS, way
    with Store.open(tmp_path / "store") as store:
        assert {name: embedded(store, name) for name in TOPICS} == TOPICS


async def test_names_of_retry_topics(ways: Ways, tmp_path: Path) -> None:
    """They name a group and a topic, so brokers and stores accept 255 bytes; gRPC has no use for
    them."""
    names = rows(
        (TAKEN, "%RETRY%" + "x" * 248, "%DLQ%" + "x" * 250), (REFUSED, "%RETRY%" + "x" * 249)
    )
    assert {name: await create(ways, name) for name in names} == names
    with Store.open(tmp_path / "store") as store:
        assert {name: embedded(store, name) for name in names} == names


# -- groups -----------------------------------------------------------------------------------


async def create_group(ways: Ways, name: str) -> str:
    body = SubscriptionGroupConfig(name).encode()
    answer = await ways.talk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    return TAKEN if answer.code == 0 else REFUSED


async def pull(ways: Ways, name: str) -> str:
    await ways.talk.send("T")
    answer = await ways.talk.pull("T", consumerGroup=name)
    return REFUSED if "is illegal" in (answer.remark or "") else TAKEN


async def heartbeat(ways: Ways, name: str) -> str:
    answer = await ways.talk.beat(name, client_id=f"c{name}", subscriptions={"T": "*"})
    return TAKEN if answer.code == 0 else REFUSED


async def grpc_ack(ways: Ways, name: str) -> str:
    acknowledged = await ways.service.ack("handle", group=name)
    return REFUSED if code(acknowledged) == "ILLEGAL_CONSUMER_GROUP" else TAKEN


async def client_group(ways: Ways, name: str) -> str:
    async def join() -> None:
        SimpleConsumer(ways.namesrv, name, {"T": "*"})
        checked_group(name)

    return await refusable(join())


async def test_names_of_groups(ways: Ways) -> None:
    every_way: list[Try] = [create_group, pull, heartbeat, grpc_ack, client_group]
    for way in every_way:
        assert {name: await way(ways, name) for name in GROUPS} == GROUPS, way


# -- sizes ------------------------------------------------------------------------------------


async def sized(ways: Ways, store: Store, body: bytes, value: str) -> dict[str, str]:
    """Return what becomes of a message with a body and a property in each way."""
    answer = await ways.talk.send("T", body, i=f"p\x01{value}\x02")
    sent = await ways.service.send(message(body, properties={"p": value}))
    given = Message("T", body, properties={"p": value})
    found = {
        "remoting": TAKEN if answer.code == 0 else REFUSED,
        "gRPC": TAKEN if code(sent) == "OK" else REFUSED,
        "client": await refusable(ways.producer.send(given)),
        "embedded": TAKEN,
    }
    try:
        store.put(given)
    except IllegalMessageError:
        found["embedded"] = REFUSED
    return found


async def test_sizes(tmp_path: Path) -> None:
    limited = SMALL.replace(max_message_size=LARGEST)
    async with all_ways(tmp_path / "broker", store=limited) as ways:
        ways.create("T")
        with Store.open(tmp_path / "store", limited) as store:
            for size, outcome in BODIES.items():
                body = Random(size).randbytes(size)
                found = await sized(ways, store, body, "v")
                assert found == dict.fromkeys(found, outcome), size
            for size, outcome in PROPERTIES.items():
                found = await sized(ways, store, b"x", "v" * size)
                assert found == dict.fromkeys(found, outcome), size
            found = await sized(ways, store, b"x", "v" * (PROPERTIES_SIZE_MAX + 1))
            assert found.pop("gRPC") == REFUSED  # as in RocketMQ's proxy
            assert found == dict.fromkeys(found, TAKEN)
