"""Transactions: committed, rolled back, and left open until the broker asks.

The promise: the message of an acknowledged commit is in the log. Each COMMIT puts it there at most
once, so one acknowledged commit is one message. If the answer is lost, the broker asks the
producer, and a second COMMIT may store the message twice: delivery is at least once. A message that
was not committed is never seen. After a restart the broker asks only about transactions whose end
was not acknowledged, until it knows the end.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.crash.files_check import Raw
from tests.crash.oracle import Violation
from tests.torture.clients.use import Use
from tests.torture.records.ledger import serial_of

from firetrail.client import Admin, Message, Outcome, Producer, PushConsumer, SendStatus
from firetrail.client.messages.received_message import Received
from firetrail.client.messages.send_requests import OutgoingMessage, SendResult, draft_of
from firetrail.client.producers.transaction_outcome import end_header
from firetrail.remoting.messages.bodies import ConsumeFromWhere
from firetrail.remoting.wire.codes import RequestCode

TOPIC = "X-transaction"
HALVES, ENDS = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"


class Deciding(Producer):
    """A producer that waits for the answer to the end of a transaction."""

    async def half(self, message: Message) -> tuple[SendResult, OutgoingMessage]:
        about = {"TRAN_MSG": "true", "PGROUP": self.group}
        draft = draft_of(message, self._ids, more=about, half=True)
        return await self._sender.send(draft), draft

    async def end(self, begun: tuple[SendResult, OutgoingMessage], outcome: Outcome) -> None:
        """End the transaction; return when the broker has acknowledged the end."""
        address = self._session.address_of(begun[0].queue.broker_name)
        result, draft = begun
        header = end_header(self.group, draft, result, outcome)
        await self._session.ask(address, RequestCode.END_TRANSACTION, header)


@dataclass
class Transaction:
    """The known state of a transaction."""

    outcome: Outcome
    is_open: bool
    """Its producer does not end it, but answers the broker's check."""
    begun: bool = False
    """The half message was acknowledged."""
    commits: int = 0
    """The number of COMMITs that its producer sent."""
    ended_in: int | None = None
    """The life of the broker in which its end was acknowledged."""
    asked: int = 0


class Transacting(Use):
    """Producers that begin and end transactions, answer questions, and a consumer."""

    async def begin(self, resources: AsyncExitStack) -> None:
        self.known: dict[int, Transaction] = {}
        self.seen: set[int] = set()
        self._producer: Deciding | None = None
        self._life = -1
        namesrv = self._load.namesrv
        async with Admin(namesrv) as admin:
            await admin.create_topic(TOPIC, queues=4)
        start = ConsumeFromWhere.FIRST_OFFSET
        consumer = PushConsumer(namesrv, "transacted", self._see, {TOPIC: "*"}, start=start)
        await resources.enter_async_context(consumer)
        resources.push_async_callback(self._close)
        self._load.begin(self._load.forever(self._keep_producer, self._load.serving))
        for _ in range(2):
            self._load.begin(self._load.forever(self._transact, self._load.sending))

    async def _close(self) -> None:
        if self._producer is not None:
            await self._producer.close()

    async def _keep_producer(self) -> None:
        """Open a producer per life of the broker.

        Brokers send checks to producers that have registered their group, which a producer does
        when it is opened.
        """
        if self._life != self._load.lives:
            life = self._load.lives
            await self._close()
            self._producer = None
            producer = Deciding(
                self._load.namesrv, "deciding", retries=0, timeout_s=5, check=self._asked
            )
            await producer.open()
            self._producer, self._life = producer, life
            await producer.queues(TOPIC)
        await asyncio.sleep(0.02)

    async def _transact(self) -> None:
        await asyncio.sleep(0.02)
        producer, draw = self._producer, self._source.random
        if producer is None:
            return
        serial, body = self._ledger.new(TOPIC)
        outcome = Outcome.COMMIT if draw() < 0.6 else Outcome.ROLLBACK
        known = self.known[serial] = Transaction(outcome, is_open=draw() < 0.3)
        begun = await producer.half(Message(TOPIC, body, keys=(f"k{serial}",)))
        if begun[0].status is not SendStatus.OK:
            return
        known.begun = True
        if known.is_open:
            return
        if draw() < 0.1:
            await asyncio.sleep(0.7)  # the broker checks the transaction during this time
        known.commits += outcome is Outcome.COMMIT
        said = time.monotonic()
        await producer.end(begun, outcome)
        known.ended_in = self._load.lives
        if not known.asked:  # or it had ended before, and nothing needed the disk
            self._load.note_ok("end of a transaction", said)

    def _asked(self, message: Received) -> Outcome:
        """Answer the broker's check of a transaction."""
        try:
            return self._answer(message.body)
        except Violation as violation:
            self._load.fail(violation)
            return Outcome.UNKNOWN

    def _answer(self, body: bytes) -> Outcome:
        self._ledger.check_body("the check function", body)
        serial = serial_of(body)
        known = self.known[serial]
        known.asked += 1
        if known.ended_in is not None and known.ended_in < self._load.lives:
            raise Violation(f"I6: asked for transaction {serial} after its end: {known}")
        if known.asked == 1 and serial % 2:
            return Outcome.UNKNOWN
        known.commits += known.outcome is Outcome.COMMIT
        return known.outcome

    def _see(self, message: Received) -> None:
        try:
            self._ledger.check_body("transacted", message.body)
            self._check_visible(serial_of(message.body), 1)
        except Violation as violation:
            self._load.fail(violation)
        self.seen.add(serial_of(message.body))

    def _check_visible(self, serial: int, copies: int) -> None:
        known = self.known.get(serial)
        if known is None or known.commits < copies:
            raise Violation(f"I2: transaction {serial} is seen {copies} times: {known}")

    def missing(self) -> Sequence[object]:
        """Committed and not seen; open and never asked for."""
        return [
            (serial, known)
            for serial, known in self.known.items()
            if known.begun
            and (
                (known.outcome is Outcome.COMMIT and serial not in self.seen)
                or (known.is_open and not known.asked)
            )
        ]

    def figures(self) -> dict[str, int]:
        """Return the numbers of acknowledged ends and of checks."""
        ended = sum(known.ended_in is not None for known in self.known.values())
        asked = sum(known.asked for known in self.known.values())
        return {"transactions ended": ended, "asked for": asked}

    def look(self, store: Path, records: Sequence[Raw]) -> None:
        """Check that all copies in the log were committed, and that acknowledged ends are there."""
        copies = Counter[int]()
        halves: dict[int, list[int]] = defaultdict(list)
        ended: set[int] = set()
        for record in records:
            if record.topic in (TOPIC, HALVES):
                self._ledger.check_body(record.topic, record.body)
            if record.topic == TOPIC:
                copies[serial_of(record.body)] += 1
            elif record.topic == HALVES:
                halves[serial_of(record.body)].append(record.queue_offset)
            elif record.topic == ENDS:
                ended.update(map(int, record.body.split(b",")))
        for serial, count in copies.items():
            self._check_visible(serial, count)
        for serial, known in self.known.items():
            if serial < self._ledger.first:
                continue
            if known.begun and not halves[serial]:
                raise Violation(f"I1: half message {serial} is gone: {known}")
            if known.ended_in is not None and not ended.issuperset(halves[serial]):
                raise Violation(f"I1: the end of {serial} is not noted: {known}, {halves[serial]}")
            is_committed = known.ended_in is not None and known.outcome is Outcome.COMMIT
            if is_committed and not copies[serial]:
                raise Violation(f"I1: transaction {serial} was committed and is gone: {known}")
