"""Clients at work: producers of all kinds, a group that commits its offsets, a push consumer.

They go on whatever the broker does, and write into the ledger what they were told.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Self

from tests.crash.oracle import Violation
from tests.torture.ledger import Ledger

from firetrail.client import Message, Producer, PullConsumer, PushConsumer, SendResult, SendStatus
from firetrail.errors import FiretrailError, RequestError
from firetrail.remoting.bodies import ConsumeFromWhere, MessageQueue

TOPICS = {"T-single", "T-batch", "T-delayed"}
COMMITTING, PUSHED = "committing", "pushed"
DRAIN_S = 90.0
"""Patience with consumers that have everything left to read; it takes seconds."""


class Load:
    """The clients. ``serving`` is set while the broker is expected to answer."""

    def __init__(self, namesrv: str, ledger: Ledger, source: random.Random) -> None:
        self._namesrv = namesrv
        self.ledger = ledger
        self._source = source
        self.serving = asyncio.Event()
        self.sending = asyncio.Event()
        self.lives = 0
        """Counts the broker's; who sees another number begins anew."""
        self.errors = Counter[str]()
        self.remarks = Counter[str]()
        self._failure: BaseException | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._resources = AsyncExitStack()

    async def __aenter__(self) -> Self:
        enter = self._resources.enter_async_context
        self._producer = await enter(Producer(self._namesrv, "load", retries=0, timeout_s=5))
        for topic in sorted(TOPICS):  # consumers look for new topics rarely
            await self._send_single(topic)
        self._consumer = await enter(PullConsumer(self._namesrv, COMMITTING))
        wanted = dict.fromkeys(TOPICS, "*")
        start = ConsumeFromWhere.FIRST_OFFSET
        await enter(PushConsumer(self._namesrv, PUSHED, self._pushed, wanted, start=start))
        senders = [self._send_one, self._send_one, self._send_batch, self._send_delayed]
        for send in senders:
            self._begin(self._forever(send, self.sending))
        for topic in TOPICS:
            self._begin(self._consume(topic))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._resources.aclose()

    def started(self) -> None:
        """The broker serves again."""
        self.lives += 1
        self.serving.set()
        self.sending.set()

    def gone(self) -> None:
        """The broker is about to be gone."""
        self.serving.clear()
        self.sending.clear()

    def check(self) -> None:
        """Raise what any of the clients has found wrong."""
        if self._failure is not None:
            raise self._failure

    async def drain(self) -> None:
        """Send no more, and wait until the consumers got everything."""
        self.sending.clear()
        deadline = asyncio.get_running_loop().time() + DRAIN_S
        while asyncio.get_running_loop().time() < deadline:
            self.check()
            if not any(self.ledger.unseen(group) for group in (COMMITTING, PUSHED)):
                return
            await asyncio.sleep(0.05)
        for group in (COMMITTING, PUSHED):
            for serial in self.ledger.unseen(group):
                text = f"I1: group {group} never got message {serial}, which was acknowledged"
                self.ledger.violated("never consumed", serial, text)

    def _begin(self, work: Awaitable[None]) -> None:
        self._tasks.append(asyncio.ensure_future(self._watched(work)))

    async def _watched(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as error:
            self._failure = self._failure or error

    def note(self, error: Exception) -> None:
        """A request that failed, as they may when a broker dies."""
        if isinstance(error, RequestError):
            self.errors[f"code {error.code}"] += 1
            self.remarks[f"{error.code}: {error.remark}"] += 1
        else:
            self.errors[type(error).__name__] += 1

    async def _forever(self, act: Callable[[], Awaitable[None]], when: asyncio.Event) -> None:
        while True:
            await when.wait()
            try:
                await act()
            except Violation:
                raise
            except (OSError, TimeoutError, FiretrailError) as error:
                self.note(error)
                await asyncio.sleep(0.02)

    # -- producers ----------------------------------------------------------------------------

    async def _send_one(self) -> None:
        await self._send_single("T-single")

    async def _send_delayed(self) -> None:
        await self._send_single("T-delayed", self._source.choice((1, 1, 2)))
        await asyncio.sleep(0.01)

    async def _send_single(self, topic: str, level: int = 0) -> None:
        serial, body = self.ledger.new(topic, delayed=level > 0, keyed=True)
        key = self.ledger.sent[serial].key
        keys = (key,) if key else ()
        message = Message(topic, body, keys=keys, delay_level=level)
        await self._sent([serial], self._producer.send(message))

    async def _send_batch(self) -> None:
        made = [self.ledger.new("T-batch") for _ in range(self._source.randint(2, 8))]
        messages = [Message("T-batch", body) for _, body in made]
        serials = [serial for serial, _ in made]
        await self._sent(serials, self._producer.send_batch(messages))

    async def _sent(self, serials: list[int], sending: Awaitable[SendResult]) -> None:
        try:
            result = await sending
        finally:
            self.ledger.end(serials)
        if result.status is not SendStatus.OK:
            self.errors[result.status] += 1
            return
        for number, serial in enumerate(serials):
            self.ledger.acknowledge(serial, result.queue.queue_id, result.queue_offset + number)

    # -- consumers ----------------------------------------------------------------------------

    def _pushed(self, message: object) -> None:
        try:
            self.ledger.see(PUSHED, message.body)  # type: ignore[attr-defined]
        except Violation as violation:
            self._failure = self._failure or violation

    async def _consume(self, topic: str) -> None:
        """A member of a group of its own making: it begins each life at the committed offsets."""
        position: dict[MessageQueue, int] = {}
        life = 0

        async def act() -> None:
            nonlocal life
            if life != self.lives:
                position.clear()
                life = self.lives
            got = 0
            for queue in await self._consumer.queues(topic):
                if queue not in position:
                    position[queue] = await self._committed(queue)
                got += await self._consume_some(queue, position)
            if not got:
                await asyncio.sleep(0.02)

        await self._forever(act, self.serving)

    async def _committed(self, queue: MessageQueue) -> int:
        committed = await self._consumer.committed(queue) or 0
        if committed > self.ledger.reached[queue]:
            reached = self.ledger.reached[queue]
            text = f"I7: {queue} is committed to {committed}, consumed to {reached}"
            self.ledger.violated("offsets ahead", (queue, committed), text)
        return committed

    async def _consume_some(self, queue: MessageQueue, position: dict[MessageQueue, int]) -> int:
        pulled = await self._consumer.pull(queue, position[queue])
        for message in pulled.messages:
            self.ledger.see(COMMITTING, message.body)
        if pulled.messages:
            position[queue] = pulled.next_offset
            reached = max(self.ledger.reached[queue], pulled.next_offset)
            self.ledger.reached[queue] = reached
            await self._consumer.commit(queue, pulled.next_offset)
        return len(pulled.messages)
