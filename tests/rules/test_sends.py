"""A message is stored, delayed and delivered alike, whichever way it takes in and out."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from tests.broker.brokers import SMALL
from tests.proxy.services import at, code, message
from tests.rules.ways import REFUSED, Ways, all_ways, grpc_pull, spark

from firetrail import Message, Store
from firetrail.client import MessageQueue, RequestError
from firetrail.errors import FormatError
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.compression import inflated
from firetrail.format.files.timer import TIMER_TOPIC
from firetrail.format.layout import COMPRESSED
from firetrail.format.names import SCHEDULE_TOPIC
from firetrail.format.record import Record
from firetrail.format.values.ids import decode_message_id
from firetrail.proxy.schema.messages import Encoding, MessageType
from firetrail.remoting.messages.bodies import TopicConfig
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.system import SYSTEM

DAY_MS = 86_400_000


class Sent(NamedTuple):
    """A message of a client."""

    body: bytes = b"x"
    tags: str | None = None
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = {}

    @property
    def text(self) -> str:
        """The properties as a remoting client encodes them."""
        named = {"KEYS": " ".join(self.keys), "TAGS": self.tags or "", **self.properties}
        return "".join(f"{name}\x01{value}\x02" for name, value in named.items() if value)

    @property
    def message(self) -> Message:
        return Message("T", self.body, self.tags, self.keys, self.properties)


MESSAGES = [
    Sent(),
    Sent(tags="A", keys=("k1",), properties={"n": "1"}),
    Sent(keys=("k1", "k2", "k1")),
    Sent("Zürich".encode(), "Straße", ("ключ",), {"名": "值"}),
    Sent(b"\0" * 6000, " A "),
    Sent(Random(1).randbytes(6000), "a || b", ("#", "k#1"), {"a b": " c ", "x=y": "|"}),
]
EVERY_KEY = sorted({key for each in MESSAGES for key in each.keys})


@pytest.fixture
async def ways(tmp_path: Path) -> AsyncIterator[Ways]:
    async with all_ways(tmp_path / "broker") as ways:
        for topic in ("remoting", "gRPC", "client"):
            ways.create(topic)
        yield ways


async def send_in_all_ways(ways: Ways, sent: Sent) -> None:
    """Send a message to a topic with the name of the way."""
    assert (await ways.talk.send("remoting", sent.body, i=sent.text)).code == 0
    named: dict[str, Any] = {"keys": sent.keys, "properties": dict(sent.properties)}
    if sent.tags:
        named["tag"] = sent.tags
    if "|" not in (sent.tags or ""):  # as in RocketMQ's proxy
        assert code(await ways.service.send(message(sent.body, "gRPC", **named))) == "OK"
    given = sent.message
    given.topic = "client"
    await ways.producer.send(given)


def content(record: Record) -> tuple[object, ...]:
    plain = bytes(record.body)
    if record.sys_flag & COMPRESSED:
        plain = inflated(plain, record.sys_flag)
    named = record.properties
    user = {name: value for name, value in named.items() if name in {"n", "名", "a b", "x=y"}}
    return plain, named.get("TAGS"), named.get("KEYS"), user


async def test_messages_are_stored_alike(ways: Ways, tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", SMALL) as store:
        for sent in MESSAGES:
            store.put(sent.message)
            await send_in_all_ways(ways, sent)
        stored = [content(record) for record in store.read("T")]
        by_key = {key: len(store.query("T", key)) for key in EVERY_KEY}
    await ways.dispatched()
    broker = ways.talk.broker.store
    assert [content(record) for record in broker.read("remoting")] == stored
    assert [content(record) for record in broker.read("client")] == stored
    assert [content(record) for record in broker.read("gRPC")] == stored[:-1]
    for topic in ("remoting", "client"):
        assert {key: len(broker.query(topic, key)) for key in EVERY_KEY} == by_key
    assert [row[1:] for row in stored] == [
        (each.tags, " ".join(each.keys) or None, each.properties) for each in MESSAGES
    ]


# -- compressed bodies ------------------------------------------------------------------------

PLAIN = b"plain" * 100
DAMAGED = b"damaged"
ZLIB = zlib.compress(PLAIN)
COMPRESSED_BODIES: list[tuple[int, bytes, bytes]] = [
    *((method, ZLIB, PLAIN) for method in (0, 3)),
    *((method, gzip.compress(PLAIN), PLAIN) for method in (0, 3)),
    *((method, ZLIB, DAMAGED) for method in (1, 2)),  # LZ4 and zstd
    *((method, ZLIB, DAMAGED) for method in (4, 5, 6, 7)),  # RocketMQ has no such methods
    *((0, body, DAMAGED) for body in (ZLIB[:-1], PLAIN)),
]
"""The number of the method in the flags, the stored body, and the body that consumers get."""


def plain(message: object) -> bytes:
    try:
        return message.body  # type: ignore[attr-defined, no-any-return]
    except FormatError:
        return DAMAGED


def of_grpc(message: Any, stored: bytes) -> bytes:
    """Return the body as a client decompresses it; it gets what the service cannot decompress."""
    body: bytes = message.body
    if message.system_properties.body_encoding == Encoding.IDENTITY:
        return DAMAGED if body == stored else body
    try:
        return gzip.decompress(body)
    except (OSError, EOFError):
        return DAMAGED


async def test_compressed_bodies(ways: Ways) -> None:
    wanted = [body for _, _, body in COMPRESSED_BODIES]
    ways.create("C")
    for method, body, _ in COMPRESSED_BODIES:
        assert (await ways.talk.send("C", body, f=COMPRESSED | method << 8)).code == 0
    await ways.dispatched()
    queue = MessageQueue("C", "broker-a", 0)
    assert [plain(message) async for message in ways.consumer.read(queue)] == wanted
    messages = await grpc_pull(ways.service, "C")
    pairs = zip(messages, COMPRESSED_BODIES, strict=True)
    assert [of_grpc(message, stored) for message, (_, stored, _) in pairs] == wanted
    for place in ways.places:
        how = {"subscribe": "C", "decompress": "true", "mode": "permissive"}
        bodies = await asyncio.to_thread(spark, "body", **how, **place)
        assert [DAMAGED if body is None else body for body in bodies] == wanted


# -- delays -----------------------------------------------------------------------------------

LEVELS = {0: None, 1: 0, 18: 17, 99: 17}
"""The queue in which a message waits, by its delay level; None if it does not wait."""
TIMES = {-DAY_MS: "T", 0: "T", 60_000: TIMER_TOPIC, 400 * DAY_MS: REFUSED}
"""The topic in which a message waits for a time, by the ms until then."""


async def stored_at(ways: Ways, message_id: str) -> Record:
    record = ways.talk.broker.store.at(decode_message_id(message_id).physical_offset)
    assert record is not None
    return record


@pytest.mark.parametrize("level", LEVELS)
async def test_delay_levels(ways: Ways, level: int, tmp_path: Path) -> None:
    ways.create("T", 4)
    queue_id = LEVELS[level]
    answer = await ways.talk.send("T", i=f"DELAY\x01{level}\x02")
    sent = await ways.producer.send(Message("T", b"x", delay_level=level))
    found = [
        await stored_at(ways, answer.fields["msgId"]),
        await stored_at(ways, sent.offset_message_id),
    ]
    with Store.open(tmp_path / "store", SMALL) as store:
        place = store.put(Message("T", b"x", delay_level=level)).physical_offset
        record = store.at(place)
        assert record is not None
        found.append(record)
    assert {record.topic for record in found} == {"T" if queue_id is None else SCHEDULE_TOPIC}
    assert queue_id is None or {record.queue_id for record in found} == {queue_id}


@pytest.mark.parametrize("ahead_ms", TIMES)
async def test_delivery_times(ways: Ways, ahead_ms: int) -> None:
    ways.create("T")
    ways.talk.broker.topics.put([TopicConfig("G", 1, 1, attributes={"+message.type": "DELAY"})])
    time_ms = SYSTEM.clock.now_ms() + ahead_ms
    answer = await ways.talk.send("T", i=f"UNIQ_KEY\x01u\x02TIMER_DELIVER_MS\x01{time_ms}\x02")
    found: list[object] = [answer.code or (await stored_at(ways, answer.fields["msgId"])).topic]
    try:
        when = datetime.fromtimestamp(time_ms / 1000, UTC)
        sent = await ways.producer.send(Message("T", b"x"), deliver_at=when)
        found.append((await stored_at(ways, sent.offset_message_id)).topic)
    except RequestError as error:
        found.append(error.code)
    timed = message(b"x", "G", delivery_timestamp=at(time_ms), message_type=MessageType.DELAY)
    response = await ways.service.send(timed)
    if code(response) == "OK":
        await ways.dispatched()
        waits = ways.talk.broker.store.max_offset("G", 0) == 0
        found.append(TIMER_TOPIC if waits else "T")
    else:
        assert code(response) == "ILLEGAL_DELIVERY_TIME"
        found.append(ResponseCode.MESSAGE_ILLEGAL)
    wanted = TIMES[ahead_ms]
    assert found == [ResponseCode.MESSAGE_ILLEGAL if wanted is REFUSED else wanted] * 3


@pytest.mark.parametrize(("priority", "queue_id"), [(0, 0), (2, 2), (9, 3)])
async def test_the_priority_is_the_queue(ways: Ways, priority: int, queue_id: int) -> None:
    """The broker decides that, also for messages of gRPC clients."""
    attributes = {"+message.type": "PRIORITY"}
    ways.talk.broker.topics.put([TopicConfig("P", 4, 4, attributes=attributes)])
    answer = await ways.talk.send("P", i=f"_SYS_MSG_PRIORITY_\x01{priority}\x02")
    assert (answer.code, answer.fields["queueId"]) == (0, str(queue_id))
    prioritized = message(b"x", "P", priority=priority, message_type=MessageType.PRIORITY)
    assert code(await ways.service.send(prioritized)) == "OK"
    await ways.dispatched()
    store = ways.talk.broker.store
    assert [store.max_offset("P", number) for number in range(4)] == [
        2 if number == queue_id else 0 for number in range(4)
    ]


@pytest.mark.parametrize(("count", "sys_flag"), [(1, 0), (2, 0), (1, COMPRESSED)])
async def test_a_batch_goes_to_its_queue(ways: Ways, count: int, sys_flag: int) -> None:
    """Also one of a single message, with a priority."""
    ways.create("P", 4)
    item = BatchItem(0, zlib.compress(b"x"), b"_SYS_MSG_PRIORITY_\x013\x02")
    queue = MessageQueue("P", ways.talk.broker.config.name, 1)
    items = encode_batch([item] * count)
    sent = await ways.producer.send_encoded("P", items, queue=queue, sys_flag=sys_flag)
    assert sent.queue == queue
    first = sent.offset_message_id.split(",")[0]
    record = ways.talk.broker.store.at(decode_message_id(first).physical_offset)
    assert record is not None
    assert ("_SYS_MSG_PRIORITY_" in record.properties) is (sys_flag == 0)
