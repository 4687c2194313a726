"""The answers that clients received, kept outside of the broker and compared with its content.

A message is identified by its serial number, with which its body begins. The rest of the body is
computed from the number, so that a single altered byte is noticed. A violation is raised, or
counted if the ledger is ``lenient``: a comparison of brokers needs the numbers.
"""

import random
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.files_check import Raw, readable
from tests.crash.oracle import SCHEDULE, Violation
from tests.torture.process import CONF

from firetrail.client import PullConsumer
from firetrail.format.files.timer import TIMER_TOPIC
from firetrail.format.properties import TIMER_DEL_UNIQKEY
from firetrail.format.values.delay import DelayLevels
from firetrail.remoting.messages.bodies import MessageQueue
from firetrail.store.inspect.fsck.check import check_store
from firetrail.store.inspect.view import StoreView

BODY_MAX = 3000


def serial_of(body: bytes) -> int:
    return int(body.partition(b":")[0])


@dataclass(slots=True)
class Sent:
    """A message: where it was sent to, and where it is if it was acknowledged."""

    topic: str
    delayed: bool = False
    deliver_ms: int = 0
    """The delivery time, in ms since 1970; 0 if it has none."""
    key: str | None = None
    acknowledged: bool = False
    ended: bool = False
    """Whether no client waits for the answer any more: if it is not stored now, it never may be."""
    place: tuple[int, int] | None = None
    """Queue id and queue offset; None for delayed messages."""

    @property
    def home(self) -> str:
        """The topic that the broker stored the message in when it was sent."""
        if not self.delayed:
            return self.topic
        return TIMER_TOPIC if self.deliver_ms else SCHEDULE


