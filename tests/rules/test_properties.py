"""Properties decide by exact names, whichever way a message takes into the store.

The oracle is the parsed mapping, by a parser of its own. Each way is fed the same table of texts.
"""

from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.brokers import SMALL, Talk, talking
from tests.client.clusters import running_cluster
from tests.proxy.services import message, serving

from firetrail import Batch, Store
from firetrail.client import Message, Producer
from firetrail.client.messages.send_requests import encoded
from firetrail.errors import IllegalMessageError
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.files.timer import TIMER_TOPIC
from firetrail.format.kernels.properties import join_properties, parse_properties
from firetrail.format.names import SCHEDULE_TOPIC
from firetrail.format.properties import MSG_REGION, TIMER_TIMES, decode_properties, get_property
from firetrail.format.system_topics import HALF_TOPIC
from firetrail.format.values.ids import decode_message_id
from firetrail.proxy.conversion.message_properties import RESERVED
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
ADDED = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
PLACES = {"REAL_TOPIC", "REAL_QID"}
"""Properties of a message that waits in another topic than its own."""
TEXTS = [
    "",
    "K\x01v",
    "K\x01v\x02",
    # A name that ends, begins or goes on like a special one.
    *("IS_TRAN_MSG\x01true\x02", "TRAN_MSGS\x01true\x02", "xTRAN_MSG\x01true\x02K\x01v\x02"),
    *("MY_DELAY\x013\x02", "DELAYED\x013\x02", "TIMER_DELAYS\x015\x02", "NO_WAIT\x01false\x02"),
    *("XTIMER_DELAY_SEC\x015\x02", "TIMER_DELAY_SECS\x015\x02", "MY_CLUSTER\x01c\x02"),
    *("WAITS\x01false\x02", "MSG_REGIONS\x01r\x02", "X_SYS_MSG_PRIORITY_\x013\x02"),
    "A_INNER_MULTI_DISPATCH\x01%LMQ%q\x02",
    # A value that is, or goes on like, a special text.
    *("TRAN_MSG\x01trueish\x02", "TRAN_MSG\x01 true\x02", "TRAN_MSG\x01false\x02"),
    *("K\x01TRAN_MSG\x02", "K\x01TRAN_MSG\x01true\x02", "K\x01WAIT\x01false\x02"),
    *("K\x01TIMER_DELAY_SEC\x02", "DELAY\x013x\x02", "DELAY\x01-1\x02", "DELAY\x010\x02"),
    # The special ones themselves.
    *("TRAN_MSG\x01true\x02", "TRAN_MSG\x01True\x02", "K\x01v\x02TRAN_MSG\x01true"),
    *("DELAY\x013\x02", "DELAY\x012\x02K\x01v", "DELAY\x0199\x02"),
    *("WAIT\x01false\x02K\x01v\x02", "WAIT\x01FALSE\x02", "K\x01v\x02WAIT\x01true"),
    # A name several times: the last value counts.
    *("TRAN_MSG\x01true\x02TRAN_MSG\x01no\x02", "TRAN_MSG\x01no\x02TRAN_MSG\x01true\x02"),
    *("DELAY\x013\x02DELAY\x010\x02", "DELAY\x010\x02DELAY\x013\x02", "K\x01a\x02K\x01b\x02"),
    "K\x01v\x02WAIT\x01true\x02WAIT\x01false\x02",
    "MSG_REGION\x01a\x02K\x01v\x02MSG_REGION\x01b\x02",
    # Separators in odd places, and items without a name or a value.
    *("\x01TRAN_MSG\x01true\x02", "\x02\x02TRAN_MSG\x01true\x02", "TRAN_MSG\x01\x01true\x02"),
    *("TRAN_MSG\x02true\x02", "TRAN_MSG\x01\x02true\x02", "\x01true\x02", "\x01\x02\x01", "\x02"),
    *("TRAN_MSG\x01true\x02\x02\x02K\x01v\x02", "K\x01v\x02TRAN_MSG\x01", "\x01\x01\x01\x02K"),
    *("DELAY\x01\x023\x02", "\x02DELAY\x013\x02\x01DELAY\x012\x02", "K\x02TRAN_MSG\x01true"),
]


