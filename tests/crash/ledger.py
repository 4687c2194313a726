"""The requests and answers of a broker's clients, kept outside of it and compared with its content.

A :class:`Ledger` contains the requests and the answers. Messages are identified by their bodies.
After a crash the broker must agree with every answer that had to be on disk by then, and must
contain nothing that no client requested.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Collection
from dataclasses import dataclass, field

from tests.broker.brokers import Talk
from tests.broker.pops import pop
from tests.crash.oracle import Violation

from firetrail import Record
from firetrail.broker.broker import Broker

GROUP = "CG"
POPPED = "P"
DELAYS_MS = {1: 1_000, 2: 2_000}
PATIENCE_S = 9
"""Longer than anything stays delayed or invisible."""

Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that a client has sent; level 0 for one without delay, due 0 for one without."""

    topic: str
    queue_id: int
    level: int = 0
    half: bool = False
    due_ms: int = 0

    @property
    def waits(self) -> bool:
        """Whether the message is delivered later."""
        return bool(self.level or self.due_ms)


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a message, from the answer to its send."""

    queue_offset: int
    physical_offset: int
    time_ms: int


@dataclass(slots=True)
class Ledger:
    """All requests of clients, and the answers to them."""

    sent: dict[bytes, Sent] = field(default_factory=dict)
    acked: dict[bytes, Place] = field(default_factory=dict)
    durable: set[bytes] = field(default_factory=set)
    """The acknowledged messages that a power loss must not destroy."""
    commit_asked: set[bytes] = field(default_factory=set)
    committed: set[bytes] = field(default_factory=set)
    """Transactions whose commit was acknowledged."""
    ack_asked: set[bytes] = field(default_factory=set)
    """Popped messages that a consumer is done with, whether the broker knows it or not."""
    offsets: dict[Key, list[int]] = field(default_factory=dict)
    """The offsets that the group has committed, in order."""
    saved: dict[Key, int] = field(default_factory=dict)
    """How many of these offsets a completed save followed."""
    topics: dict[str, bool | None] = field(default_factory=dict)
    """Whether a topic was created (True) or deleted (False); None while that is under way."""
    groups: set[str] = field(default_factory=set)
    recalled: set[bytes] = field(default_factory=set)
    """Messages whose recall was acknowledged, and is on disk, before they were due."""
    recall_asked: set[bytes] = field(default_factory=set)
    lost: set[bytes] = field(default_factory=set)
    """The messages that a crash destroyed: they must never come back."""

    def copy(self) -> Ledger:
        same = Ledger(*(copy.copy(getattr(self, name)) for name in self.__dataclass_fields__))
        same.offsets = {key: values.copy() for key, values in self.offsets.items()}
        return same

    def forget_topic(self, name: str) -> None:
        """Note that nothing in the topic is promised any more."""
        for body in [body for body in self.acked if self.sent[body].topic == name]:
            del self.acked[body]
            self.durable.discard(body)
        for key in [key for key in self.offsets if key[1] == name]:
            del self.offsets[key]
            self.saved.pop(key, None)


def look(broker: Broker, ledger: Ledger, must: Collection[bytes]) -> set[bytes]:
    """Compare without changing anything; return the acknowledged messages that were found."""
    store = broker.store
    low = store.log_range[0]
    there = _check_log(broker, ledger, must, low)
    _check_queues(broker, ledger, there, low)
    _check_tables(broker, ledger)
    return there


def _check_log(broker: Broker, ledger: Ledger, must: Collection[bytes], low: int) -> set[bytes]:
    ordered = sorted(ledger.acked.items(), key=lambda item: item[1].physical_offset)
    there: set[bytes] = set()
    missing: bytes | None = None
    for body, place in ordered:
        if place.physical_offset < low:
            continue
        record = broker.store.at(place.physical_offset)
        if record is None or record.body != body:  # another may have been put at this offset
            missing = body
            if body in must:
                raise Violation(f"I1: {body!r} was acknowledged and is lost, {place}")
        elif missing is not None:
            raise Violation(f"I1: {body!r} was found, {missing!r} before it was not")
        else:
            there.add(body)
    return there


def _check_queues(broker: Broker, ledger: Ledger, there: set[bytes], low: int) -> None:
    found: dict[bytes, list[Record]] = {}
    for topic in {sent.topic for sent in ledger.sent.values()}:
        for queue_id in broker.store.queues(topic):
            first = broker.store.min_offset(topic, queue_id)
            for number, record in enumerate(broker.store.read(topic, queue_id), first):
                if record.queue_offset != number:
                    raise Violation(f"I3: {topic}/{queue_id}: {record.queue_offset} at {number}")
                found.setdefault(record.body, []).append(record)
    for body, records in found.items():
        sent = ledger.sent.get(body)
        if sent is None or any(
            (r.topic, r.queue_id) != (sent.topic, sent.queue_id) for r in records
        ):
            raise Violation(f"I2: no client has sent {records}, {sent}")
        if body in ledger.lost:
            raise Violation(f"I6: {body!r} is back, a crash had taken it")
        if sent.half and body not in ledger.commit_asked:
            raise Violation(f"I2: {body!r} is seen, its transaction was not committed")
        place = ledger.acked.get(body)
        if sent.due_ms and len(records) > 1:
            raise Violation(f"I2: {body!r} was delivered {len(records)} times by the timer")
        if sent.waits and place is not None:
            due = sent.due_ms or place.time_ms + DELAYS_MS[sent.level]
            if min(record.store_time for record in records) < due:
                raise Violation(f"I2: {body!r} came before its time {due}: {records}")
    for body in there:
        sent, place = ledger.sent[body], ledger.acked[body]
        if sent.waits or sent.half or ledger.topics.get(sent.topic, True) is not True:
            continue
        if broker.topics.get(sent.topic) is None:
            raise Violation(f"I1: {body!r} was found, its topic {sent.topic} was not")
        if place.queue_offset not in [record.queue_offset for record in found.get(body, ())]:
            raise Violation(f"I4: {body!r} is not in its queue, {sent} {place}: {found.get(body)}")


def _check_tables(broker: Broker, ledger: Ledger) -> None:
    table = broker.offsets.content().offset_table
    for name, queues in table.items():
        topic, _, group = name.partition("@")
        for queue_id, value in queues.items():
            end = broker.store.max_offset(topic, queue_id)
            if value > end and ledger.topics.get(topic, True) is not None:
                raise Violation(
                    f"I7: {group} is at {value} of {topic}/{queue_id}, which ends at {end}"
                )
    for (group, topic, queue_id), values in ledger.offsets.items():
        if ledger.topics.get(topic, True) is not True:
            continue
        now = broker.offsets.get(group, topic, queue_id)
        allowed = values[max(ledger.saved.get((group, topic, queue_id), 0) - 1, 0) :]
        if now not in allowed and (now is not None or ledger.saved.get((group, topic, queue_id))):
            raise Violation(f"I7: {group} is at {now} of {topic}/{queue_id}, not at {allowed}")
    for topic, is_there in ledger.topics.items():
        if is_there is not None and (broker.topics.get(topic) is not None) != is_there:
            raise Violation(
                f"I6: topic {topic} was {'made' if is_there else 'deleted'}, and is not"
            )
        if is_there is False and broker.store.queues(topic):
            raise Violation(f"I6: topic {topic} was deleted, and has queues")
    for group in ledger.groups:
        if broker.groups.get(group) is None:
            raise Violation(f"I1: group {group} was created and is missing")


async def drain(talk: Talk, ledger: Ledger, there: set[bytes]) -> None:
    """Wait for messages that were delayed, committed, or popped and not acknowledged.

    All of them must be delivered.
    """
    broker = talk.broker
    received: set[bytes] = set()
    for _ in range(PATIENCE_S):
        while messages := await pop(talk, topic=POPPED, invisibleTime=600_000):
            received |= {message.body for message in messages}
        await asyncio.sleep(1)
    await asyncio.to_thread(broker.store.wait_dispatched)
    low = broker.store.log_range[0]
    seen: set[bytes] = set()
    for topic in {sent.topic for sent in ledger.sent.values()}:
        for queue_id in broker.store.queues(topic):
            seen |= {record.body for record in broker.store.read(topic, queue_id)}
    for body in there:
        sent = ledger.sent[body]
        if ledger.topics.get(sent.topic, True) is not True:
            continue
        if ledger.acked[body].physical_offset < low:
            continue
        if sent.waits and body not in seen | ledger.recall_asked:
            raise Violation(f"I1: {body!r} was delayed and never came, {ledger.acked[body]}")
        if body in seen and body in ledger.recalled:
            raise Violation(f"I2: {body!r} was recalled and came, {ledger.acked[body]}")
        if sent.half and body in ledger.committed and body not in seen:
            raise Violation(f"I1: {body!r} was committed and is not seen, {ledger.acked[body]}")
        if sent.topic == POPPED and body in seen and body not in ledger.ack_asked | received:
            raise Violation(f"I1: {body!r} was popped, not acknowledged, and never redelivered")
