"""Messages as they are delivered, from the records that brokers store."""

import gzip
import logging
import zlib
from hashlib import md5

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proxy.services import at, message

from firetrail.format.layout import COMPRESSED, MAGIC_V1
from firetrail.format.properties import decode_properties, encode_properties
from firetrail.format.record import Record, encode_record
from firetrail.format.values.hosts import Host
from firetrail.proxy.conversion import delivered_messages as module
from firetrail.proxy.conversion.delivered_messages import delivered, records_in
from firetrail.proxy.conversion.message_checks import check_message
from firetrail.proxy.conversion.message_properties import (
    HIDDEN,
    RESERVED,
    milliseconds,
    stored_properties,
)
from firetrail.proxy.schema.messages import DigestType, Encoding, Message, MessageType

MIB = 1 << 20


def record(body: bytes = b"hello", sys_flag: int = 0, **properties: str) -> Record:
    return Record(
        *(0, MAGIC_V1, zlib.crc32(body) & 0x7FFFFFFF, 3, 0, 17, 4711, sys_flag, 1_700_000_000_123),
        Host("127.0.0.1", 4321),
        1_700_000_000_456,
        Host("127.0.0.2", 10911),
        *(2, 0, body, "T"),
        encode_properties(properties),
    )


def shown(stored: Record, topic: str = "T") -> Message:
    return delivered(stored, stored.properties, topic)


def test_all_fields_of_a_message() -> None:
    found = shown(
        record(
            TAGS="paid",
            KEYS="k1 k2",
            UNIQ_KEY="m1",
            a="1",
            __SHARDINGKEY="g",
            TRACE_CONTEXT="trace",
            __LITE_TOPIC="lite",
            _SYS_MSG_PRIORITY_="5",
            __BORNHOST="shop",
            TIMER_DELIVER_MS="1700000001234",
            PGROUP="T",
            MSG_REGION="r",
            __transactionId__="x",
            TRANSACTION_CHECK_TIMES="1",
            CHECK_IMMUNITY_TIME_IN_SECONDS="5",
            INNER_MULTI_DISPATCH="%LMQ%x",
            INNER_NUM="1",
            REDIRECT="x",
        )
    )
    system = found.system_properties
    assert found.topic.name == "T"
    assert found.body == b"hello"
    assert dict(found.user_properties) == {"a": "1"}
    assert (system.tag, list(system.keys), system.message_id) == ("paid", ["k1", "k2"], "m1")
    assert system.body_digest.type == DigestType.MD5
    assert system.body_digest.checksum == "5D41402ABC4B2A76B9719D911017C592"
    assert system.body_encoding == Encoding.IDENTITY
    assert system.message_type == MessageType.DELAY
    assert milliseconds(system.born_timestamp) == 1_700_000_000_123
    assert milliseconds(system.store_timestamp) == 1_700_000_000_456
    assert milliseconds(system.delivery_timestamp) == 1_700_000_001_234
    assert (system.born_host, system.store_host) == ("shop", "127.0.0.2:10911")
    assert (system.queue_id, system.queue_offset, system.delivery_attempt) == (3, 17, 3)
    assert (system.message_group, system.lite_topic, system.priority) == ("g", "lite", 5)
    assert system.trace_context == "trace"
    assert not system.HasField("receipt_handle")


def test_a_message_of_a_remoting_client_may_lack_fields() -> None:
    system = shown(record()).system_properties
    assert system.message_id == record().message_id
    assert system.born_host == "127.0.0.1:4321"
    assert system.message_type == MessageType.NORMAL
    for field in ("tag", "message_group", "delivery_timestamp", "priority", "trace_context"):
        assert not system.HasField(field)


@pytest.mark.parametrize(("text", "seen"), [(str(2**31 - 1), True), (str(2**31), False)])
def test_priorities_up_to_the_highest_number_are_delivered(text: str, seen: bool) -> None:
    system = delivered(record(), {"_SYS_MSG_PRIORITY_": text}, "T").system_properties
    assert system.HasField("priority") is seen
    assert system.priority == (int(text) if seen else 0)


@pytest.mark.parametrize("text", ["", "x", "-1", "9" * 30, "٣"])
def test_nonsense_in_numbers_is_ignored(text: str) -> None:
    properties = {"_SYS_MSG_PRIORITY_": text, "TIMER_DELIVER_MS": text}
    system = delivered(record(), properties, "T").system_properties
    assert not system.HasField("priority")
    assert not system.HasField("delivery_timestamp")


def test_a_relative_delay_shows_the_planned_time() -> None:
    found = shown(record(TIMER_DELAY_SEC="5", TIMER_OUT_MS="1700000001000"))
    assert milliseconds(found.system_properties.delivery_timestamp) == 1_700_000_001_000


@pytest.mark.parametrize(
    ("topic", "namespace", "name"),
    [("T", "", "T"), ("ns%T", "ns", "T"), ("%DLQ%g", "", "%DLQ%g"), ("T%", "", "T%")],
)
def test_the_namespace_is_split_off(topic: str, namespace: str, name: str) -> None:
    found = shown(record(), topic).topic
    assert (found.resource_namespace, found.name) == (namespace, name)