class Expected(NamedTuple):
    """The expected form in which a message with some properties is stored."""

    place: str
    """``half``, ``delayed``, ``timer`` or ``topic``."""
    properties: dict[str, str]


def parsed(text: str) -> dict[str, str]:
    """Return the properties of a text, in the plainest way."""
    items = [item.split("\x01", 1) for item in text.split("\x02")]
    return {item[0]: item[1] for item in items if len(item) == 2 and item[0] and item[1]}


def is_level(value: str) -> bool:
    return value.isdecimal() and int(value) > 0


def expected_by_broker(text: str) -> Expected:
    """Return how a broker stores a single message."""
    found = parsed(text)
    kept = {name: value for name, value in found.items() if name != "WAIT"} | ADDED
    if found.get("TRAN_MSG", "").lower() == "true":
        kept.pop("DELAY", None)
        return Expected("half", kept)
    if is_level(found.get("DELAY", "")):
        return Expected("delayed", kept | {"DELAY": str(min(int(found["DELAY"]), 18))})
    return Expected("topic", kept)


def place_of(topic: str) -> str:
    places = {HALF_TOPIC: "half", SCHEDULE_TOPIC: "delayed", TIMER_TOPIC: "timer"}
    return places.get(topic, "topic")


def stored(talk: Talk, answer: RemotingCommand) -> Expected:
    """Return where and with which properties a message of a send was stored."""
    assert answer.code == 0, answer.remark
    record = talk.broker.store.at(decode_message_id(answer.fields["msgId"]).physical_offset)
    assert record is not None
    properties = record.properties
    place = place_of(record.topic)
    if place != "topic":
        properties = {name: properties[name] for name in properties if name not in PLACES}
    return Expected(place, properties)


async def test_a_single_message(talk: Talk) -> None:
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
        for text in TEXTS:
            answer = await talk.send("T", i=text, code=code)
            assert stored(talk, answer) == expected_by_broker(text), text


@pytest.mark.parametrize(
    ("more", "retry"),
    [("", "topic"), ("DELAY\x013\x02", "delayed"), ("TIMER_DELAY_SEC\x019\x02", "timer")],
)
async def test_a_message_that_is_sent_back_is_no_half_message(
    more: str, retry: str, talk: Talk
) -> None:
    """Consumers before 4.6.1 send a message back with all of its properties."""
    await talk.beat("CG")
    text = f"TRAN_MSG\x01true\x02{more}"
    assert stored(talk, await talk.send("%RETRY%CG", i=text, j=1)).place == retry
    dead = stored(talk, await talk.send("%RETRY%CG", i=text, j=17))
    kept = {name: value for name, value in parsed(text).items() if name != "DELAY"}
    assert dead == Expected("topic", kept | ADDED)
    assert len(list(talk.broker.store.read("%DLQ%CG"))) == 1


async def test_a_dead_letter_is_not_delayed(talk: Talk) -> None:
    """As in RocketMQ, it loses its delay level, and keeps a delivery time, which has no effect."""
    await talk.beat("CG")
    text = "K\x01v\x02TIMER_DELAY_MS\x0160000\x02"
    kept = {"K": "v", "TIMER_DELAY_MS": "60000"}
    dead = stored(talk, await talk.send("%RETRY%CG", i=f"{text}DELAY\x013\x02", j=17))
    assert dead == Expected("topic", {**kept, **ADDED})
    delivered = await talk.send("T", i=f"{text}TIMER_OUT_MS\x011\x02")
    offset = decode_message_id(delivered.fields["msgId"]).physical_offset
    code = RequestCode.CONSUMER_SEND_MSG_BACK
    assert (await talk.ask(code, group="CG", delayLevel=-1, offset=offset)).code == 0
    _, other = talk.broker.store.read("%DLQ%CG")
    assert other.properties.items() >= kept.items() and "DELAY" not in other.properties


