"""Checks of the conversation of a gRPC client, the same for every server and client.

The programs print two conversations: ``messages`` and ``features``. At the end of the second
one, the server is killed and started again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

from interop.stock import Event, all_delivered, bodies, of, same_messages

NORMAL = [f"normal{n}" for n in range(6)]


def check_received(events: Sequence[Event], who: str = "push") -> None:
    """Check that a consumer got every message once."""
    all_delivered(events, who, NORMAL)
    assert len(of(events, "got", who)) == len(NORMAL)  # once: acknowledgements are taken
    assert same_messages(events, "id") >= len(NORMAL)


def check_order(events: Sequence[Event]) -> None:
    """Check that the messages of each group came in their order."""
    for key in "0123":
        got = [body for body in bodies(events, "got", "fifo") if body.startswith(f"{key}-")]
        assert got == [f"{key}-{n:02}" for n in range(5)]


def check_put_off(events: Sequence[Event]) -> None:
    """Check that a simple consumer got its messages, and one that it put off again."""
    all_delivered(events, "simple", NORMAL[::2])
    times = [event["times"] for event in of(events, "got", "simple") if event["body"] == "normal0"]
    assert times == [1, 2]


def check_transactions(events: Sequence[Event]) -> None:
    """Check that committed messages arrive, and that the server asks about the undecided one."""
    all_delivered(events, "halves", ["commit", "unknown"])
    all_delivered(events, "check", ["unknown"])


def check_condition(events: Sequence[Event]) -> None:
    """Check that a condition in SQL92 selects messages."""
    assert sorted(bodies(events, "got", "sql")) == ["n3", "n4", "n5"]


def check_order_under_failure(events: Sequence[Event]) -> None:
    """Check that the messages of a group wait for one that fails.

    A kill may cause a second delivery: the progress of ordered pops is saved every second.
    """
    before = list(takewhile(lambda event: "ready" not in event, events))
    assert bodies(before, "got", "ordered") == ["k0", "again-k1", "again-k1", "k2", "k3"]


def check_dead_letter(events: Sequence[Event]) -> None:
    """Check that a message that fails too often becomes a dead letter."""
    assert [event["times"] for event in of(events, "got", "failing")] == [1, 2]
    assert bodies(events, "got", "dead") == ["fails"]


def check_delivery_times(events: Sequence[Event]) -> None:
    """Check that messages arrive at their time, at once if it is in the past."""
    (sent,) = [event for event in events if "sent" in event and event["body"] == "later"]
    got = {event["body"]: event["at"] for event in of(events, "got", "delayed")}
    assert got.keys() == {"past", "later"}
    assert got["later"] >= sent["due"]


def check_recall(events: Sequence[Event]) -> None:
    """Check that a message that waits can be recalled."""
    (recall,) = [event for event in events if "recalled" in event]
    assert recall["recalled"] == recall["id"]
    assert "recalled" not in bodies(events, "got", "delayed")


def check_priority(events: Sequence[Event]) -> None:
    """Check that messages with a higher priority come first."""
    assert bodies(events, "got", "priority") == ["p3", "p2", "p1"]


def check_restart(events: Sequence[Event]) -> None:
    """Check that producer and consumer continue after a kill of the server."""
    assert set(bodies(events, "got", "restart")) == {"before", "after"}


Check = Callable[[Sequence[Event]], None]
MESSAGES: list[Check] = [check_received, check_order, check_put_off, check_transactions]
FEATURES: list[Check] = [
    check_condition,
    check_order_under_failure,
    check_dead_letter,
    check_delivery_times,
    check_recall,
    check_restart,
]


def check_name(check: Check) -> str:
    """Return the name of a check for the name of its test."""
    return check.__name__.removeprefix("check_")
