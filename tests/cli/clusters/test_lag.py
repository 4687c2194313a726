"""``firetrail lag``: its output about single queues, and at a cluster."""

import argparse
import asyncio
import json
import signal
from typing import Any

import pytest
from tests.cli.live_clusters import running, settle
from tests.helpers import PATIENCE_S

from firetrail.cli.clusters import lag
from firetrail.cli.clusters.lag import Lag
from firetrail.client import MessageQueue, PullConsumer

QUEUE = MessageQueue("T", "b", 0)


@pytest.mark.parametrize(
    ("committed", "first", "expired"),
    [(2, 1087, 1085), (1087, 1087, 0), (None, 1087, 0), (3, 0, 0)],
)
def test_expired_messages_are_those_between_commit_and_first_offset(
    committed: int | None, first: int, expired: int
) -> None:
    assert Lag(QUEUE, committed, first, 1750).expired == expired


def test_expired_messages_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    lags = [Lag(QUEUE, 2, 1087, 1750)]
    lag._print(argparse.Namespace(group="G", json=False, watch=False), lags)
    assert capsys.readouterr().out.splitlines()[-1] == (
        "T queue 0 of b: G skips 1085 messages (offsets 2 to 1086), which were deleted before the "
        "group consumed them"
    )
    lag._print(argparse.Namespace(group="G", json=True, watch=False), lags)
    result = json.loads(capsys.readouterr().out)
    assert (result["lag"], result["expired"]) == (663, 1085)


async def commit(namesrv: str, group: str, topic: str, offset: int) -> None:
    """Commit an offset for the queues of a topic that have messages."""
    async with PullConsumer(namesrv, group) as consumer:
        for queue in await consumer.queues(topic):
            if await consumer.offsets.end(queue):
                await consumer.offsets.commit(group, queue, offset)


def test_lag_is_the_distance_from_the_committed_offset(ask: Any, namesrv: str) -> None:
    for number in range(5):
        ask("send", "Lag", str(number), "--order-key", "one")
    settle(namesrv, "Lag", 5)
    asyncio.run(commit(namesrv, "G", "Lag", 3))
    result = ask("lag", "G", "Lag", "--json").lines
    assert sum(line["lag"] for line in result) == 2
    assert ask("lag", "G", "Lag").out.splitlines()[-1].split() == ["total", "5", "2"]
    assert [line["topic"] for line in ask("lag", "G", "--json").lines] == ["Lag"] * len(result)


def test_a_group_beyond_the_end(ask: Any, namesrv: str) -> None:
    """Its lag is not negative, and the reason is said."""
    ask("group", "create", "GB")
    ask("send", "Beyond", "1", "--order-key", "one")
    settle(namesrv, "Beyond", 1)
    asyncio.run(commit(namesrv, "GB", "Beyond", 1152))
    result = ask("lag", "GB", "Beyond", "--json").lines
    assert sorted((line["lag"], line["ahead"]) for line in result)[-1] == (0, 1151)
    *_, total, reason = ask("lag", "GB", "Beyond").out.splitlines()
    assert total.split() == ["total", "1", "0"]
    assert "GB is 1151 beyond the end; the queue became shorter" in reason
    assert "'firetrail reset GB Beyond last' sets it back" in reason
    ask("reset", "GB", "Beyond", "last")
    assert "beyond" not in ask("lag", "GB", "Beyond").out


def test_watched_lag_is_printed_until_ctrl_c(ask: Any, namesrv: str) -> None:
    """The lag is printed repeatedly, with the time; Ctrl-C ends it by the shell's convention."""
    ask("topic", "create", "Watched", "--queues", "1")
    ask("group", "create", "GW")
    with running("lag", "GW", "Watched", "--watch", "-n", namesrv) as process:
        assert process.stdout is not None
        shown = [process.stdout.readline() for _ in range(6)]
        assert [line.split()[0] for line in shown[1:3]] == ["TOPIC", "Watched"]
        assert shown[0].endswith("Z\n") and shown[4:] == [shown[4], shown[1]]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