async def test_a_batch_and_its_messages(talk: Talk) -> None:
    """The properties of a batch are those of each message; neither makes it anything special."""
    for text in TEXTS:
        if is_level(parsed(text).get("DELAY", "")):
            continue
        items = [BatchItem(0, b"0", text.encode()), BatchItem(0, b"1", b"")]
        answer = await talk.send("T", encode_batch(items), m=True, i=None)
        assert answer.code == 0, (text, answer.remark)
        first = talk.broker.store.at(
            decode_message_id(answer.fields["msgId"].split(",")[0]).physical_offset
        )
        assert first is not None and first.topic == "T"
        if not text or text.endswith("\x02"):
            assert first.properties == parsed(text) | ADDED, text
        whole = await talk.send("T", encode_batch(items[1:]), m=True, i=text)
        kept = {name: value for name, value in parsed(text).items() if name != "WAIT"}
        assert stored(talk, whole) == Expected("topic", kept | ADDED), text


BATCHES = {
    **dict.fromkeys(("DELAY\x013\x02", "DELAY\x010\x02DELAY\x013\x02", "DELAY\x01+3"), True),
    **dict.fromkeys((f"K\x01v\x02{name}\x015\x02" for name in TIMER_TIMES), True),
    **dict.fromkeys((f"X{name}\x015\x02" for name in ("DELAY", *TIMER_TIMES)), False),
    **dict.fromkeys((f"{name}S\x015\x02" for name in ("DELAY", *TIMER_TIMES)), False),
    **dict.fromkeys((f"K\x01{name}\x02" for name in ("DELAY", *TIMER_TIMES)), False),
    **dict.fromkeys(("TIMER_DEL\x011", "DELAY\x010", "DELAY\x01-3", "DELAY\x01x"), False),
    # A timer has delivered it before.
    "TIMER_DELAY_SEC\x015\x02TIMER_OUT_MS\x017\x02": False,
}
"""Whether a batch with such properties, or with such a message, is refused because of a delay."""


async def test_no_way_into_the_store_loses_the_delay_of_a_batch(tmp_path: Path) -> None:
    async with running_cluster() as namesrv, Producer(namesrv, "PG") as producer, talking() as talk:
        for text, refused in BATCHES.items():
            messages = [Message("T", b"0"), Message("T", b"1", raw_properties=text.encode())]
            items = encode_batch(BatchItem(0, b"x", each.encode_properties()) for each in messages)
            for answer in (
                await talk.send("T", items, m=True, i="K\x01v"),
                await talk.send("T", encode_batch([BatchItem(0, b"0", b"")]), m=True, i=text),
            ):
                assert answer.code == (13 if refused else 0), text
                assert ("batches are not delayed" in (answer.remark or "")) is refused
            with Store.open(tmp_path, SMALL) as store:
                assert store.try_put_batch(Batch("T", items)).ok is not refused, text
                assert store.try_put_batch(Batch.of(messages)).ok is not refused, text
            if refused:
                with pytest.raises(IllegalMessageError, match="delayed message"):
                    await producer.send_batch(messages)
            else:
                assert await producer.send_batch(messages)


async def test_no_batch_is_sent_back(talk: Talk) -> None:
    await talk.beat("CG")
    items = encode_batch([BatchItem(0, b"0", b"")])
    for times in (0, 1, 17):  # the last one is too many, but a dead letter is one message
        answer = await talk.send("%RETRY%CG", items, m=True, j=times)
        assert (answer.code, "accepts no batches" in (answer.remark or "")) == (13, True)