@dataclass
class Ledger:
    """Everything that clients have sent, and the answers and messages that they received."""

    seed: int
    sent: list[Sent] = field(default_factory=list)
    seen: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """By group: the messages that its consumers got."""
    reached: dict[MessageQueue, int] = field(default_factory=lambda: defaultdict(int))
    """Per queue: the committing group has consumed every offset below this one."""
    first: int = 0
    """Messages with lower numbers may be gone, because retention is at work."""
    lenient: bool = False
    wrong: dict[str, set[object]] = field(default_factory=lambda: defaultdict(set))
    """By kind: the violations that were counted instead of raised."""
    given_up: set[int] = field(default_factory=set)
    """Messages that were not in the log after a kill, and whose answer no client waits for."""

    def violated(self, kind: str, what: object, text: str) -> None:
        if not self.lenient:
            raise Violation(text)
        self.wrong[kind].add(what)

    def body(self, serial: int) -> bytes:
        source = random.Random(f"{self.seed} {serial}")
        return b"%d:" % serial + source.randbytes(source.choice((10, 100, 500, BODY_MAX)))

    def new(
        self, topic: str, *, delayed: bool = False, deliver_ms: int = 0, keyed: bool = False
    ) -> tuple[int, bytes]:
        """Return number and body of a new message to be sent; every fourth may have a key."""
        serial = len(self.sent)
        key = f"k{serial}" if keyed and serial % 4 == 0 else None
        self.sent.append(Sent(topic, delayed, deliver_ms, key))
        return serial, self.body(serial)

    def end(self, serials: list[int]) -> None:
        """Note that the sender has its answer, or has given up."""
        for serial in serials:
            self.sent[serial].ended = True

    def acknowledge(self, serial: int, queue_id: int, queue_offset: int) -> None:
        """Note that the broker has acknowledged a message."""
        message = self.sent[serial]
        message.acknowledged = True
        message.place = None if message.delayed else (queue_id, queue_offset)

    def see(self, group: str, body: bytes) -> None:
        """Note that a consumer received a message."""
        self.check_body(group, body)
        self.seen[group].add(serial_of(body))

    def check_body(self, where: str, body: bytes) -> None:
        """Raise a Violation unless a client sent a message with this body."""
        serial = serial_of(body)
        if serial >= len(self.sent) or body != self.body(serial):
            text = f"I2: {where} has a message that no client sent: {body[:40]!r}"
            self.violated("altered", body, text)

    @property
    def acknowledged(self) -> list[int]:
        return [number for number, sent in enumerate(self.sent) if sent.acknowledged]

    def unseen(self, group: str, topics: Collection[str]) -> list[int]:
        """Return the acknowledged messages of these topics that the group did not receive."""
        seen = self.seen[group]
        return [
            serial
            for serial, sent in enumerate(self.sent)
            if sent.acknowledged and sent.topic in topics and serial not in seen
        ]

    # -- comparison with the broker -----------------------------------------------------------

    def check_log(self, store: Path) -> list[Raw]:
        """Check that the log has each acknowledged message once; return its records.

        The store must not be open.
        """
        found: dict[int, list[Raw]] = defaultdict(list)
        queues: dict[tuple[str, int], int] = {}
        records = readable(store / "commitlog")
        for record in records:
            key = record.topic, record.queue_id
            if record.queue_offset != queues.get(key, record.queue_offset):
                text = f"I3: {key} continues with {record.queue_offset} after a gap"
                self.violated("queue gaps", (key, record.queue_offset), text)
            queues[key] = record.queue_offset + 1
            is_recall = TIMER_DEL_UNIQKEY in record.properties
            if record.topic.startswith(("T", SCHEDULE, TIMER_TOPIC)) and not is_recall:
                self.check_body(f"the log at {record.offset}", record.body)
                found[serial_of(record.body)].append(record)
        for serial, message in enumerate(self.sent):
            if serial >= self.first:
                self._check_one(serial, message, found.get(serial, []))
        self._check_given_up(found)
        return records

    def _check_given_up(self, found: Mapping[int, object]) -> None:
        for serial in self.given_up & found.keys():
            text = f"I6: message {serial} was not there after an earlier death, and is back"
            self.violated("resurrected", serial, text)
        gone = (number for number, message in enumerate(self.sent) if message.ended)
        self.given_up.update(number for number in gone if number not in found)

    def _check_one(self, serial: int, message: Sent, records: list[Raw]) -> None:
        stored = [record for record in records if record.topic == message.home]
        if message.acknowledged and not stored:
            text = f"I1: message {serial} was acknowledged and is gone: {message}"
            return self.violated("lost", serial, text)
        if len(stored) > 1:
            text = f"I2: message {serial} was sent once and is stored {len(stored)} times"
            self.violated("twice", serial, text)
        if message.place and (stored[0].queue_id, stored[0].queue_offset) != message.place:
            text = f"I3: message {serial} is at {stored[0]}, was put at {message.place}"
            self.violated("at another place", serial, text)

    def check_files(self, store: Path) -> None:
        with StoreView.open(store) as view:
            report = check_store(view, DelayLevels.parse(CONF["messageDelayLevel"]))
        if not report.ok:
            for problem in report.problems:
                place = problem.kind, problem.physical_offset
                self.violated("files disagree", place, f"I4: fsck: {report.problems[:3]}")

    def check_keys(self, store: Path) -> None:
        with StoreView.open(store) as view:
            for serial in self.acknowledged:
                sent = self.sent[serial]
                due = sent.place is not None and serial >= self.first
                if due and sent.key and not view.reader.query(sent.topic, sent.key).buffers:
                    text = f"I4: message {serial} is not found by its key {sent.key}"
                    self.violated("keys lost", serial, text)

    async def check_queues(self, namesrv: str, topics: set[str], *, may_lag: bool = False) -> int:
        """Check that clients find every acknowledged message at its place; return their number.

        With ``may_lag`` the queues may lack their newest messages: they have no space to grow.
        """
        due = [serial for serial in self.acknowledged if serial >= self.first]
        found: dict[tuple[str, int, int], bytes] = {}
        async with PullConsumer(namesrv, "checking") as consumer:
            for topic in sorted(topics):
                for queue in await consumer.queues(topic):
                    async for message in consumer.read(queue):
                        found[topic, queue.queue_id, message.queue_offset] = message.body
        for serial in due:
            sent = self.sent[serial]
            body = found.get((sent.topic, *sent.place)) if sent.place else None
            if sent.place and body != self.body(serial) and not (may_lag and body is None):
                text = f"I4: message {serial}, {sent}, reads {body and body[:40]!r}"
                self.violated("not read", serial, text)
        return len(found)
