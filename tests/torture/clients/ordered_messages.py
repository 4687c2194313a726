"""Messages that are consumed in order, by a consumer that has locked the queues.

The promise: a message of a queue is delivered only after the one before it was consumed. None is
left out, and none is delivered before an earlier one that failed and is retried. When the broker is
back, the owner of the queue continues where it was.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from tests.crash.oracle import Violation
from tests.torture.clients.use import Use
from tests.torture.records.ledger import serial_of

from firetrail.client import PushConsumer
from firetrail.client.messages.received_message import Received
from firetrail.remoting.messages.bodies import ConsumeFromWhere, MessageQueue

TOPIC, GROUP = "T-ordered", "ordering"
STUBBORN = 41
"""One in this number of messages fails when it is delivered for the first time."""


class Ordering(Use):
    """A producer, and a consumer in order."""

    topics = (TOPIC,)

    async def begin(self, resources: AsyncExitStack) -> None:
        self._next: dict[MessageQueue, int] = {}
        consumer = PushConsumer(
            self._load.namesrv,
            GROUP,
            self._consume,
            {TOPIC: "*"},
            in_order=True,
            start=ConsumeFromWhere.FIRST_OFFSET,
        )
        await resources.enter_async_context(consumer)
        self._load.begin(self._load.forever(self._send, self._load.sending))

    async def _send(self) -> None:
        await asyncio.sleep(0.02)
        await self._load.send_single(TOPIC, order_key=f"customer {self._source.randrange(4)}")

    def _consume(self, message: Received) -> None:
        serial = serial_of(message.body)
        due = self._next.get(message.queue, 0)
        try:
            self._ledger.check_body(GROUP, message.body)
            overtaken = message.queue_offset > due and not self._load.nothing_expires
            if message.queue_offset != due and not overtaken:
                text = f"I3: {message.queue} continues at {message.queue_offset}, not {due}"
                raise Violation(text)
        except Violation as violation:
            self._load.fail(violation)
        if serial % STUBBORN == 0 and message.reconsume_times == 0:
            raise RuntimeError("not at once")
        self._next[message.queue] = message.queue_offset + 1
        self._ledger.seen[GROUP].add(serial)

    def figures(self) -> dict[str, int]:
        return {"in order": len(self._ledger.seen[GROUP])}

    def missing(self) -> Sequence[object]:
        return self._ledger.unseen(GROUP, (TOPIC,))
