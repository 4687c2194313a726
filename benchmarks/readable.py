"""Delay from send to read: ``python -m benchmarks.readable ADDRESS MESSAGES`` prints it as JSON.

One client sends a message and, as soon as that is acknowledged, pulls repeatedly until it has the
message. The figures are the time from the acknowledgement to the message, and how often the first
pull finds it. The client is Firetrail's for every broker.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from benchmarks.contestants import TIMEOUT_S
from firetrail.errors import RequestError
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.headers import PullHeader, SendHeaderV2
from firetrail.remoting.wire.codes import PullFlag, RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

GROUP, TOPIC, MODEL = "readable", "Readable", "TBW102"
BODY = bytes(128)
PAUSE_S = 0.001
BUSY_S = 0.1
"""Pause before a message that a busy broker has refused is sent again."""
WARM = 2
"""One message per this number is sent before the measured ones, to warm up Java's compiler."""


class Reader:
    """A client that sends messages to queue 0 of a topic and reads each of them at once."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._client = RemotingClient()

    async def measure(self, messages: int) -> dict[str, float]:
        """Return the figures of this number of messages."""
        try:
            for _ in range(messages // WARM):
                await self._send_and_read()
            rounds = [await self._send_and_read() for _ in range(messages)]
        finally:
            await self._client.close()
        times = sorted(seconds for seconds, _ in rounds)
        return {
            "first": sum(pulls == 1 for _, pulls in rounds) / messages,
            "p50_s": times[messages // 2],
            "p99_s": times[messages * 99 // 100],
            "max_s": times[-1],
        }

    async def _send_and_read(self) -> tuple[float, int]:
        """Seconds from the acknowledgement of a message until it was read, and pulls it took."""
        await asyncio.sleep(PAUSE_S)
        offset = await self._send()
        began = time.perf_counter()
        pulls = 1
        while not await self._is_there(offset):
            pulls += 1
            if time.perf_counter() - began > TIMEOUT_S:
                raise TimeoutError(f"message {offset} cannot be read after {TIMEOUT_S} s")
        return time.perf_counter() - began, pulls

    async def _send(self) -> int:
        """Send a message, again while the broker is busy; return its queue offset."""
        while True:
            now = int(time.time() * 1000)
            header = SendHeaderV2(GROUP, TOPIC, MODEL, 1, 0, 0, now, 0, "")
            send = RemotingCommand(RequestCode.SEND_MESSAGE_V2, header.encode(), BODY)
            try:
                answer = await self._client.ask(self._address, send)
            except RequestError as error:
                if error.code != ResponseCode.SYSTEM_BUSY:
                    raise
                await asyncio.sleep(BUSY_S)
            else:
                return int(answer.fields["queueOffset"])

    async def _is_there(self, offset: int) -> bool:
        flags = int(PullFlag.SUBSCRIPTION)  # and none to wait for messages
        header = PullHeader(GROUP, TOPIC, 0, offset, 1, flags, 0, 0, 0, "*")
        pull = RemotingCommand(RequestCode.PULL_MESSAGE, header.encode())
        answer = await self._client.request(self._address, pull, TIMEOUT_S)
        return answer.code == ResponseCode.SUCCESS


def main() -> None:
    """Run it."""
    print(json.dumps(asyncio.run(Reader(sys.argv[1]).measure(int(sys.argv[2])))))


if __name__ == "__main__":
    main()
