"""The commands that talk to a cluster, with one that ``firetrail up`` has started."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cli.conftest import Firetrail

from firetrail.cli import reset, tail
from firetrail.client import PullConsumer

UP = [sys.executable, "-m", "firetrail.cli.main", "up", "--port", "0", "--namesrv-port", "0"]


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster."""
    folder = tmp_path_factory.mktemp("up")
    conf = folder / "broker.conf"
    conf.write_text("mapedFileSizeCommitLog=8388608\nmapedFileSizeConsumeQueue=20000\n")
    command = [*UP, "-c", conf, folder / "store"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[2]
        finally:
            process.terminate()


@pytest.fixture
def ask(firetrail: Firetrail, namesrv: str) -> Any:
    """Call a command with the address of the cluster; it must not fail."""

    def run(command: str, *arguments: object) -> Any:
        told = firetrail(command, "--namesrv", namesrv, *arguments)
        assert told.code == 0, told.err
        return told

    return run


def settle(namesrv: str, topic: str, count: int) -> None:
    """Wait until a topic has so many messages that can be read."""

    async def wait() -> None:
        async with PullConsumer(namesrv) as consumer:
            queues = await consumer.queues(topic)
            while sum([await consumer.offsets.end(queue) for queue in queues]) < count:
                await asyncio.sleep(0.005)

    asyncio.run(wait())


class TestMessages:
    def test_send_and_tail(self, ask: Any, namesrv: str) -> None:
        options = ("--tags", "new", "--key", "k1", "--property", "p=v")
        sent = ask("send", "Mail", "hello", *options, "--json").json
        assert (sent["status"], sent["broker"]) == ("SEND_OK", "broker-a")
        settle(namesrv, "Mail", 1)
        shown = ask("tail", "Mail", "--json").json
        assert shown["message_id"] == sent["message_id"]
        assert shown["body"] == "aGVsbG8="
        properties = shown["properties"]
        assert (properties["TAGS"], properties["KEYS"], properties["p"]) == ("new", "k1", "v")
        assert "new  'hello'" in ask("tail", "Mail").out
        assert ask("tail", "Mail", "--tags", "old").out == ""

    def test_lines_of_standard_input(self, namesrv: str) -> None:
        command = [sys.executable, "-m", "firetrail.cli.main", "send", "Lines", "-n", namesrv]
        told = subprocess.run(command, input=b"a\nb\r\nc", capture_output=True, check=True)
        assert told.stdout.count(b"SEND_OK  broker-a queue") == 3

    def test_the_last_of_each_queue(self, ask: Any, namesrv: str) -> None:
        for number in range(6):
            ask("send", "Last", str(number), "--order-key", "one")
        settle(namesrv, "Last", 6)
        shown = ask("tail", "Last", "--lines", "2").out
        assert [line.split()[-1] for line in shown.splitlines()] == ["'4'", "'5'"]

    def test_following(self, ask: Any, namesrv: str) -> None:
        ask("send", "Follow", "old", "--order-key", "one")
        settle(namesrv, "Follow", 1)
        command = [sys.executable, "-u", "-m", "firetrail.cli.main", "tail", "Follow", "-f"]
        with subprocess.Popen(
            [*command, "-n", namesrv], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            try:
                assert process.stdout.readline().endswith("'old'\n")
                ask("send", "Follow", "new", "--order-key", "one")
                assert process.stdout.readline().endswith("'new'\n")
            finally:
                process.terminate()


def test_lag(ask: Any, namesrv: str) -> None:
    for number in range(5):
        ask("send", "Lag", str(number), "--order-key", "one")
    settle(namesrv, "Lag", 5)

    async def commit() -> None:
        async with PullConsumer(namesrv, "G") as consumer:
            for queue in await consumer.queues("Lag"):
                if await consumer.offsets.end(queue):
                    await consumer.commit(queue, 3)

    asyncio.run(commit())
    told = ask("lag", "G", "Lag", "--json").lines
    assert sum(line["lag"] for line in told) == 2
    assert ask("lag", "G", "Lag").out.splitlines()[-1].split() == ["total", "5", "2"]


def test_topics(ask: Any, namesrv: str) -> None:
    assert ask("topic", "create", "Made", "--queues", "3").out == "Made: 3 queues\n"
    assert "Made" in ask("topic", "list").out.splitlines()
    ask("send", "Made", "x")
    settle(namesrv, "Made", 1)
    rows = ask("topic", "--json", "show", "Made").lines
    assert [(row["broker"], row["queue_id"]) for row in rows] == [("broker-a", n) for n in range(3)]
    assert sum(row["max_offset"] for row in rows) == 1
    assert ask("topic", "show", "Made").out.splitlines()[0].split()[:2] == ["BROKER", "QUEUE"]
    assert ask("topic", "--json", "delete", "Made").json == {"topic": "Made", "deleted": True}
    assert "Made" not in ask("topic", "--json", "list").out


def test_groups(ask: Any) -> None:
    assert ask("group", "create", "Crew", "--retries", "3").out == "Crew: made\n"
    assert "Crew" in ask("group", "list").out.splitlines()
    assert ask("group", "show", "Crew").out == "Crew: no member is connected\n"
    assert ask("group", "delete", "Crew").out == "Crew: deleted\n"
    assert "Crew" not in ask("group", "list").out.splitlines()


def test_reset(ask: Any, namesrv: str) -> None:
    for number in range(4):
        ask("send", "Reset", str(number), "--order-key", "one")
    settle(namesrv, "Reset", 4)
    ask("group", "create", "GR")
    assert sum(row["offset"] for row in ask("reset", "GR", "Reset", "last", "--json").lines) == 4
    assert ask("lag", "GR", "Reset").out.split()[-1] == "0"
    assert "OFFSET" in ask("reset", "GR", "Reset", "first").out
    assert ask("lag", "GR", "Reset").out.split()[-1] == "4"


class TestNobody:
    def test_no_cluster(self, firetrail: Firetrail) -> None:
        told = firetrail("lag", "G", "T", "--namesrv", "127.0.0.1:1")
        assert told.code == 2
        assert "is a cluster running at 127.0.0.1:1?" in told.err

    def test_no_topic(self, firetrail: Firetrail, namesrv: str) -> None:
        told = firetrail("tail", "Nothing", "--namesrv", namesrv)
        assert told.code == 2
        assert "for the topic: Nothing" in told.err


class TestPlaces:
    @pytest.mark.parametrize(
        ("text", "expected"), [("first", 0), ("last", -1), ("1763199000000", 1763199000000)]
    )
    def test_words_and_numbers(self, text: str, expected: int) -> None:
        assert reset.where(text) == expected

    def test_times(self) -> None:
        assert reset.where("2026-11-15T09:30:00+00:00") == 1794735000000

    def test_others(self, firetrail: Firetrail) -> None:
        told = firetrail("reset", "G", "T", "yesterday")
        assert told.code == 2
        assert "invalid place value: 'yesterday'" in told.err


def test_long_bodies_are_cut(capsys: pytest.CaptureFixture[str], ask: Any, namesrv: str) -> None:
    ask("send", "Long", "x" * 1000)
    settle(namesrv, "Long", 1)
    (line,) = ask("tail", "Long").out.splitlines()
    assert line.endswith("'…") and line.count("x") == tail._PREVIEW
