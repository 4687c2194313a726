"""What the conversation of a gRPC client must show, whichever server and client have it."""

from __future__ import annotations

from collections.abc import Sequence

from interop.stock import Event, all_delivered, bodies, of, same_messages

NORMAL = [f"normal{n}" for n in range(6)]


def check_received(events: Sequence[Event]) -> None:
    """Check that a push consumer got every message once."""
    all_delivered(events, "push", NORMAL)
    assert len(of(events, "got", "push")) == len(NORMAL)  # once: acknowledgements are taken
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
