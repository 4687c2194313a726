"""Messages that wait in the timer of a Java broker whose folder was taken over.

Firetrail has no timer and does not deliver them; it reports how many there are. They are counted in
the wheel, and in the records that are not in the wheel yet. The cost grows with the number of
waiting messages, not with the size of the store.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Self

from firetrail.broker.state.topics import TIMER_TOPIC
from firetrail.broker.stored import internal_records, number_property
from firetrail.format.javahash import java_hash
from firetrail.format.names import CONFIG, parse_segment_name, segment_name
from firetrail.format.properties import REAL_TOPIC, TIMER_OUT_MS
from firetrail.format.timer import (
    CHECK,
    DELETES,
    LOG,
    NONE,
    SLOT,
    UNIT,
    WHEEL,
    TimerCheck,
    TimerSlot,
    Unit,
    decode_check,
)
from firetrail.store.broker_store import BrokerStore
from firetrail.system import Files
from firetrail.text import counted, human_time

QUEUE = 0
READS_MAX = 100_000
"""Maximum number of units and records that are read one by one. If there are more, the figures are
estimates."""
_CHUNK = SLOT.size * 4096


@dataclass(slots=True)
class WaitingTimers:
    """The number of messages in the timer, and the time up to which it has delivered."""

    count: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    not_in_wheel: int = 0
    """Records of the topic that are not in the wheel yet, including records of pops."""
    delivered_ms: int = 0

    def add(self, count: int, due_ms: int) -> None:
        """Add messages that are due at this time."""
        if count > 0:
            self.count += count
            self.first_ms = due_ms if self.first_ms is None else min(self.first_ms, due_ms)
            self.last_ms = due_ms if self.last_ms is None else max(self.last_ms, due_ms)

    def __str__(self) -> str:
        return (
            f"{counted(self.count, 'message')} in RocketMQ's timer ({TIMER_TOPIC}), due from "
            f"{human_time(self.first_ms)} to {human_time(self.last_ms)}: Firetrail has no timer "
            "and does not deliver them; a Java broker that takes the folder over does"
        )


def count_waiting(store: BrokerStore, files: Files, root: Path, revive: str) -> WaitingTimers:
    """Count the waiting messages, without records of pops, whose topic is ``revive``."""
    found = WaitingTimers()
    end = store.max_offset(TIMER_TOPIC, QUEUE)
    if end == 0:
        return found
    try:
        check = decode_check(files.read(root / CONFIG / CHECK))
    except FileNotFoundError:
        check = TimerCheck()
    found.delivered_ms = check.delivered_ms
    if (root / WHEEL).is_file():
        _count_wheel(found, files, root, java_hash(revive))
    offset = max(check.queue_offset, store.min_offset(TIMER_TOPIC, QUEUE))
    found.not_in_wheel = max(end - offset, 0)
    for record in islice(internal_records(store, TIMER_TOPIC, QUEUE, offset), READS_MAX):
        due = number_property(record, TIMER_OUT_MS)
        if record.properties.get(REAL_TOPIC) != revive and due is not None:
            found.add(1, due)
    return found


def _count_wheel(found: WaitingTimers, files: Files, root: Path, revive: int) -> None:
    with _TimerLog(files, root / LOG) as log:
        for slot in _slots(files, root / WHEEL):
            if slot.waiting > 0 and slot.due_ms >= found.delivered_ms:
                found.add(log.count(slot, revive), slot.due_ms)


def _slots(files: Files, path: Path) -> Iterator[TimerSlot]:
    """Yield the slots that were ever used."""
    descriptor = files.open(path, writable=False)
    try:
        for start, end in files.data_ranges(descriptor, 0, files.size(path)):
            for at in range(start - start % SLOT.size, end, _CHUNK):
                chunk = files.read_at(descriptor, at, min(_CHUNK, end - at))
                whole = len(chunk) - len(chunk) % SLOT.size
                yield from (TimerSlot(*f) for f in SLOT.iter_unpack(chunk[:whole]) if f[0])
    finally:
        files.close(descriptor)


class _TimerLog:
    """The files of ``timerlog/``, opened on demand."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._folder = folder
        starts = map(parse_segment_name, files.names(folder))
        self._starts = sorted(start for start in starts if start is not None)
        self._descriptors: dict[int, int] = {}
        self._reads = 0
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def count(self, slot: TimerSlot, revive: int) -> int:
        """Return how many messages wait in a slot, without those for the topic with a hash.

        The chain of the slot is followed from the newest unit to the oldest. After too many reads,
        the count in the slot itself is returned.
        """
        waiting = 0
        position = slot.last
        while (unit := self._unit(position)) is not None and unit.size == UNIT.size:
            self._reads += 1
            if self._reads > READS_MAX:
                return slot.waiting
            if unit.magic & DELETES:
                waiting -= 1
            elif unit.topic_hash != revive:
                waiting += 1
            if position == slot.first or unit.previous == NONE:
                break
            position = unit.previous
        return max(waiting, 0)

    def _unit(self, position: int) -> Unit | None:
        number = bisect_right(self._starts, position) - 1
        if position < 0 or number < 0:
            return None
        start = self._starts[number]
        descriptor = self._descriptors.get(start)
        if descriptor is None:
            path = self._folder / segment_name(start)
            descriptor = self._descriptors[start] = self._files.open(path, writable=False)
            self._resources.callback(self._files.close, descriptor)
        raw = self._files.read_at(descriptor, position - start, UNIT.size)
        return Unit(*UNIT.unpack(raw)) if len(raw) == UNIT.size else None
