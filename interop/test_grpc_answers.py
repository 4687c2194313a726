"""Every row of the tables in ``tests/proxy``: the answers of Firetrail and of RocketMQ's proxies.

Firetrail and the gRPC proxies 5.3.3 and 5.5.0, each in one process with its broker, get the same
requests. Every difference is in the list, with the sentence of ``docs/compatibility.md`` that
gives the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from interop.conftest import JAVA_SETTINGS
from interop.grpc_answers import (
    Answers,
    connected,
    create_topics,
    expected_receipts,
    receipt_answers,
    receive_answers,
    send_answers,
)
from interop.grpc_servers import serving
from interop.servers import Servers
from interop.stock import registered
from tests.proxy.calls import test_send_calls
from tests.proxy.calls.consumption import test_receipt_calls, test_receive

PAGE = Path(__file__).parents[1] / "docs" / "compatibility.md"
BROKER = "broker-a"
EXPECTED: Mapping[str, Answers] = {
    "receive": {name: answer for name, _, answer in test_receive.ROWS},
    "send": {name: answer for name, _, answer in test_send_calls.ROWS},
    "receipts": expected_receipts(),
}
"""What Firetrail answers, as in its own tests."""


class Difference(NamedTuple):
    """Rows that RocketMQ answers in another way, and what the page says about them."""

    page: str
    answer: str
    rows: Sequence[str]


OK, CONFLICT, ERROR = "OK", "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE", "INTERNAL_SERVER_ERROR"
_NO_RECEIPT = "A handle that is not a receipt of the broker"
_FORWARDED = "RocketMQ moves whatever message is at the log offset in the handle"
_OTHER_BROKER = "in one process with its broker ignores the name"
_FIRST = "RocketMQ looks only at the first one"
_CONTROL = "with a control character is refused: it would change other properties"
_INTERNAL = "RocketMQ stores them, except INNER_NUM"
_PRIORITY = "A negative priority, and a message that the broker refuses as illegal"
_SINCE_5_4 = "5.3.3 has neither and ignores them"
_CODES = "Codes of brokers are translated as by RocketMQ's proxy in front of a cluster"
_FILTER = "is answered ILLEGAL_FILTER_EXPRESSION. RocketMQ answers INTERNAL_SERVER_ERROR"
_BATCH = "A batch size below 1 is answered BAD_REQUEST"
_AGAIN = "ChangeInvisibleDuration is answered INVALID_RECEIPT_HANDLE if the message is acknowledged"
PLAUSIBLE = {
    "ack": (4, 9),
    "change": (4, 9),
    "forward": (4, 7, 9, 10, 11, 12),
}
"""Wrong handles, by their places in the table, that RocketMQ takes for receipts."""


def garbage(is_plausible: bool) -> list[str]:
    """Return the rows with wrong handles that RocketMQ takes for receipts, or those it does not."""
    return [
        f"{call}: {handle!r}"
        for call, places in PLAUSIBLE.items()
        for place, handle in enumerate(test_receipt_calls.GARBAGE)
        if (place in places) == is_plausible
    ]


COMMON = [
    Difference(
        _INTERNAL,
        OK,
        [
            f"7: {name}"
            for name in (
                *("INNER_MULTI_DISPATCH", "INNER_BASE"),
                *("TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS"),
            )
        ],
    ),
    Difference(_INTERNAL, ERROR, ["7: INNER_NUM"]),
    Difference(
        _CONTROL, OK, ["11: a control id", "-: a control trace context", "-: a control born host"]
    ),
    Difference(_FIRST, OK, ["17: the second message of two"]),
    Difference("A send to a topic that does not exist", CONFLICT, ["17: an unknown topic"]),
    Difference(
        "A transactional message with a delivery time",
        OK,
        ["17: a transaction with a delivery time"],
    ),
    Difference("do not fit into a record", ERROR, ["-: large properties beside the user's"]),
    Difference(_FILTER, ERROR, ["5: an empty condition", "5: a wrong condition"]),
    Difference(_FILTER, "MESSAGE_NOT_FOUND", ["5: blank tags", "5: a long filter"]),
    Difference(_BATCH, "MESSAGE_NOT_FOUND", ["6: no message"]),
    Difference(_BATCH, ERROR, ["6: fewer than no message"]),
    Difference(
        _CODES,
        ERROR,
        ["6: an unknown topic", "ack: topic 'unknown'", "change: topic 'unknown'"],
    ),
    Difference(_NO_RECEIPT, ERROR, garbage(is_plausible=False)),
    Difference(_NO_RECEIPT, OK, garbage(is_plausible=True)),
    Difference(_NO_RECEIPT, f"MULTIPLE_RESULTS, {OK}, {ERROR}", ["ack: a handle and garbage"]),
    Difference(_FORWARDED, OK, ["forward: an expired handle", "forward: topic 'unknown'"]),
    Difference(
        _OTHER_BROKER, OK, [f"{call}: another broker" for call in ("ack", "change", "forward")]
    ),
    Difference(_AGAIN, OK, ["change: after ack", "change: again"]),
]
DIFFERENCES = {
    "proxy": [
        *COMMON,
        Difference(
            _SINCE_5_4,
            OK,
            [
                "7: a key reserved since 5.4",
                "14: a negative priority",
                "16: a blank lite topic",
                "16: an illegal lite topic",
                "16: a long lite topic",
                "17: a priority in a normal topic",
                "17: a priority of 0",
                "17: a lite topic in a normal topic",
            ],
        ),
        Difference(_SINCE_5_4, "ILLEGAL_MESSAGE_GROUP", ["the first of two faults: 14, 15"]),
        Difference(_SINCE_5_4, CONFLICT, ["the first of two faults: 16, 17"]),
    ],
    "proxy55": [
        *COMMON,
        Difference(
            _PRIORITY, ERROR, ["14: a negative priority", "the first of two faults: 14, 15"]
        ),
    ],
}
"""Differences from the proxies 5.3.3 and 5.5.0."""


def answers(namesrv: str, address: str) -> Mapping[str, Answers]:
    """Return all answers of a service; receives come first, when the topics are empty."""
    asyncio.run(registered(namesrv))
    asyncio.run(create_topics(namesrv))
    with connected(address) as service:
        return {
            "receive": receive_answers(service),
            "send": send_answers(service),
            "receipts": receipt_answers(service),
        }


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Answers]:
    folder = tmp_path_factory.mktemp("firetrail")
    with serving(folder, settings=f"brokerName={BROKER}\n") as addresses:
        return answers(addresses["name_server"], addresses["grpc"])


@pytest.fixture(scope="module")
def javas(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Answers]]:
    """The answers of RocketMQ's proxies, which run at the same time: their start takes long."""

    def ask(line: str) -> Mapping[str, Answers]:
        java = Servers(line, tmp_path_factory.mktemp(line))
        with (
            java.name_server() as namesrv,
            java.local_proxy(namesrv, BROKER, settings=JAVA_SETTINGS) as (address, _),
        ):
            return answers(namesrv, address)

    with ThreadPoolExecutor() as pool:
        return dict(zip(DIFFERENCES, pool.map(ask, DIFFERENCES), strict=True))


@pytest.mark.parametrize("table", EXPECTED)
def test_firetrail_answers_as_in_its_own_tests(ours: Mapping[str, Answers], table: str) -> None:
    assert ours[table] == EXPECTED[table]


@pytest.mark.parametrize("table", EXPECTED)
@pytest.mark.parametrize("line", DIFFERENCES)
def test_every_difference_is_listed(
    javas: Mapping[str, Mapping[str, Answers]], line: str, table: str
) -> None:
    expected, answered = EXPECTED[table], javas[line][table]
    listed = {row: each.answer for each in DIFFERENCES[line] for row in each.rows}
    found = {row: answer for row, answer in answered.items() if answer != expected[row]}
    assert answered.keys() == expected.keys()
    assert found == {row: answer for row, answer in listed.items() if row in expected}


def test_the_page_has_every_reason() -> None:
    page = " ".join(PAGE.read_text().split())
    reasons = {each.page for differences in DIFFERENCES.values() for each in differences}
    assert [reason for reason in reasons if reason not in page] == []


def test_the_list_names_rows_of_the_tables() -> None:
    names = {row for table in EXPECTED.values() for row in table}
    for differences in DIFFERENCES.values():
        assert {row for each in differences for row in each.rows} <= names
