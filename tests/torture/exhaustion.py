"""Clients that try to use up the memory or the time of a broker: nothing piles up.

Each attack is what a client without credentials can do. Meanwhile an honest client asks for an
offset again and again. The memory must stay within the limits, the honest client must be answered,
and the memory must be free for the next attack.
"""

import asyncio
import contextlib
import random
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.crash.oracle import Violation
from tests.torture.process import BrokerProcess
from tests.torture.soak import sample

from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import ConsumerData, HeartbeatData
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.remoting.wire.frames import encode_frame

MIB = 1 << 20
STRANGERS_MIB = 32
CONF = {"stranger_bytes": STRANGERS_MIB * MIB, "buffered_bytes": 2 * STRANGERS_MIB * MIB}
ROOM_MIB = 64
"""Memory beyond the budget: buffers on the way, and what allocators return late."""
DELAY_MAX_S = 5.0
"""Longest delay of the honest client, also on a busy machine. A quiet one needs milliseconds."""
LOG_MAX = 64 << 10
"""Bytes that an attack may make the broker log."""

Hold = Callable[[], Awaitable[None]]
"""Returns when the broker has had time to work on what was sent."""
Attack = Callable[[str, random.Random, Hold], Awaitable[int]]
"""Attacks the broker at an address; returns the number of bytes sent."""
ANSWERS = 20
"""Answers that the honest client gets while the connections of an attack are open."""


def frame_of(command: RemotingCommand) -> bytes:
    return b"".join(encode_frame(command))


async def _send(address: str, data: bytes, *, reads: bool = False) -> asyncio.StreamWriter | None:
    """Send bytes on a connection of its own; return it, None if the broker has closed it."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    if not reads:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(10):
            for at in range(0, len(data), MIB):
                writer.write(data[at : at + MIB])
                await writer.drain()
            if reads:
                await reader.read(1)
        return writer
    writer.transport.abort()
    return None


async def _crowd(address: str, count: int, data: bytes, hold: Hold, *, reads: bool = False) -> int:
    """Send the same bytes on many connections, hold them for a while, then close them."""
    opened = []
    for start in range(0, count, 20):
        batch = (_send(address, data, reads=reads) for _ in range(min(20, count - start)))
        opened += await asyncio.gather(*batch)
    await hold()
    for writer in opened:
        if writer is not None:
            writer.transport.abort()
    return count * len(data)


async def unfinished(address: str, source: random.Random, hold: Hold) -> int:
    """Send most of a large frame on many connections."""
    size = source.randrange(1, 4) * MIB
    header = struct.pack(">ii", 16 * MIB - 4, 100)
    return await _crowd(address, 128 * MIB // size, header + bytes(size), hold)


async def unread(address: str, source: random.Random, hold: Hold) -> int:
    """Pull large messages on many connections, and read no answer."""
    fields = {
        "consumerGroup": "CG",
        "topic": "T1",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
    }
    pull = frame_of(RemotingCommand(RequestCode.PULL_MESSAGE, fields))
    return await _crowd(address, 20, pull * 500, hold)


async def invalid_json(address: str, source: random.Random, hold: Hold) -> int:
    """Send heartbeats that are not JSON, and as large as a frame may be."""
    body = b"[" + source.choice((b"[],", b"{a:1},", b"'',")) * (5 * MIB)
    beat = frame_of(RemotingCommand(RequestCode.HEART_BEAT, body=body[: 15 * MIB]))
    return await _crowd(address, 4, beat, hold, reads=True)


async def made_up_groups(address: str, source: random.Random, hold: Hold) -> int:
    """Send heartbeats with thousands of groups."""
    consumers = [ConsumerData(f"made-up-{number}") for number in range(4_000)]
    body = HeartbeatData("c1", [], consumers).encode(standard=True)[: MIB - 1]
    beat = frame_of(RemotingCommand(RequestCode.HEART_BEAT, body=body))
    return await _crowd(address, 4, beat, hold, reads=True)


async def garbage(address: str, source: random.Random, hold: Hold) -> int:
    """Send bad frames on many connections."""
    return await _crowd(address, 1_000, b"\xff" * 16, hold, reads=True)


ATTACKS: tuple[Attack, ...] = (unfinished, unread, invalid_json, made_up_groups, garbage)


class Honest:
    """A client that asks again and again, and notes the longest delay."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.delay_s = 0.0
        self.answers = 0

    async def answered(self) -> None:
        enough = self.answers + ANSWERS
        while self.answers < enough:
            await asyncio.sleep(0.005)

    async def ask(self) -> None:
        client = RemotingClient()
        fields = {"topic": "T1", "queueId": "0"}
        try:
            while True:
                began = time.monotonic()
                command = RemotingCommand(RequestCode.GET_MAX_OFFSET, fields)
                answer = await client.request(self._address, command, 10 * DELAY_MAX_S)
                if answer.code:
                    raise Violation(f"an honest client was refused: {answer.remark}")
                self.delay_s = max(self.delay_s, time.monotonic() - began)
                self.answers += 1
                await asyncio.sleep(0.01)
        finally:
            await client.close()


async def _prepare(address: str) -> None:
    """Store messages for the attacks that pull."""
    client = RemotingClient()
    values = ("PG", "T1", "TBW102", "1", "0", "0", "0", "0", "", "0", "false")
    fields = dict(zip("abcdefghijk", values, strict=True))
    try:
        for _ in range(32):
            command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, bytes(60_000))
            await client.ask(address, command)
    finally:
        await client.close()


async def exhaust(folder: Path, seed: int) -> Counter[str]:
    """Attack a broker in every way; return the largest figures."""
    source = random.Random(seed)
    broker = BrokerProcess(folder, CONF)
    figures: Counter[str] = Counter()
    try:
        await broker.start()
        address = broker.address
        await _prepare(address)
        for attack in source.sample(ATTACKS, len(ATTACKS)):
            name = attack.__name__.replace("_", " ")
            before, said = sample(broker.pid, broker.store).rss_mb, len(broker.said)
            honest = Honest(address)
            asking = asyncio.ensure_future(honest.ask())
            attacking = asyncio.ensure_future(attack(address, source, honest.answered))
            most = before
            while not attacking.done():
                await asyncio.wait((attacking, asking), timeout=0.05)
                if asking.done():
                    asking.result()
                most = max(most, sample(broker.pid, broker.store).rss_mb)
            sent = await attacking
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            if most - before > 2 * STRANGERS_MIB + ROOM_MIB:
                raise Violation(f"{name}: {most - before:.0f} MiB of memory for {sent} bytes")
            if honest.delay_s > DELAY_MAX_S:
                raise Violation(f"{name}: an honest client waited for {honest.delay_s:.1f} s")
            if len(broker.said) - said > LOG_MAX:
                raise Violation(f"{name}: {len(broker.said) - said} bytes of log")
            figures[f"{name}: MiB sent"] = sent // MIB
            figures[f"{name}: MiB kept"] = round(most - before)
            figures[f"{name}: ms delay"] = round(1000 * honest.delay_s)
        if await broker.stop() != 0:
            raise Violation(f"a stop that failed: {broker.said[-2000:]}")
    finally:
        await broker.close()
    return figures
