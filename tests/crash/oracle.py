"""The expected content of a store, kept outside of it and compared with the actual content.

A :class:`History` is the log as the callers of put know it: all messages in log order, with the
positions that the store returned. After a crash the store must contain a prefix of it that is at
least as long as promised. :func:`check_store` reads a store in every way and raises a
:class:`Violation` that names the broken promise (I1 to I9 of the store's promises).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from firetrail import Batch, Boundary, FiretrailError, Message, PutResult, Record, Store
from firetrail.format.layout import PROPERTY_CRC_SIZE, TRANSACTION_MASK

PREPARED, COMMIT, ROLLBACK = 0x4, 0x8, 0xC
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
QueueKey = tuple[str, int]


class Violation(AssertionError):
    """A promise that was not kept."""


class TornProperties(Violation):
    """A record whose body is whole and whose properties are not.

    Only the body has a checksum, unless the store is configured to seal its records. If a torn
    block destroyed only properties, nothing in the record shows it.
    """

    def __init__(self, place: int, detail: str) -> None:
        super().__init__(detail)
        self.place = place


@dataclass(frozen=True, slots=True)
class Stored:
    """One message of the log, as it must read back."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    store_time: int
    sys_flag: int
    flag: int
    body: bytes
    properties: dict[str, str]

    @property
    def end(self) -> int:
        return self.physical_offset + self.size

    @property
    def queue(self) -> QueueKey:
        return self.topic, self.queue_id

    @property
    def is_in_queue(self) -> bool:
        return self.sys_flag & TRANSACTION_MASK in (0, COMMIT)

    @property
    def keys(self) -> set[str]:
        """The keys by which the index finds the message."""
        if self.sys_flag & TRANSACTION_MASK == ROLLBACK:
            return set()
        return {key for key in self.properties.get("KEYS", "").split(" ") if key}


def expected_properties(message: Message) -> dict[str, str]:
    expected: dict[str, str] = {}
    if message.keys:
        expected["KEYS"] = " ".join(message.keys)
    if message.tags:
        expected["TAGS"] = message.tags
    if message.delay_level:
        expected["DELAY"] = str(message.delay_level)
    expected |= message.properties or {}
    if _is_delayed(message):
        expected |= {"REAL_TOPIC": message.topic, "REAL_QID": str(message.queue_id)}
    return expected


def _is_delayed(message: Message) -> bool:
    return message.delay_level > 0 and message.sys_flag & TRANSACTION_MASK in (0, COMMIT)


def stored(message: Message, result: PutResult) -> Stored:
    """Return the message as it must read back after a put with this result."""
    delayed = _is_delayed(message)
    return Stored(
        SCHEDULE if delayed else message.topic,
        message.delay_level - 1 if delayed else message.queue_id,
        result.queue_offset,
        result.physical_offset,
        result.size,
        result.store_time,
        message.sys_flag,
        message.flag,
        bytes(message.body),
        expected_properties(message),
    )


def stored_batch(
    messages: Sequence[Message], result: PutResult, property_crc: bool = False
) -> list[Stored]:
    """Return the messages of a batch as they must read back."""
    found = []
    at = result.physical_offset
    for number, message in enumerate(messages):
        properties = expected_properties(message)
        encoded = sum(len(n.encode()) + len(v.encode()) + 2 for n, v in properties.items())
        encoded += PROPERTY_CRC_SIZE if property_crc else 0
        size = 91 + len(message.body) + len(message.topic) + encoded
        found.append(
            Stored(
                message.topic,
                message.queue_id,
                result.queue_offset + number,
                at,
                size,
                result.store_time,
                message.sys_flag,
                message.flag,
                bytes(message.body),
                properties,
            )
        )
        at += size
    if at != result.physical_offset + result.size:
        raise Violation(f"I2: a batch of {at - result.physical_offset} bytes took {result.size}")
    return found


@dataclass(slots=True)
class History:
    """All messages of the log in order, and how many of them were promised to survive."""

    messages: list[Stored] = field(default_factory=list)
    survive_kill: int = 0
    """How many messages, from the first on, must survive a kill of the process."""
    survive_power_loss: int = 0
    """How many messages, from the first on, must survive a power loss."""
    log_min: int = 0
    """All files below this offset were deleted."""

    def copy(self) -> History:
        """Return an independent copy of the current state."""
        return replace(self, messages=self.messages.copy())

    def add(self, new: Iterable[Stored]) -> None:
        """Add messages that the store has accepted, in any order."""
        self.messages += new
        self.messages.sort(key=lambda message: message.physical_offset)

    def position_of(self, end: int) -> int:
        """Return how many messages end at or before a physical offset."""
        return sum(1 for message in self.messages if message.end <= end)

    def promise(self, kill: int = 0, power_loss: int = 0) -> None:
        """Note how many messages must survive from now on."""
        self.survive_power_loss = max(self.survive_power_loss, power_loss)
        self.survive_kill = max(self.survive_kill, kill, self.survive_power_loss)

    def cut(self, count: int, *, durable: bool) -> None:
        """Note that recovery kept ``count`` messages; the others must never come back."""
        del self.messages[count:]
        self.survive_kill = count
        self.survive_power_loss = count if durable else min(self.survive_power_loss, count)

    def next_offsets(self) -> dict[QueueKey, int]:
        return {m.queue: m.queue_offset + 1 for m in self.messages if m.is_in_queue}


# -- the comparison -------------------------------------------------------------------------------


