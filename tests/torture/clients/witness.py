"""An independent client of a cluster: ``python -m tests.torture.clients.witness``.

It uses nothing but Firetrail's public client, and notes everything in a ledger
(:mod:`tests.torture.records.witness_ledger`). Commands arrive as lines on standard input, and each
is answered with a line of JSON: ``go`` (send), ``count`` (of acknowledged messages), ``check``
(stop sending, read all queues, compare), ``end``.
"""

import argparse
import asyncio
import itertools
import json
import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from tests.torture.records.witness_ledger import Found, Ledger, Place, Verdict, body_of, name_in

from firetrail.client import (
    Admin,
    FiretrailError,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    RequestError,
    SendStatus,
)

PLAIN, LATER = "Plain", "Later"
QUEUES = 4
"""Queues of the plain topic; each has a producer and a reader of its own."""
PAUSE_S = 0.03
LATER_PAUSE_S = 0.3
SEND_S = 3.0
"""How long a producer waits for an answer, as stock clients do."""
PATIENCE_S = 90.0
"""How long a healthy cluster may take to show everything, and to deliver what is due."""
PLACES: list[Place] = [*((PLAIN, number) for number in range(QUEUES)), (LATER, 0)]


class Witness:
    """Producers, readers, and their ledger."""

    def __init__(self, namesrv: str, broker: str, path: Path, seed: int) -> None:
        self._namesrv, self._broker = namesrv, broker
        self._random = Random(f"witness {seed}")
        self._file = path.open("w")
        self._ledger = Ledger()
        self._going = asyncio.Event()
        self._numbers = itertools.count()
        self._busy = 0
        self._tasks: list[asyncio.Task[None]] = []

    def _note(self, kind: str, **entry: Any) -> None:
        entry |= {"kind": kind, "at": time.monotonic()}
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()
        self._ledger.add(entry)

    def _queue(self, place: Place) -> MessageQueue:
        return MessageQueue(place[0], self._broker, place[1])

    async def prepare(self) -> None:
        """Create the topics, and start all loops."""
        async with asyncio.timeout(PATIENCE_S):
            for topic, queues in ((PLAIN, QUEUES), (LATER, 1)):
                while not await self._created(topic, queues):
                    await asyncio.sleep(0.5)
        self._tasks = [asyncio.create_task(self._produce(place)) for place in PLACES]
        self._tasks += [asyncio.create_task(self._follow(place)) for place in PLACES[:-1]]

    async def _created(self, topic: str, queues: int) -> bool:
        with suppress(OSError, FiretrailError):
            async with Admin(self._namesrv) as admin:
                await admin.create_topic(topic, queues)
                return True
        return False

    # -- sending and reading ------------------------------------------------------------------

    async def _produce(self, place: Place) -> None:
        while True:
            with suppress(OSError, FiretrailError):
                async with Producer(self._namesrv, "w", retries=0, timeout_s=SEND_S) as producer:
                    while await self._send(producer, place):
                        await asyncio.sleep(LATER_PAUSE_S if place[0] == LATER else PAUSE_S)
            await asyncio.sleep(0.1)

    async def _send(self, producer: Producer, place: Place) -> bool:
        """Send the next message; return whether the producer is of further use."""
        await self._going.wait()
        name = f"{place[0]}-{place[1]}-{next(self._numbers)}"
        level, due_ms, deliver_at = 0, 0, None
        if place[0] == LATER:
            if self._random.random() < 0.5:
                level, due_ms = 1, int(time.time() * 1000) + 1000
            else:
                due_ms = deliver_at = int(time.time() * 1000) + self._random.randrange(1000, 4000)
        self._note("sent", name=name, topic=place[0], queue=place[1], due=due_ms)
        message = Message(place[0], body_of(name), delay_level=level)
        self._busy += 1
        try:
            queue = self._queue(place)
            result = await producer.send(message, queue=queue, deliver_at=deliver_at)
        except RequestError as error:
            self._note("failed", name=name, why=f"code {error.code}", remark=error.remark[:100])
            return False
        except (OSError, FiretrailError) as error:
            self._note("failed", name=name, why=type(error).__name__)
            return False
        finally:
            self._busy -= 1
        if result.status is SendStatus.OK:
            self._note("ok", name=name, offset=result.queue_offset)
        else:
            self._note("failed", name=name, why=result.status.value)
        return True

    async def _follow(self, place: Place) -> None:
        at = 0
        while True:
            with suppress(OSError, FiretrailError):
                async with PullConsumer(self._namesrv, "readers") as consumer:
                    while True:
                        await self._going.wait()
                        pulled = await consumer.pull(self._queue(place), at, wait_s=1.0)
                        for message in pulled.messages:
                            name = name_in(message.body) or repr(message.body[:40])
                            offset = message.queue_offset
                            about = {"topic": place[0], "queue": place[1], "offset": offset}
                            self._note("read", name=name, **about)
                        if pulled.next_offset < at:
                            about = {"topic": place[0], "queue": place[1], "offset": at}
                            self._note("back", to=pulled.next_offset, **about)
                        at = pulled.next_offset
            await asyncio.sleep(0.1)

    # -- commands -----------------------------------------------------------------------------

    def go(self) -> dict[str, Any]:
        """Send messages from now on."""
        self._note("go")
        self._going.set()
        return {}

    def count(self) -> dict[str, Any]:
        return {"acknowledged": len(self._ledger.acknowledged)}

    async def check(self) -> dict[str, Any]:
        """Stop sending, and compare the queues with the ledger."""
        self._going.clear()
        while self._busy:
            await asyncio.sleep(0.01)
        self._note("rest")
        over_at = time.monotonic() + PATIENCE_S
        while True:
            verdict, error = await self._attempt()
            if verdict is not None and not verdict.wrong.get("lost"):
                break  # all that is acknowledged can be read
            if time.monotonic() >= over_at:
                break
            await asyncio.sleep(0.5)
        if verdict is None:
            return {"wrong": {"unreadable": [1, error]}, "figures": {}}
        counts = {kind: [len(them), *them[:5]] for kind, them in verdict.wrong.items()}
        return {"wrong": counts, "figures": verdict.figures}

    async def _attempt(self) -> tuple[Verdict | None, str]:
        """Read all queues; return the verdict, or why they cannot be read."""
        found: dict[Place, list[Found]] = {}
        # A request that was late arrives meanwhile, so its message is read after its queue is.
        read = dict(self._ledger.read)
        try:
            async with asyncio.timeout(PATIENCE_S), PullConsumer(self._namesrv, "w") as consumer:
                for place in PLACES:
                    queue = self._queue(place)
                    found[place] = [
                        Found(message.queue_offset, message.body, message.record.store_time)
                        async for message in consumer.read(queue, 0)
                    ]
        except (OSError, FiretrailError) as error:
            return None, f"{type(error).__name__}: {error}"
        return self._ledger.judged(found, read), ""

    async def obey(self) -> None:
        """Answer commands until the end."""
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        plain: dict[str, Callable[[], dict[str, Any]]] = {"go": self.go, "count": self.count}
        while (command := (await reader.readline()).decode().strip()) not in ("", "end"):
            answer = await self.check() if command == "check" else plain[command]()
            print(json.dumps(answer), flush=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._file.close()


async def _run(args: argparse.Namespace) -> None:
    witness = Witness(args.namesrv, args.broker, args.ledger, args.seed)
    await witness.prepare()
    print(json.dumps({}), flush=True)
    await witness.obey()


def main() -> None:
    """Run the client until it is told to end."""
    parser = argparse.ArgumentParser(prog="witness", description=__doc__)
    parser.add_argument("namesrv", help="HOST:PORT of the name server")
    parser.add_argument("ledger", type=Path, help="the file to write")
    parser.add_argument("--broker", default="broker-a", help="name of the broker")
    parser.add_argument("--seed", type=int, default=1)
    logging.disable()
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
