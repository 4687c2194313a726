"""The Go client v2.1.2 at work with Firetrail's broker.

It pulls with an empty subscription, so that the broker filters by the subscription of the
heartbeat. Quirks of the client itself: the messages of a batch get no id of their own, and
``CreateReplyMessage`` drops the body of the reply.
"""

from __future__ import annotations

import asyncio

import pytest
from interop.stock import (
    Event,
    all_delivered,
    all_in_order,
    all_pushed,
    client_environment,
    firetrail_up,
    lag,
    masters,
    needs,
    run_client,
    same_messages,
    tried_again,
)

NEEDS_JAVA = False
SENT = ["sync", "large " * 5000, "async", "oneway", "batch0", "batch1", "batch2", "delayed"]


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    needs("go")
    folder = tmp_path_factory.mktemp("go")
    made = client_environment("go")
    with firetrail_up(folder) as namesrv:
        broker = next(iter(asyncio.run(masters(namesrv)).values()))
        said = run_client([made / "client", namesrv, broker], folder)
        groups = {"GO_PUSH": "GoSends", "GO_ORDERLY": "GoOrder"}
        left = {group: asyncio.run(lag(namesrv, group, topic)) for group, topic in groups.items()}
        assert left == dict.fromkeys(groups, 0)
    return said


def test_everything_sent_is_received(events: list[Event]) -> None:
    all_pushed(events, SENT)


def test_what_was_acknowledged_is_what_arrives(events: list[Event]) -> None:
    assert same_messages(events, "id", "offset_id", "queue", "offset") >= 4 * 23


def test_order(events: list[Event]) -> None:
    all_in_order(events)


@pytest.mark.parametrize(
    ("who", "expected"),
    [
        ("tags", ["1", "3", "5"]),
        ("sql", ["2", "3", "4"]),
        ("pull", ["0", "2", "4"]),
        ("one", [f"all{n}" for n in range(4)]),
        ("two", [f"all{n}" for n in range(4)]),
        ("check", ["unknown"]),
        ("halves", ["commit", "unknown"]),
        ("request", ["re: ask"]),
    ],
)
def test_consumers(events: list[Event], who: str, expected: list[str]) -> None:
    """By tags, by SQL, by pulls, broadcast, transactions and their checks, request and reply."""
    all_delivered(events, who, expected)


def test_retries(events: list[Event]) -> None:
    tried_again(events, "GoRetry")
