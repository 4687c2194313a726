"""The properties of a message: ``name \\x01 value \\x02 name \\x01 value \\x02 …`` in UTF-8.

There is no escaping, so neither separator may occur in a name or a value. RocketMQ 4.9.1 to 5.1.4
leave out the last ``\\x02``; earlier and later versions, and Firetrail, write it. Readers accept
both. Page: ``docs/format/properties.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firetrail.errors import IllegalMessageError
from firetrail.format.kernels.properties import parse_properties
from firetrail.format.layout import PROPERTY_CRC_MARK, PROPERTY_CRC_NAME
from firetrail.format.values.javahash import java_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from _typeshed import ReadableBuffer

NAME_END = "\x01"
VALUE_END = "\x02"
KEY_SEPARATOR = " "
"""The separator of the keys in the value of KEYS."""

# Set by clients
KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
UNIQ_KEY = "UNIQ_KEY"
BUYER_ID = "BUYER_ID"
INSTANCE_ID = "INSTANCE_ID"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
SHARDING_KEY = "__SHARDINGKEY"
PRIORITY = "_SYS_MSG_PRIORITY_"
LITE_TOPIC = "__LITE_TOPIC"

# Delay, retry, dead letters
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
CONSUME_START_TIME = "CONSUME_START_TIME"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"

# Pop
POP_CK = "POP_CK"
FIRST_POP_TIME = "1ST_POP_TIME"
ORIGIN_GROUP = "ORIGIN_GROUP"

# Delivery times
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_TIMES = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
"""The properties with the delivery time of a message."""
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"

# Transactions
TRAN_MSG = "TRAN_MSG"
PGROUP = "PGROUP"
TRAN_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
TRANSACTION_ID = "__transactionId__"
CHECK_IMMUNITY_TIME = "CHECK_IMMUNITY_TIME_IN_SECONDS"

# Set by brokers
CLUSTER = "CLUSTER"
MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
MSG_TYPE = "MSG_TYPE"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
TRANSFER_FLAG = "TRANSFER_FLAG"
CORRECTION_FLAG = "CORRECTION_FLAG"
MQ2_FLAG = "MQ2_FLAG"
ARRIVE_TIME = "ARRIVE_TIME"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
INNER_NUM = "INNER_NUM"
INNER_BASE = "INNER_BASE"

# Set by the store
PROPERTY_CRC = PROPERTY_CRC_NAME.decode()


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the stored form, in the order of the mapping, with the last ``\\x02``.

    Raises IllegalMessageError for a property that would not read back: an empty name, an empty
    value (readers drop it), or a separator in either.
    """
    count = len(properties)
    try:
        text = "".join([name + NAME_END + value + VALUE_END for name, value in properties.items()])
    except TypeError:
        raise _reason(properties) from None
    if (
        text.count(NAME_END) != count
        or text.count(VALUE_END) != count
        or not all(properties)
        or not all(properties.values())
    ):
        raise _reason(properties)
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _reason(properties) from None


def encode_pairs(pairs: Iterable[tuple[str, str]]) -> bytes:
    """Return the stored form of names and values that were read, which are not checked again.

    A name may occur several times.
    """
    return "".join([name + NAME_END + value + VALUE_END for name, value in pairs]).encode()


def closed_properties(raw: bytes) -> bytes:
    """Return the stored form with the last ``\\x02``, so that more properties can follow."""
    return raw + b"\x02" if raw and not raw.endswith(b"\x02") else raw


def decode_properties(raw: ReadableBuffer) -> dict[str, str]:
    """Return all properties of the stored form by :func:`parse_properties`. This never fails.

    Bytes that are not UTF-8 become U+FFFD.
    """
    return parse_properties(java_text(bytes(raw)))


def get_property(raw: ReadableBuffer, name: str) -> str | None:
    """Return ``decode_properties(raw).get(name)``, without decoding the others."""
    if not name or NAME_END in name or VALUE_END in name:
        return None
    data = bytes(raw)
    needle = name.encode() + b"\x01"
    at = len(data)
    while (at := data.rfind(needle, 0, at)) >= 0:
        start = at + len(needle)
        if at == 0 or data[at - 1] == 0x02:
            end = data.find(b"\x02", start)
            value = data[start:] if end < 0 else data[start:end]
            if value:
                return java_text(value)
        at = start - 1
    return None


def replace_properties(raw: ReadableBuffer, changes: Mapping[str, str | None]) -> bytes:
    """Return the stored form with some properties replaced, or removed if the value is None.

    The other properties keep their bytes and their order; the new values follow after them.
    """
    names = {name.encode() for name in changes}
    kept = [
        item
        for item in bytes(raw).split(b"\x02")
        if item and item.partition(b"\x01")[0] not in names
    ]
    added = encode_properties({name: value for name, value in changes.items() if value is not None})
    return b"".join([item + b"\x02" for item in kept]) + added


def without_crc(raw: bytes) -> bytes:
    """Return the stored form without the property CRC of the record that it is from.

    The CRC is wrong for every other record: in a copy it would look like damage.
    """
    return replace_properties(raw, {PROPERTY_CRC: None}) if PROPERTY_CRC_MARK in raw else raw


def _reason(properties: Mapping[str, str]) -> IllegalMessageError:
    """Return the error that names the wrong property, and the reason."""
    for name, value in properties.items():
        for part, text in (("name", name), ("value", value)):
            fault = _fault(text)
            if fault:
                return IllegalMessageError(f"property {name!r}", f"its {part} {fault}")
    raise AssertionError("no property is at fault")


def _fault(text: object) -> str | None:
    if not isinstance(text, str):
        return f"must be a str, not {text!r:.40}"
    if not text:
        return "is empty"
    for separator in (NAME_END, VALUE_END):
        if separator in text:
            return f"contains {separator!r}, which separates properties and cannot be escaped"
    if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
        return "contains half of a surrogate pair, which UTF-8 cannot hold"
    return None
