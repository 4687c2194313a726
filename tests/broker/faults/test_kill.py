"""A killed broker loses no acknowledged message, and open pops are redelivered."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from tests.broker.brokers import talking

from firetrail.client import Message, Popped, Producer, SimpleConsumer
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import ConsumeFromWhere
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand

SEND = {"a": "G", "b": "T1", "c": "TBW102", "d": "4", "f": "0", "g": "1", "h": "0"}
ENOUGH = 500
FIRST = ConsumeFromWhere.FIRST_OFFSET


async def send_until_killed(address: str, process: subprocess.Popen[str]) -> set[bytes]:
    """Send until enough bodies are acknowledged, then kill the broker; return these bodies."""
    client = RemotingClient()
    known: set[bytes] = set()

    async def send(number: int) -> None:
        body = b"%d" % number
        fields = SEND | {"e": str(number % 4)}
        try:
            answer = await client.request(
                address, RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, body), 5
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


@contextmanager
def to_be_killed(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """A broker on the store in ``folder/store``: its process, name server and address."""
    conf = folder / "broker.conf"
    conf.write_text("listenPort=0\nmappedFileSizeCommitLog=8388608\n")
    arguments = ["up", str(folder / "store"), "-c", str(conf), "--namesrv-port", "0"]
    command = [sys.executable, "-m", "firetrail", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(3)]
            namesrv, address = (
                re.findall(r"\d+\.\d+\.\d+\.\d+:\d+", line)[0] for line in lines[:2]
            )
            yield process, namesrv, address
        finally:
            process.kill()


async def test_nothing_that_was_acknowledged_is_lost(tmp_path: Path) -> None:
    with to_be_killed(tmp_path) as (process, _, address):
        known = await send_until_killed(address, process)
    assert len(known) >= ENOUGH

    async with talking(tmp_path / "store") as talk:
        assert not talk.broker.store.recovery.clean
        assert talk.broker.topics.require("T1").read_queue_nums == 4
        found: set[bytes] = set()
        for queue_id in range(4):
            count = talk.broker.store.max_offset("T1", queue_id)
            got = await talk.pull_until("T1", count, queueId=queue_id)
            found |= {record.body for record in got}
        assert found >= known


async def test_unacknowledged_pops_are_redelivered(tmp_path: Path) -> None:
    offsets = tmp_path / "store" / "config" / "consumerOffset.json"

    with to_be_killed(tmp_path) as (_, namesrv, _):
        async with AsyncExitStack() as resources:
            producer = await resources.enter_async_context(Producer(namesrv))
            for body in (b"open", b"done", b"more"):
                await producer.send(Message("T1", body))
            wanted = SimpleConsumer(namesrv, "G", {"T1": "*"}, start=FIRST)
            consumer = await resources.enter_async_context(wanted)
            found: dict[bytes, Popped] = {}

            async def pop(*bodies: bytes) -> None:
                while not found.keys() >= set(bodies):
                    found.update({m.body: m for m in await consumer.receive(invisible_s=5)})

            await pop(b"open", b"done", b"more")
            await consumer.ack(found[b"done"])
            await consumer.ack(await consumer.change_invisible(found[b"more"], 2))
            while not offsets.exists():  # pops after a save are only in the log
                await asyncio.sleep(0.01)
            await producer.send(Message("T1", b"later"))
            await pop(b"later")
            await consumer.ack(found[b"later"])
    with to_be_killed(tmp_path) as (_, namesrv, _):
        async with SimpleConsumer(namesrv, "G", {"T1": "*"}, start=FIRST) as consumer:
            tries: dict[bytes, int] = {}
            while tries.get(b"open", 0) < 1:
                for message in await consumer.receive(invisible_s=60):
                    tries[message.body] = message.reconsume_times
                    await consumer.ack(message)
            assert await consumer.receive(wait_s=0.5) == []
            assert tries.keys() == {b"open"}  # acknowledged messages are not redelivered
