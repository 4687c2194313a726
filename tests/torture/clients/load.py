"""Clients at work: producers of all kinds, a group that commits its offsets, a push consumer.

They continue whatever happens to the broker, and record its answers in the ledger. Every other kind
of use has its own module (:data:`USES`).
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self
from unittest import mock

from tests.crash.files_check import Raw
from tests.crash.oracle import Violation
from tests.torture.clients.administration import Administering
from tests.torture.clients.open_transactions import Transacting
from tests.torture.clients.ordered_messages import Ordering
from tests.torture.clients.pops import Popping
from tests.torture.clients.retries import Retrying
from tests.torture.clients.use import Use
from tests.torture.records.ledger import Ledger

from firetrail.client import Message, Producer, PullConsumer, PushConsumer, SendResult, SendStatus
from firetrail.client.consumers.push import group_requests, process_queue
from firetrail.errors import FiretrailError, RequestError
from firetrail.remoting.messages.bodies import ConsumeFromWhere, MessageQueue

TOPICS = {"T-single", "T-batch", "T-delayed"}
"""The topics that the two groups of this module consume."""
COMMITTING, PUSHED = "committing", "pushed"
USES: tuple[type[Use], ...] = (Transacting, Popping, Retrying, Ordering, Administering)
IMPATIENT = ((process_queue, "PULL_RETRY_S"), (group_requests, "SEND_BACK_RETRY_S"))
"""The pauses of push consumers after a failure. They are shortened, because consumers would sleep
through most lives of a broker."""
DRAIN_S = 90.0
"""Patience with consumers that have everything left to read; it takes seconds."""


class Load:
    """The clients. ``serving`` is set while the broker is expected to answer."""

    def __init__(
        self, namesrv: str, ledger: Ledger, source: random.Random, uses: Sequence[type[Use]] = ()
    ) -> None:
        self.namesrv = namesrv
        self.ledger = ledger
        self.source = source
        self.serving = asyncio.Event()
        self.sending = asyncio.Event()
        self.lives = 0
        """The number of broker starts. Clients start over when it changes."""
        self.times_hold = True
        """Whether broker and clients agree on the time."""
        self.nothing_expires = True
        """Whether all messages stay in the log; otherwise retention may overtake consumers."""
        self.oks: dict[str, float] = {}
        """Per kind of request that needs the disk: start time of the last one that succeeded."""
        self.errors = Counter[str]()
        self.remarks = Counter[str]()
        self._failure: BaseException | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._resources = AsyncExitStack()
        self.uses = [use(self) for use in uses]

    async def __aenter__(self) -> Self:
        for module, pause in IMPATIENT:
            self._resources.enter_context(mock.patch.object(module, pause, 0.1))
        enter = self._resources.enter_async_context
        self._producer = await enter(Producer(self.namesrv, "load", retries=0, timeout_s=5))
        for topic in sorted(self.topics):  # consumers look for new topics rarely
            await self.send_single(topic)
        self._consumer = await enter(PullConsumer(self.namesrv, COMMITTING))
        wanted = dict.fromkeys(TOPICS, "*")
        start = ConsumeFromWhere.FIRST_OFFSET
        await enter(PushConsumer(self.namesrv, PUSHED, self._pushed, wanted, start=start))
        senders = [self._send_one, self._send_one, self._send_batch, self._send_delayed]
        for send in senders:
            self.begin(self.forever(send, self.sending))
        for topic in sorted(TOPICS):
            self.begin(self._consume(topic))
        for use in self.uses:
            await use.begin(self._resources)
        return self

    @property
    def topics(self) -> set[str]:
        """All with messages that the ledger knows the places of."""
        return TOPICS.union(*(use.topics for use in self.uses))

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._resources.aclose()

    def started(self) -> None:
        """Note that the broker serves again."""
        self.lives += 1
        self.serving.set()
        self.sending.set()

    def gone(self) -> None:
        """Note that the broker is about to end."""
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
            missing = self._missing()
            if not missing:
                return
            await asyncio.sleep(0.1)
        for who, what in missing.items():
            for each in what:
                text = f"I1: {who} never got what was acknowledged: {each}"
                self.ledger.violated("never consumed", (who, each), text)

    def _missing(self) -> dict[str, Sequence[object]]:
        """Return the messages that are still to be consumed, by consumer."""
        found: dict[str, Sequence[object]] = {
            group: self.ledger.unseen(group, TOPICS) for group in (COMMITTING, PUSHED)
        }
        found |= {type(use).__name__: use.missing() for use in self.uses}
        return {name: missing for name, missing in found.items() if missing}

    def figures(self) -> Counter[str]:
        """Return how often each thing has happened."""
        figures = Counter({"acknowledged": len(self.ledger.acknowledged)})
        for use in self.uses:
            figures += Counter(use.figures())
        return figures

    def look(self, store: Path, records: Sequence[Raw]) -> None:
        """Compare the files of a broker that has ended with the answers that clients received."""
        for use in self.uses:
            use.look(store, records)

    def begin(self, work: Awaitable[None]) -> None:
        """Do something beside the rest; its failure is the load's."""
        self._tasks.append(asyncio.ensure_future(self._watched(work)))

    async def _watched(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Something is wrong, to be raised by the next :meth:`check`."""
        self._failure = self._failure or error

    def note_ok(self, kind: str, begun: float) -> None:
        """Note that a request that needs the disk got an OK."""
        self.oks[kind] = max(self.oks.get(kind, begun), begun)

    def note(self, error: Exception) -> None:
        """Note a failed request; requests may fail when a broker dies."""
        if isinstance(error, RequestError):
            self.errors[f"code {error.code}"] += 1
            self.remarks[f"{error.code}: {error.remark}"] += 1
        else:
            self.errors[type(error).__name__] += 1

    async def forever(self, act: Callable[[], Awaitable[None]], when: asyncio.Event) -> None:
        """Act again and again, whenever ``when`` is set; requests may fail."""
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
        await self.send_single("T-single")

    async def _send_delayed(self) -> None:
        await self.send_single("T-delayed", self.source.choice((1, 1, 2)))
        await asyncio.sleep(0.01)

    async def send_single(
        self, topic: str, level: int = 0, order_key: str | None = None, deliver_ms: int = 0
    ) -> tuple[int, SendResult]:
        """Send a message and note what was said; return the number of the message, and that."""
        delayed = level > 0 or deliver_ms > 0
        serial, body = self.ledger.new(topic, delayed=delayed, deliver_ms=deliver_ms, keyed=True)
        key = self.ledger.sent[serial].key
        keys = (key,) if key else ()
        message = Message(topic, body, keys=keys, delay_level=level)
        sending = self._producer.send(message, order_key=order_key, deliver_at=deliver_ms or None)
        return serial, await self._sent([serial], sending)

    async def _send_batch(self) -> None:
        made = [self.ledger.new("T-batch") for _ in range(self.source.randint(2, 8))]
        messages = [Message("T-batch", body) for _, body in made]
        serials = [serial for serial, _ in made]
        await self._sent(serials, self._producer.send_batch(messages))

    async def _sent(self, serials: list[int], sending: Awaitable[SendResult]) -> SendResult:
        begun = time.monotonic()
        try:
            result = await sending
        finally:
            self.ledger.end(serials)
        if result.status is not SendStatus.OK:
            self.errors[result.status] += 1
            return result
        self.note_ok("send", begun)
        for number, serial in enumerate(serials):
            self.ledger.acknowledge(serial, result.queue.queue_id, result.queue_offset + number)
        return result

    # -- consumers ----------------------------------------------------------------------------

    def _pushed(self, message: object) -> None:
        try:
            self.ledger.see(PUSHED, message.body)  # type: ignore[attr-defined]
        except Violation as violation:
            self.fail(violation)

    async def _consume(self, topic: str) -> None:
        """Consume as a group that manages its own offsets; restart at the committed ones."""
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

        await self.forever(act, self.serving)

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
            group = self._consumer.group
            await self._consumer.offsets.commit(group, queue, pulled.next_offset)
        return len(pulled.messages)