def check_store(store: Store, history: History, least: int) -> int:
    """Compare the whole store with the history; return the number of its messages.

    At least ``least`` messages must have survived. The store must be idle.
    """
    if not store.wait_dispatched():
        raise Violation(f"I4: dispatch lags by {store.dispatch_behind} bytes: {store.refusal}")
    count = _check_end(store, history, least)
    low = store.log_range[0]
    there = [m for m in history.messages[:count] if m.physical_offset >= low]
    try:
        _check_log(store, there, count - len(there))
        _check_queues(store, history.messages[:count], there)
        _check_keys(store, there)
        _check_times(store, there)
    except FiretrailError as error:
        raise Violation(f"I8: a read failed: {error!r}") from error
    return count


def _check_end(store: Store, history: History, least: int) -> int:
    low, end = store.log_range
    count = history.position_of(end)
    if count < least:
        lost = history.messages[count]
        raise Violation(
            f"I1: {least} messages were promised, the log ends at {end} after {count}; "
            f"lost: {lost.topic}/{lost.queue_id} {lost.queue_offset} at {lost.physical_offset}"
        )
    last = history.messages[count - 1].end if count else 0
    size = store.config.commit_log_file_size
    if end not in (last, -(-last // size) * size) and not (end == low and last <= low):
        raise Violation(f"I2: the log ends at {end}, the last message known at {last}")
    if low < history.log_min:
        raise Violation(f"I6: the log begins at {low}, all before {history.log_min} was deleted")
    return count


def _check_log(store: Store, there: list[Stored], deleted: int) -> None:
    for place, message in enumerate(there, deleted):
        record = store.at(message.physical_offset)
        if record is None:
            raise Violation(f"I1: no message at {message.physical_offset}, expected {message}")
        if record.body == message.body and (record.topic, _properties(record)) != (
            message.topic,
            message.properties,
        ):
            raise TornProperties(
                place, f"I2: at {message.physical_offset}: {record}, was {message}"
            )
        _check_record(record, message, "by place")


def _properties(record: Record) -> dict[str, str]:
    return {name: value for name, value in record.properties.items() if name != "__CRC32#"}


def _check_record(record: Record, message: Stored, how: str) -> None:
    for name in ("topic", "queue_id", "queue_offset", "physical_offset", "size", "store_time"):
        if name == "queue_offset" and not message.is_in_queue:
            continue
        if getattr(record, name) != getattr(message, name):
            raise Violation(
                f"I2: {how}, at {message.physical_offset}: {name} is {getattr(record, name)!r}, "
                f"was {getattr(message, name)!r}"
            )
    wanted = (message.sys_flag, message.flag, message.body, message.properties)
    found = (record.sys_flag & ~0x30, record.flag, record.body, _properties(record))
    if found != wanted:
        raise Violation(f"I2: {how}, at {message.physical_offset}: {record} was {message}")


def _check_queues(store: Store, known: list[Stored], there: list[Stored]) -> None:
    next_offsets = {m.queue: m.queue_offset + 1 for m in known if m.is_in_queue}
    expected: dict[QueueKey, list[Stored]] = {}
    for message in there:
        if message.is_in_queue:
            expected.setdefault(message.queue, []).append(message)
    for topic in store.topics():
        for queue_id in store.queues(topic):
            if store.max_offset(topic, queue_id) and (topic, queue_id) not in next_offsets:
                raise Violation(f"I2: no message was ever put to queue {topic}/{queue_id}")
    for (topic, queue_id), end in next_offsets.items():
        messages = expected.get((topic, queue_id), [])
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        first = messages[0].queue_offset if messages else end
        if (low, high) != (first, end):
            raise Violation(f"I3: {topic}/{queue_id} is {low}..{high}, should be {first}..{end}")
        records = list(store.read(topic, queue_id))
        if [r.queue_offset for r in records] != list(range(first, end)):
            raise Violation(f"I4: {topic}/{queue_id} reads {[r.queue_offset for r in records]}")
        for record, message in zip(records, messages, strict=True):
            _check_record(record, message, "by queue")


def _check_keys(store: Store, there: list[Stored]) -> None:
    expected: dict[tuple[str, str], list[int]] = {}
    for message in there:
        for key in message.keys:
            expected.setdefault((message.topic, key), []).append(message.physical_offset)
    most = store.config.max_query_count
    for (topic, key), offsets in expected.items():
        found = [record.physical_offset for record in store.query(topic, key, max_count=most)]
        if found != offsets[::-1][:most]:
            raise Violation(f"I4: key {key} of {topic} finds {found}, should {offsets[::-1]}")


def _check_times(store: Store, there: list[Stored]) -> None:
    queues: dict[QueueKey, list[Stored]] = {}
    for message in there:
        if message.is_in_queue:
            queues.setdefault(message.queue, []).append(message)
    for (topic, queue_id), messages in queues.items():
        middle = messages[len(messages) // 2].store_time
        for time in (middle - 1, middle, middle + 1):
            low = messages[0].queue_offset
            later = low + sum(1 for m in messages if m.store_time < time)
            upper = low + max(sum(1 for m in messages if m.store_time <= time) - 1, 0)
            found = store.offset_at(topic, queue_id, time, Boundary.LOWER)
            if found != later:
                raise Violation(f"I4: {topic}/{queue_id} at {time} is {found}, should {later}")
            found = store.offset_at(topic, queue_id, time, Boundary.UPPER)
            if found != upper:
                raise Violation(f"I4: {topic}/{queue_id} up to {time} is {found}, should {upper}")


def batch_of(messages: Sequence[Message]) -> Batch:
    """Return the batch of messages that agree on topic, queue and flags."""
    return Batch.of(messages)
