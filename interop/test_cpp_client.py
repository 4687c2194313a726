"""The C++ client 1.x, in the Python package ``rocketmq`` 0.4.4, at work with Firetrail's broker.

It sends code 10 throughout, batches included, which it marks with ``batch=1``: Java's broker takes
that for false and stores one message; Firetrail stores all of them. Quirks of the client itself: it
has no id for a batch, a broadcast begins with messages sent after it, a pull does not wait for
messages, and a message is retried after its listener fails only because the wrapper's callback
raises.
"""

from __future__ import annotations

import asyncio

import pytest
from interop.stock import (
    HERE,
    Event,
    all_delivered,
    all_in_order,
    all_pushed,
    client_environment,
    firetrail_up,
    lag,
    run_client,
    same_messages,
    tried_again,
)

NEEDS_JAVA = False
SENT = ["sync", "large " * 5000, "async", "oneway", "batch0", "batch1", "batch2", "delayed"]


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    folder = tmp_path_factory.mktemp("cpp")
    made = client_environment("cpp")
    with firetrail_up(folder) as namesrv:
        program = HERE / "cpp" / "client.py"
        said = run_client([made / "venv" / "bin" / "python", program, namesrv], folder)
        groups = {"CPP_PUSH": "CppSends", "CPP_ORDERLY": "CppOrder", "CPP_TAGS": "CppTags"}
        left = {group: asyncio.run(lag(namesrv, group, topic)) for group, topic in groups.items()}
        assert left == dict.fromkeys(groups, 0)
    return said


def test_everything_sent_is_received(events: list[Event]) -> None:
    all_pushed(events, SENT)


def test_ids_and_offsets_are_the_same_on_both_sides(events: list[Event]) -> None:
    assert same_messages(events, "id", "offset") >= 40


def test_order(events: list[Event]) -> None:
    all_in_order(events)


def test_filters(events: list[Event]) -> None:
    all_delivered(events, "tags", ["1", "3", "5"])
    all_delivered(events, "pull", ["0", "2", "4"])


@pytest.mark.parametrize("member", ["one", "two"])
def test_broadcast(events: list[Event], member: str) -> None:
    all_delivered(events, member, [f"all{n}" for n in range(4)])


def test_retries(events: list[Event]) -> None:
    tried_again(events, "CppRetry")