async def test_a_reply() -> None:
    pushed: list[dict[str, str]] = []

    def take(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        pushed.append(parsed(request.fields["properties"]))
        return request.answer()

    async with talking(client_handlers={RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: take}) as talk:
        await talk.beat(producer="PG", client_id="p1")
        for text in TEXTS:
            sent = f"{text}\x02REPLY_TO_CLIENT\x01p1\x02XREPLY_TO_CLIENT\x01p2\x02"
            code = RequestCode.SEND_REPLY_MESSAGE_V2
            answer = await talk.send(REPLY_TOPIC, code=code, c=REPLY_TOPIC, i=sent)
            assert stored(talk, answer) == expected_by_broker(sent), text
            assert pushed[-1].pop("PUSH_REPLY_TIME").isdecimal()
            assert pushed[-1] == parsed(sent), text


async def test_a_message_over_grpc() -> None:
    async with serving() as service:
        await service.create_topic("T")
        for number, text in enumerate(TEXTS):
            properties = parsed(text)
            if not RESERVED.isdisjoint(properties) or "\x01" in "".join(properties.values()):
                continue  # refused, see tests/proxy/calls/test_send_calls.py
            key = f"m{number}"
            answer = await service.send(message(message_id=key, properties=properties))
            assert answer.status.code == 20000, (text, answer.status.message)
            (record,) = service.broker.store.query("T", key)
            found = {name: record.properties[name] for name in properties}
            assert (record.topic, found) == ("T", properties)


async def test_a_message_of_the_client() -> None:
    """The client refuses what a broker would keep as a half message that nobody ends."""
    async with running_cluster() as namesrv, Producer(namesrv, "PG") as producer:
        for text in TEXTS:
            message = Message("T", b"x", raw_properties=text.encode())
            if expected_by_broker(text).place == "half":
                with pytest.raises(IllegalMessageError, match="use send_in_transaction"):
                    await producer.send(message)
            else:
                assert (await producer.send(message)).transaction_id is None, text


async def test_an_encoded_message_of_the_client(talk: Talk) -> None:
    """A batch of one message is sent as a single message, but begins no transaction either."""
    for text in TEXTS:
        sent = encoded("T", encode_batch([BatchItem(0, b"x", text.encode())]))
        fields = sent.header("PG", 0).encode()
        wanted = parsed(text)
        if wanted.get("TRAN_MSG", "").lower() == "true":
            del wanted["TRAN_MSG"]
        expected = expected_by_broker("\x02".join("\x01".join(item) for item in wanted.items()))
        assert stored(talk, await talk.send("T", b"x", fields)) == expected, text


def test_a_message_of_the_embedded_store(tmp_path: Path) -> None:
    """The store knows delays; everything else in the properties is for brokers."""
    with Store.open(tmp_path, SMALL) as store:
        for text in TEXTS:
            place = store.put(Message("T", b"x", raw_properties=text.encode())).physical_offset
            record = store.at(place)
            assert record is not None
            wanted = parsed(text)
            if is_level(wanted.get("DELAY", "")):
                wanted["DELAY"] = str(min(int(wanted["DELAY"]), 18))
                assert record.topic == SCHEDULE_TOPIC
                found = {n: v for n, v in record.properties.items() if n not in PLACES}
            else:
                assert record.topic == "T"
                found = record.properties
            assert found == wanted, text


SPECIAL = ["TRAN_MSG", "WAIT", "DELAY", "true", "K", MSG_REGION, "\x01", "\x02", "ü", "X", ""]


@given(st.lists(st.sampled_from(SPECIAL), max_size=16).map("".join))
def test_all_readers_of_properties_agree(text: str) -> None:
    wanted = parsed(text)
    assert parse_properties(text) == decode_properties(text.encode()) == wanted
    assert parse_properties(join_properties(wanted)) == wanted
    for name in (*SPECIAL, *wanted):
        assert get_property(text.encode(), name) == wanted.get(name)