# -- compressed bodies -------------------------------------------------------------------------


def compressed(method: str) -> tuple[bytes, int]:
    """Return a body of a remoting client and its flags."""
    body = b"text " * 1000
    if method == "zlib":
        return zlib.compress(body), COMPRESSED
    if method == "zlib by name":
        return zlib.compress(body), COMPRESSED | 0x300
    if method == "LZ4":
        lz4 = pytest.importorskip("lz4.frame")
        return lz4.compress(body), COMPRESSED | 0x100
    zstd = pytest.importorskip("zstandard")
    return zstd.ZstdCompressor().compress(body), COMPRESSED | 0x200


@pytest.mark.parametrize("method", ["zlib", "zlib by name", "LZ4", "zstd"])
def test_bodies_of_remoting_clients_are_decompressed(method: str) -> None:
    found = shown(record(*compressed(method)))
    assert found.body == b"text " * 1000
    assert found.system_properties.body_encoding == Encoding.IDENTITY
    digest = md5(found.body, usedforsecurity=False).hexdigest().upper()
    assert found.system_properties.body_digest.checksum == digest


def test_gzip_is_left_to_the_client() -> None:
    body = gzip.compress(b"text")
    found = shown(record(body, COMPRESSED))
    assert found.body == body
    assert found.system_properties.body_encoding == Encoding.GZIP
    digest = md5(body, usedforsecurity=False).hexdigest().upper()
    assert found.system_properties.body_digest.checksum == digest


@pytest.mark.parametrize("body", [b"not compressed", zlib.compress(bytes(17 * MIB))])
def test_what_cannot_be_decompressed_is_delivered_as_it_is(
    body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = shown(record(body, COMPRESSED))
    assert found.body == body
    assert found.system_properties.body_encoding == Encoding.GZIP
    text = "T queue 3 offset 17 cannot be decompressed and is delivered as GZIP: it is "
    assert text in caplog.text
    assert module.DELIVERED_MAX < 17 * MIB


@pytest.mark.parametrize("method", [0x100, 0x200, 0x500])
@pytest.mark.parametrize("body", [b"not compressed", gzip.compress(b"text")], ids=["text", "gzip"])
def test_only_gzip_and_zlib_are_labelled_gzip(
    method: int, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = shown(record(body, COMPRESSED | method))
    assert found.body == body
    assert found.system_properties.body_encoding == Encoding.IDENTITY
    assert "T queue 3 offset 17 cannot be decompressed and is delivered as IDENTITY" in caplog.text


# -- records -----------------------------------------------------------------------------------


def test_records_are_found_in_one_piece_or_several(caplog: pytest.LogCaptureFixture) -> None:
    raw = [encode_record(record(body)) for body in (b"1", b"2", b"3")]
    assert [each.body for each in records_in(b"".join(raw))] == [b"1", b"2", b"3"]
    assert [each.body for each in records_in(raw)] == [b"1", b"2", b"3"]
    assert list(records_in(b"")) == list(records_in([])) == []
    assert not caplog.text
    assert [each.body for each in records_in([raw[0], bytes(raw[1][:30]), raw[2]])] == [b"1", b"3"]
    assert "a message is damaged and not delivered" in caplog.text
    assert [each.body for each in records_in(raw[0] + bytes(8) + raw[2])] == [b"1"]


# -- both ways ---------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)
NAMES = TEXTS.filter(lambda text: text.strip() and text not in HIDDEN)


@settings(max_examples=30, deadline=None)
@given(
    st.builds(
        message,
        body=st.binary(min_size=1, max_size=50),
        message_id=NAMES,
        properties=st.dictionaries(NAMES, TEXTS, max_size=5),
        tag=NAMES.filter(lambda text: "|" not in text),
        keys=st.lists(NAMES.filter(lambda text: " " not in text), max_size=3),
        message_group=NAMES.filter(lambda text: len(text.encode()) < 64),
        trace_context=TEXTS,
        born_host=NAMES.map(str.strip).filter(bool),
        born_timestamp=st.integers(0, 2**40).map(at),
        delivery_timestamp=st.integers(1, 2**40).map(at),
        message_type=st.just(MessageType.DELAY),
    )
)
def test_a_sent_message_is_delivered_unchanged(sent: Message) -> None:
    check_message(sent, 2**40, 0)
    properties = stored_properties(sent, "T", "127.0.0.1:1")
    raw = encode_properties(properties)
    assert decode_properties(raw) == properties
    stored = record(sent.body)._replace(
        raw_properties=raw, born_time=milliseconds(sent.system_properties.born_timestamp)
    )
    found = delivered(stored, decode_properties(raw), "T")
    for field in ("tag", "keys", "message_id", "message_group", "trace_context", "born_host"):
        expected = getattr(sent.system_properties, field)
        assert getattr(found.system_properties, field) == expected
    for field in ("born_timestamp", "delivery_timestamp", "message_type"):
        expected = getattr(sent.system_properties, field)
        assert getattr(found.system_properties, field) == expected
    assert found.user_properties == sent.user_properties
    assert found.body == sent.body


def test_all_reserved_names_are_hidden() -> None:
    assert RESERVED < HIDDEN
