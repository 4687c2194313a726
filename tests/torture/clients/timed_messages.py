"""Messages with a delivery time, some of which are recalled.

The promise: an acknowledged message is delivered once, and not before its time. A message whose
recall was acknowledged is never delivered. A recall without an answer is repeated; if the broker
then refuses it because the message is due, the message may be delivered or not.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from tests.crash.files_check import Raw
from tests.crash.oracle import Violation
from tests.torture.clients.use import Use
from tests.torture.records.ledger import serial_of

from firetrail.client import Producer, PushConsumer
from firetrail.client.messages.received_message import Received
from firetrail.errors import RequestError
from firetrail.remoting.messages.bodies import ConsumeFromWhere
from firetrail.remoting.wire.codes import ResponseCode

TOPIC, GROUP = "T-timed", "timing"
AHEAD_S = (1.1, 2.0, 3.5, 6.0)
"""How far ahead the delivery times are: some messages wait for one life of the broker, others for
several. The least is longer than a slot."""
SLOT_S = 1.0
"""A message may be later than its time by this, and by the delays of a busy machine."""


class Recall(NamedTuple):
    """A recall to be requested."""

    at: float
    """When, on the monotonic clock."""
    serial: int
    handle: str


class Timing(Use):
    """A producer of timer messages, which recalls some of them, and a consumer."""

    topics = (TOPIC,)

    async def begin(self, resources: AsyncExitStack) -> None:
        self.recalled: set[int] = set()
        self.uncertain: set[int] = set()
        """Messages with a recall that got no answer."""
        self._recalls: list[Recall] = []
        enter, namesrv = resources.enter_async_context, self._load.namesrv
        start = ConsumeFromWhere.FIRST_OFFSET
        await enter(PushConsumer(namesrv, GROUP, self._consume, {TOPIC: "*"}, start=start))
        self._producer = await enter(Producer(namesrv, "recalling", timeout_s=5))
        self._load.begin(self._load.forever(self._send, self._load.sending))
        self._load.begin(self._load.forever(self._recall_some, self._load.serving))

    async def _send(self) -> None:
        await asyncio.sleep(0.02)
        ahead_s = self._source.choice(AHEAD_S) + self._source.random()
        recall_s = self._source.uniform(0, ahead_s) if self._source.random() < 0.3 else None
        deliver_ms = int((time.time() + ahead_s) * 1000)
        serial, result = await self._load.send_single(TOPIC, deliver_ms=deliver_ms)
        handle = result.recall_handle
        if handle is None:  # the message was due when the broker got it
            self._ledger.sent[serial].delayed = False
        elif recall_s is not None and self._ledger.sent[serial].acknowledged:
            self._recalls.append(Recall(time.monotonic() + recall_s, serial, handle))

    async def _recall_some(self) -> None:
        await asyncio.sleep(0.02)
        for recall in list(self._recalls):
            if recall.at <= time.monotonic():
                await self._recall(recall)

    async def _recall(self, recall: Recall) -> None:
        """Request a recall. It is repeated if there is no answer."""
        serial, begun = recall.serial, time.monotonic()
        was_tried = serial in self.uncertain
        self.uncertain.add(serial)
        try:
            await self._producer.recall(recall.handle)
        except RequestError as error:
            if error.code != ResponseCode.ILLEGAL_OPERATION:
                raise
            if not was_tried:  # it is due, and must be delivered
                self.uncertain.remove(serial)
        else:
            self.recalled.add(serial)
            self._load.note_ok("recall", begun)
        self._recalls.remove(recall)

    def _consume(self, message: Received) -> None:
        try:
            self._ledger.check_body(GROUP, message.body)
            self._check_delivered(serial_of(message.body), time.time() * 1000)
        except Violation as violation:
            self._load.fail(violation)
        self._ledger.seen[GROUP].add(serial_of(message.body))

    def _check_delivered(self, serial: int, now_ms: float) -> None:
        sent = self._ledger.sent[serial]
        if now_ms < sent.deliver_ms:
            early = f"{sent.deliver_ms - now_ms:.0f} ms early"
            raise Violation(f"timer message {serial} was delivered {early}: {sent}")
        if serial in self.recalled:
            raise Violation(f"I2: timer message {serial} was recalled and delivered: {sent}")

    def missing(self) -> Sequence[object]:
        """Return what must still come, and recalled messages that could still come."""
        unsettled = self.recalled | self.uncertain
        missing = [s for s in self._ledger.unseen(GROUP, (TOPIC,)) if s not in unsettled]
        passed_ms = (time.time() - 2 * SLOT_S) * 1000
        waiting = [s for s in unsettled if self._ledger.sent[s].deliver_ms > passed_ms]
        return missing + waiting

    def figures(self) -> dict[str, int]:
        """Return how many timer messages were consumed and recalled."""
        return {"timers": len(self._ledger.seen[GROUP]), "recalled": len(self.recalled)}

    def look(self, store: Path, records: Sequence[Raw]) -> None:
        """Check that the log has each message once at most, not too early, and not if recalled."""
        copies = Counter[int]()
        for record in records:
            if record.topic == TOPIC:
                serial = serial_of(record.body)
                self._check_delivered(serial, record.store_time)
                copies[serial] += 1
                if copies[serial] > 1:
                    raise Violation(f"I2: timer message {serial} was delivered twice")
