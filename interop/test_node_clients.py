"""The clients of npm, ``ali-ons`` 3.12.0 and ``rocketmq-nodejs`` 1.1.2, with Firetrail's broker.

What is odd in them. ``ali-ons``: a producer does not make topics; messages are known by the id of
their place in the log, so that a retry has another; ``ACTION_RETRY`` counts for the first delivery
only (an error always does); a sharding key that belongs to the first queue is not kept together.
``rocketmq-nodejs``: a process does not always end (the addon hangs when it is unloaded).
Both look for the retry topic of a new group at the next rebalance, 10 or 20 seconds later.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from interop.stock import (
    Event,
    all_delivered,
    bodies,
    client_environment,
    create_topics,
    firetrail_up,
    lag,
    needs,
    of,
    run_client,
    same_messages,
)

NEEDS_JAVA = False


def events(
    program: str, folder: Path, topics: Sequence[str], groups: dict[str, str], status: int = 0
) -> list[Event]:
    """Run a program and return its events; check that ``groups`` have confirmed their topics."""
    needs("npm")
    made = client_environment("node")
    with firetrail_up(folder) as namesrv:
        asyncio.run(create_topics(namesrv, *topics))
        said = run_client(["node", made / program, namesrv], folder, status)
        left = {group: asyncio.run(lag(namesrv, group, topic)) for group, topic in groups.items()}
    assert left == dict.fromkeys(groups, 0)
    return said


@pytest.fixture(scope="module")
def ali(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    topics = [f"Ali{name}" for name in ("Sends", "Order", "Filter", "Retry", "All")]
    groups = {"ALI_PUSH": "AliSends", "ALI_ORDER": "AliOrder"}
    folder = tmp_path_factory.mktemp("ali")
    return events("ali_ons.js", folder, [*topics, "%RETRY%ALI_RETRY"], groups)


@pytest.fixture(scope="module")
def napi(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    folder = tmp_path_factory.mktemp("napi")
    topics, groups = ["%RETRY%NAPI_RETRY"], {"NAPI_PUSH": "NapiSends"}
    return events("rocketmq_nodejs.js", folder, topics, groups, -signal.SIGKILL)


def attributes(said: list[Event], who: str) -> set[tuple[str, str, str]]:
    return {(event["body"], event["keys"], event["tags"]) for event in of(said, "got", who)}


class TestAliOns:
    """Plain JavaScript."""

    def test_everything_sent_is_received(self, ali: list[Event]) -> None:
        sent = ["sync", "large " * 5000, "delayed"]
        all_delivered(ali, "push", sent)
        assert attributes(ali, "push") == {(body, f"key-{body[:20]}", "TagA") for body in sent}
        assert {e["body"]: e.get("colour") for e in of(ali, "got", "push")}["sync"] == "blue"

    def test_ids_and_offsets_are_the_same_on_both_sides(self, ali: list[Event]) -> None:
        first = [e for e in ali if not e.get("times")]
        assert same_messages(first, "id", "offset") >= 2 * 30

    def test_order(self, ali: list[Event]) -> None:
        for key in ("3", "a", "b", "shard0"):
            got = [b for b in bodies(ali, "got", "order") if b.rpartition("-")[0] == key]
            assert got == [f"{key}-{n:02}" for n in range(5)]

    @pytest.mark.parametrize(
        ("who", "expected"),
        [
            ("tags", ["1", "3", "5"]),
            ("sql", ["2", "3", "4"]),
            ("one", [f"all{n}" for n in range(4)]),
            ("two", [f"all{n}" for n in range(4)]),
        ],
    )
    def test_consumers(self, ali: list[Event], who: str, expected: list[str]) -> None:
        """By tags, by SQL, broadcast."""
        all_delivered(ali, who, expected)

    def test_retries(self, ali: list[Event]) -> None:
        got = of(ali, "got", "retry")
        assert [(e["times"], e["topic"], e["body"]) for e in got] == [
            (n, "AliRetry", "again") for n in range(3)
        ]


class TestRocketmqNodejs:
    """A newer C++ client."""

    def test_everything_sent_is_received(self, napi: list[Event]) -> None:
        sent = ["sync", "large " * 5000, *(f"at once {n}" for n in range(4))]
        all_delivered(napi, "push", sent)
        assert attributes(napi, "push") == {(body, f"key-{body[:20]}", "TagA") for body in sent}

    def test_ids_are_the_same_on_both_sides(self, napi: list[Event]) -> None:
        assert same_messages(napi, "id") == 6 + 3 + 3

    def test_tags(self, napi: list[Event]) -> None:
        all_delivered(napi, "tags", ["1", "3", "5"])
        assert {event["tags"] for event in of(napi, "got", "tags")} == {"Odd"}

    def test_retries(self, napi: list[Event]) -> None:
        assert [(e["topic"], e["body"]) for e in of(napi, "got", "retry")] == [
            ("NapiRetry", "again")
        ] * 3
