"""A number that a peer wrote is read by one rule: in properties, receipts, headers and attributes.

The oracle is Java's ``Long.parseLong`` for ASCII digits, restricted to the range of each number.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import pytest

from firetrail.broker.state.attributes import altered, priority_factor
from firetrail.broker.stored_messages import destination_of
from firetrail.broker.transactions.half_messages import checks_of
from firetrail.errors import FiretrailError
from firetrail.format.kernels.properties import join_properties
from firetrail.format.light import numbered_queues
from firetrail.format.message_types import queue_of_priority
from firetrail.format.recall_handle import decode_handle
from firetrail.format.values.delay import level_in
from firetrail.format.values.hosts import parse_host
from firetrail.format.values.integers import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN
from firetrail.proxy.calls.consumption.pop_requests import valid_receipt
from firetrail.remoting.connections.remoting_client import split_address
from firetrail.remoting.messages.bodies import TopicConfig
from firetrail.remoting.messages.headers import PullHeader
from firetrail.remoting.messages.pop.receipts import Receipt, decode_counts, decode_places
from firetrail.remoting.wire import json_header

BOUNDS = [0, 1 << 16, 1 << 31, 1 << 63, -1 << 31, -1 << 63]
TEXTS = [
    *("5", "05", "+5", "-5", "-0", "+0", "0" * 90 + "7"),
    *(str(bound + step) for bound in BOUNDS for step in (-1, 0, 1)),
    # Texts that are no numbers.
    *("", "+", "-", "+-5", "--5", "5.0", "5e1", "0x5", "5L", "five", "nan", "5" * 5000),
    # Texts that int() or str.isdigit() take for numbers.
    *("1_0", "5_", " 5", "5\u00a0", "\t5", "5\n", "\x1f5", "²", "5²", "٣", "５", "໓"),
]


class Use(NamedTuple):
    """A place where numbers are read."""

    read: Callable[[str], Any]
    """Returns the number; anything else, or raises an error of Firetrail, if there is none."""
    least: int = 0
    most: int = INT64_MAX


def receipt(*, at: int, by: Callable[[str], Receipt]) -> Callable[[str], Any]:
    """Return a reader of one number of a receipt."""

    def read(text: str) -> Any:
        words = ["1", "2", "3", "4", "0", "b", "5", "6", "7"]
        words[at] = text
        return by(" ".join(words))[at]

    return read


def header(field: str, name: str) -> Callable[[str], Any]:
    """Return a reader of one field of a header."""
    numbers = ("queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset")
    fields = dict.fromkeys((*numbers, "suspendTimeoutMillis", "subVersion"), "1")
    texts = {"consumerGroup": "G", "topic": "T", "subscription": "*"}
    return lambda text: getattr(PullHeader.decode({**fields, **texts, field: text}), name)


def handle(time: str) -> str:
    return base64.urlsafe_b64encode(f"v1 T b {time} K".encode()).decode()


def light_offset(text: str) -> Any:
    properties = {"INNER_MULTI_DISPATCH": "%LMQ%q", "INNER_MULTI_QUEUE_OFFSET": text}
    return dict(numbered_queues(join_properties(properties).encode())).get("%LMQ%q")


def kept_attribute(text: str) -> Any:
    """Return a number that an attribute is set to; None if it is refused."""
    found = altered(None, {"+reserve.time": text}, is_new=True) or {}
    return int(found["reserve.time"])


def opaque(text: str) -> Any:
    raw = json.dumps({"code": 1, "opaque": text, "language": "JAVA", "version": 0, "flag": 0})
    return json_header.decode(raw.encode(), b"").opaque


USES: Mapping[str, Use] = {
    **{
        f"word {at} of a receipt, {name}": Use(
            receipt(at=at, by=by), 0, INT32_MAX if at in (3, 6) else INT64_MAX
        )
        for name, by in (("remoting", Receipt.decode), ("gRPC", partial(valid_receipt, now_ms=0)))
        for at in (0, 1, 2, 3, 6, 7, 8)
    },
    "a queue in the answer to a pop": Use(lambda text: next(iter(decode_places(f"0 {text} 1")))[1]),
    "an offset in the answer to a pop": Use(lambda text: decode_places(f"0 1 2,{text}")["0", 1][1]),
    "a count in the answer to a pop": Use(lambda text: decode_counts(f"0 qo1%2 {text}")[1, 2]),
    "PRIORITY": Use(
        lambda text: queue_of_priority({"_SYS_MSG_PRIORITY_": text}, 1 << 32, -1), 0, INT32_MAX
    ),
    "DELAY": Use(level_in, 1, INT32_MAX),
    "REAL_QID": Use(
        lambda text: (destination_of({"REAL_TOPIC": "T", "REAL_QID": text}) or (0, None))[1],
        most=INT32_MAX,
    ),
    "TRANSACTION_CHECK_TIMES": Use(
        lambda text: checks_of({"TRANSACTION_CHECK_TIMES": text}), most=INT32_MAX
    ),
    "INNER_MULTI_QUEUE_OFFSET": Use(light_offset),
    "an attribute of a topic": Use(kept_attribute, -1),
    "the attribute of a group": Use(lambda text: priority_factor({"priority.factor": text})),
    "a handle for recalls": Use(lambda text: decode_handle(handle(text)).time_ms),
    "the port of a host": Use(lambda text: parse_host(f"1.2.3.4:{text}").port, most=65535),
    "the port of an address": Use(lambda text: split_address(f"h:{text}")[1], 1, 65535),
    "an int in a header": Use(header("queueId", "queue_id"), INT32_MIN, INT32_MAX),
    "a long in a header": Use(header("queueOffset", "queue_offset"), INT64_MIN),
    "the opaque of a command": Use(opaque, INT32_MIN, INT32_MAX),
    "a number in a body": Use(
        lambda text: TopicConfig.from_json({"topicName": "T", "perm": text}).perm, INT64_MIN
    ),
}
ODD = {"DELAY": 0, "PRIORITY": -1, "the attribute of a group": 100}
"""What a use returns instead of raising or returning None."""


@pytest.mark.parametrize("use", USES)
def test_a_number_is_read_by_one_rule(use: str) -> None:
    read, least, most = USES[use]
    for text in TEXTS:
        is_number = re.fullmatch("[+-]?[0-9]{1,99}", text, re.ASCII) is not None
        expected = int(text) if is_number and least <= int(text) <= most else ODD.get(use)
        try:
            found = read(text)
        except FiretrailError:
            found = None
        assert found == expected, text[:99]
