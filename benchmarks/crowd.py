"""Many clients of one broker: ``python -m benchmarks.crowd ADDRESS JSON`` prints figures as JSON.

The clients are connections that only send heartbeats, producers that send as fast as they are
answered, consumers that wait for messages, and one that requests much and does not read. The
figures are the time of a heartbeat under this load, and the resources of the broker.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass

from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import HeartbeatData, ProducerData
from firetrail.remoting.messages.headers import PullHeader, SendHeaderV2
from firetrail.remoting.messages.typed_header import Header
from firetrail.remoting.wire.codes import PullFlag, RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.system import allow_many_files

TIMEOUT_S = 60.0
HEARTBEAT_S = 1.0
PULLS_UNREAD = 2_000


@dataclass(frozen=True, slots=True)
class Crowd:
    """The number and kinds of the clients, and their work."""

    connections: int = 1000
    producers: int = 50
    consumers: int = 100
    topics: int = 25
    queues: int = 4
    seconds: float = 10.0
    size: int = 1024


class Run:
    """One run against the broker at an address."""

    def __init__(self, address: str, crowd: Crowd) -> None:
        self._address = address
        self._crowd = crowd
        self._heartbeats: list[float] = []
        self._sent = self._received = self._busy = 0
        self._over = False

    async def run(self) -> dict[str, object]:
        """Let all clients work for the given time; return the figures."""
        crowd = self._crowd
        async with asyncio.TaskGroup() as clients:
            for part in self._parts():
                clients.create_task(part)
            await asyncio.sleep(crowd.seconds)
            self._over = True
        times = sorted(self._heartbeats) or [0.0]
        return {
            "p50_s": times[len(times) // 2],
            "p99_s": times[int(len(times) * 0.99)],
            "max_s": times[-1],
            "sent": self._sent,
            "received": self._received,
            "busy": self._busy,
        }

    def _parts(self) -> Iterable[Coroutine[None, None, None]]:
        crowd = self._crowd
        for number in range(crowd.connections):
            yield self._keep_alive(number)
        for number in range(crowd.producers):
            yield self._produce(number)
        for number in range(crowd.consumers):
            yield self._consume(number)
        if crowd.consumers:
            yield self._ask_and_not_read()

    def _place(self, number: int) -> tuple[str, int]:
        topic, queue = divmod(number, self._crowd.queues)
        return f"Crowd{topic % self._crowd.topics}", queue

    async def _ask(
        self, client: RemotingClient, code: int, header: Header | None = None, body: bytes = b""
    ) -> RemotingCommand:
        fields = header.encode() if header is not None else {}
        return await client.request(self._address, RemotingCommand(code, fields, body), TIMEOUT_S)

    async def _keep_alive(self, number: int) -> None:
        client = RemotingClient()
        await client.connect(self._address)
        body = HeartbeatData(f"crowd{number}", [ProducerData("crowd")]).encode()
        await asyncio.sleep(HEARTBEAT_S * number / self._crowd.connections)
        while not self._over:
            began = time.perf_counter()
            response = await self._ask(client, RequestCode.HEART_BEAT, None, body)
            assert response.code == ResponseCode.SUCCESS, response
            self._heartbeats.append(time.perf_counter() - began)
            await asyncio.sleep(HEARTBEAT_S)
        await client.close()

    async def _produce(self, number: int) -> None:
        client = RemotingClient()
        body = bytes(self._crowd.size)
        while not self._over:
            number += 1
            topic, queue = self._place(number)
            now = int(time.time() * 1000)
            header = SendHeaderV2("crowd", topic, "TBW102", 4, queue, 0, now, 0, "")
            response = await self._ask(client, RequestCode.SEND_MESSAGE_V2, header, body)
            if response.code == ResponseCode.SYSTEM_BUSY:
                self._busy += 1
                await asyncio.sleep(0.01)
            else:
                assert response.code == ResponseCode.SUCCESS, response
                self._sent += 1
        await client.close()

    async def _consume(self, number: int) -> None:
        client = RemotingClient()
        offset = 0
        while not self._over:
            response = await self._ask(
                client, RequestCode.PULL_MESSAGE, self._pull(number, offset, 1000)
            )
            if "nextBeginOffset" not in response.fields:  # the topic does not exist yet
                await asyncio.sleep(0.1)
                continue
            next_offset = int(response.fields["nextBeginOffset"])
            if response.code == ResponseCode.SUCCESS:
                self._received += next_offset - offset
            offset = next_offset
        await client.close()

    def _pull(self, number: int, offset: int, suspend_ms: int) -> PullHeader:
        topic, queue = self._place(number)
        flags = PullFlag.SUSPEND | PullFlag.SUBSCRIPTION
        return PullHeader("crowd", topic, queue, offset, 32, int(flags), 0, suspend_ms, 0, "*")

    async def _ask_and_not_read(self) -> None:
        """Request more than the connection can take, as a consumer that does not read."""
        client = RemotingClient()
        connection = await client.connect(self._address)
        await asyncio.sleep(self._crowd.seconds / 4)
        connection.hold("it is slow")
        for _ in range(PULLS_UNREAD):
            header = self._pull(0, 0, 0)
            connection.send(RemotingCommand(RequestCode.PULL_MESSAGE, header.encode()))
        while not self._over:
            await asyncio.sleep(0.1)
        connection.abort()


def main() -> None:
    """Run it."""
    allow_many_files()
    crowd = Crowd(**json.loads(sys.argv[2]))
    print(json.dumps(asyncio.run(Run(sys.argv[1], crowd).run())))


if __name__ == "__main__":
    main()
