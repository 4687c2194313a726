"""Messages that are popped: acknowledged, left alone, given another time.

The promise: a message is redelivered until it is acknowledged, but not before its invisible time is
over, even if the broker is killed in between. A message that was acknowledged in time is not
redelivered.

After a kill this check is weaker than the promise: it accepts a redelivery if the group's offset
after the message was not in ``consumerOffset.json`` yet. ``tests/broker/faults/test_kill.py``
checks that such messages are not redelivered either.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.crash.files_check import Raw
from tests.crash.oracle import Violation
from tests.torture.clients.use import Use, config_of
from tests.torture.records.ledger import serial_of

from firetrail.client import SimpleConsumer
from firetrail.client.consumers.pop_client import Popped
from firetrail.errors import RequestError
from firetrail.remoting.messages.bodies import ConsumeFromWhere
from firetrail.remoting.wire.codes import ResponseCode

TOPIC, GROUP = "T-popped", "popping"
AGAIN = f"%RETRY%{GROUP}_{TOPIC}"


@dataclass
class Delivery:
    """The last delivery of a message."""

    until: float
    """The message must not be redelivered before this time of the monotonic clock."""
    done: int | None = None
    """The life of the broker in which it was acknowledged in time."""
    is_final: bool = False
    """It was acknowledged, and a broker that was killed since knows that."""


class Popping(Use):
    """A producer, and two members of a group that pops."""

    topics = (TOPIC,)

    async def begin(self, resources: AsyncExitStack) -> None:
        self.last: dict[int, Delivery] = {}
        self._tried: set[int] = set()
        """Messages that a consumer tried to acknowledge."""
        self.uncertain: set[int] = set()
        """Messages that were not settled at a kill; they may be redelivered more than once."""
        self._consumers = [
            await resources.enter_async_context(
                SimpleConsumer(
                    self._load.namesrv, GROUP, {TOPIC: "*"}, start=ConsumeFromWhere.FIRST_OFFSET
                )
            )
            for _ in range(2)
        ]
        self._load.begin(self._load.forever(self._send, self._load.sending))
        for consumer in self._consumers:

            async def act(consumer: SimpleConsumer = consumer) -> None:
                await self._pop(consumer)

            self._load.begin(self._load.forever(act, self._load.serving))

    async def _send(self) -> None:
        await asyncio.sleep(0.02)
        await self._load.send_single(TOPIC)

    async def _pop(self, consumer: SimpleConsumer) -> None:
        life, asked = self._load.lives, time.monotonic()
        invisible_s = self._source.choice((0.5, 1.0, 2.0))
        messages = await consumer.receive(8, invisible_s=invisible_s, wait_s=0.3)
        for message in messages:
            self._came(message, life, asked + invisible_s)
            self._load.note_ok("pop", asked)
        ways = ("ack", "ack", "ack", "together", "leave", "change")
        together = []
        for message in messages:
            way = self._source.choice(ways) if self._load.sending.is_set() else "ack"
            if way == "ack":
                await self._ack(consumer, [message], life)
            elif way == "together":
                together.append(message)
            elif way == "change":
                await self._change(consumer, message, life)
        if together:
            await self._ack(consumer, together, life)

    async def _change(self, consumer: SimpleConsumer, message: Popped, life: int) -> None:
        asked, invisible_s = time.monotonic(), self._source.choice((0.2, 1.0))
        delivery = self.last[serial_of(message.body)]
        try:
            changed = await consumer.change_invisible(message, invisible_s)
        except RequestError as error:
            if error.code != ResponseCode.NO_MESSAGE:
                raise
            return  # its time is over
        finally:
            delivery.until = min(delivery.until, asked + invisible_s)
        delivery.until = asked + invisible_s
        self._load.note_ok("change of a pop", asked)
        if self._source.random() < 0.5:
            await self._ack(consumer, [changed], life)

    def _came(self, message: Popped, life: int, until: float) -> None:
        self._ledger.check_body(GROUP, message.body)
        serial = serial_of(message.body)
        last = self.last.get(serial)
        is_certain = last is not None and serial not in self.uncertain and self._load.times_hold
        if last is not None and is_certain:
            if last.is_final or (last.done is not None and last.done == life == self._load.lives):
                text = f"I6: message {serial} was redelivered after its ack: {last}, {message}"
                raise Violation(text)
            if last.done is None and time.monotonic() < last.until:
                text = f"message {serial} was redelivered before its time: {last}, {message}"
                raise Violation(text)
        if life != self._load.lives:
            self.uncertain.add(serial)
        self.last[serial] = Delivery(until)

    async def _ack(self, consumer: SimpleConsumer, messages: Sequence[Popped], life: int) -> None:
        serials = [serial_of(message.body) for message in messages]
        self._tried.update(serials)
        begun = time.monotonic()
        await consumer.ack(*messages)
        for serial in serials:
            delivery = self.last[serial]
            if time.monotonic() < delivery.until and life == self._load.lives:
                delivery.done = life
                self._load.note_ok("acknowledgement of a pop", begun)
            self._ledger.seen[GROUP].add(serial)

    def missing(self) -> Sequence[object]:
        """Return the messages that were sent and that no consumer tried to acknowledge.

        An attempt counts even without an answer, because it may have succeeded.
        """
        unseen = self._ledger.unseen(GROUP, (TOPIC,))
        return [serial for serial in unseen if serial not in self._tried]

    def figures(self) -> dict[str, int]:
        """Return how many messages were acknowledged, and how many of them for good."""
        final = sum(last.is_final for last in self.last.values())
        return {"pops acknowledged": len(self._ledger.seen[GROUP]), "of them final": final}

    def look(self, store: Path, records: Sequence[Raw]) -> None:
        """Record which acknowledgements a kill made final; all others are uncertain."""
        saved = _saved_places(store)
        not_saved: set[int] = set()
        there: set[int] = set()
        for record in records:
            if record.topic in (TOPIC, AGAIN):
                there.add(serial_of(record.body))
                if record.queue_offset >= saved.get((record.topic, record.queue_id), 0):
                    not_saved.add(serial_of(record.body))
        for serial in there - self.uncertain:
            last = self.last.get(serial)
            if last is not None and last.done == self._load.lives and serial not in not_saved:
                last.is_final = True
            if last is None or not last.is_final:
                self.uncertain.add(serial)


def _saved_places(store: Path) -> dict[tuple[str, int], int]:
    table = config_of(store, "consumerOffset.json").get("offsetTable", {})
    return {
        (topic, int(queue_id)): offset
        for topic in (TOPIC, AGAIN)
        for queue_id, offset in table.get(f"{topic}@{GROUP}", {}).items()
    }
