"""Messages that a consumer fails to consume: they are retried, and become dead letters in the end.

The promise: a message that was sent back is redelivered through ``%RETRY%<group>`` until it is
consumed, or retried too often; then it is in ``%DLQ%<group>``, which contains nothing else. A
message can be redelivered or become a dead letter more than once, because the answer to the request
that sends it back can get lost.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from tests.crash.files_check import Raw
from tests.crash.oracle import Violation
from tests.torture.clients.use import Use
from tests.torture.records.ledger import serial_of

from firetrail.client import PullConsumer, PushConsumer
from firetrail.client.messages.received_message import Received
from firetrail.errors import RequestError
from firetrail.remoting.messages.bodies import ConsumeFromWhere
from firetrail.remoting.wire.codes import ResponseCode

TOPIC, GROUP = "T-retried", "retrying"
BURIED = f"%DLQ%{GROUP}"
RETRIES = 2


class Unwilling(Exception):
    """The error that the consumer fails with."""


def failures(serial: int) -> int:
    """Return how often the message fails; if more often than it is retried, it never succeeds."""
    return RETRIES + 1 if serial % 7 == 0 else serial % 3


class Retrying(Use):
    """A producer, a consumer that fails, and one that reads the dead letters."""

    topics = (TOPIC,)

    async def begin(self, resources: AsyncExitStack) -> None:
        self.buried: set[int] = set()
        enter, namesrv = resources.enter_async_context, self._load.namesrv
        await enter(
            PushConsumer(
                namesrv,
                GROUP,
                self._consume,
                {TOPIC: "*"},
                start=ConsumeFromWhere.FIRST_OFFSET,
                max_retries=RETRIES,
            )
        )
        self._reader = await enter(PullConsumer(namesrv, "mourning"))
        self._read_to, self._life = 0, 0
        self._load.begin(self._load.forever(self._send, self._load.sending))
        self._load.begin(self._load.forever(self._read_buried, self._load.serving))

    async def _send(self) -> None:
        await asyncio.sleep(0.05)
        await self._load.send_single(TOPIC)

    def _consume(self, message: Received) -> None:
        tried = message.reconsume_times
        try:
            self._ledger.check_body(GROUP, message.body)
            if tried > RETRIES:
                raise Violation(f"message {serial_of(message.body)} is tried for the {tried}. time")
        except Violation as violation:
            self._load.fail(violation)
        if tried < failures(serial_of(message.body)):
            raise Unwilling
        self._ledger.seen[GROUP].add(serial_of(message.body))

    async def _read_buried(self) -> None:
        await asyncio.sleep(0.1)
        if self._life != self._load.lives:
            self._life, self._read_to = self._load.lives, 0
            self.buried.clear()
        try:
            (queue,) = await self._reader.queues(BURIED)
        except RequestError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return  # nothing was buried yet
        pulled = await self._reader.pull(queue, self._read_to)
        for message in pulled.messages:
            self._ledger.check_body(BURIED, message.body)
            self._check_buried(serial_of(message.body))
            self.buried.add(serial_of(message.body))
        self._read_to = pulled.next_offset

    def _check_buried(self, serial: int) -> None:
        if failures(serial) <= RETRIES:
            raise Violation(f"message {serial} is buried, and was tried {failures(serial)} times")

    def missing(self) -> Sequence[object]:
        """Neither consumed nor buried, as it should be."""
        return [
            serial
            for serial in self._ledger.unseen(GROUP, (TOPIC,))
            if failures(serial) <= RETRIES or serial not in self.buried
        ]

    def figures(self) -> dict[str, int]:
        """Return how many messages were consumed or became dead letters."""
        return {"retried": len(self._ledger.seen[GROUP]), "buried": len(self.buried)}

    def look(self, store: Path, records: Sequence[Raw]) -> None:
        """Check that only messages that failed every time became dead letters."""
        for record in records:
            if record.topic == BURIED:
                self._ledger.check_body(BURIED, record.body)
                self._check_buried(serial_of(record.body))
