"""A broker that is killed while it takes messages: what it has acknowledged is there afterwards."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

from tests.broker.brokers import Talk, running

from firetrail.remoting.client import Client
from firetrail.remoting.codes import RequestCode
from firetrail.remoting.command import Command

SEND = {"a": "G", "b": "T1", "c": "TBW102", "d": "4", "f": "0", "g": "1", "h": "0"}
ENOUGH = 500


async def send_until_killed(address: str, process: subprocess.Popen[str]) -> set[bytes]:
    """The bodies that were acknowledged; the broker is killed when there are enough."""
    client = Client()
    known: set[bytes] = set()

    async def send(number: int) -> None:
        body = b"%d" % number
        fields = SEND | {"e": str(number % 4)}
        try:
            answer = await client.request(
                address, Command(RequestCode.SEND_MESSAGE_V2, fields, body), 5
            )
        except (OSError, TimeoutError):
            return
        if answer.code == 0:
            known.add(body)
        if len(known) >= ENOUGH:
            process.kill()

    await asyncio.gather(*(send(number) for number in range(4 * ENOUGH)))
    await client.close()
    return known


def test_nothing_that_was_acknowledged_is_lost(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("listenPort=0\nmappedFileSizeCommitLog=8388608\n")
    store = tmp_path / "store"
    arguments = ["up", str(store), "-c", str(conf), "--namesrv-port", "0"]
    command = [sys.executable, "-m", "firetrail.cli.main", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(3)]
            address = re.findall(r"\d+\.\d+\.\d+\.\d+:\d+", lines[1])[0]
            known = asyncio.run(send_until_killed(address, process))
        finally:
            process.kill()
    assert len(known) >= ENOUGH

    async def consume(talk: Talk) -> None:
        assert not talk.broker.store.recovery.clean
        assert talk.broker.topics.require("T1").read_queue_nums == 4
        found: set[bytes] = set()
        for queue_id in range(4):
            count = talk.broker.store.max_offset("T1", queue_id)
            got = await talk.pull_until("T1", count, queueId=queue_id)
            found |= {record.body for record in got}
        assert found >= known

    running(consume, store)
