"""The message store as programs use it::

with Store.open("data") as store:
    store.put(Message("orders", b"...", tags="paid", keys=["o-1"]))
    for message in store.read("orders"):
        print(message.queue_offset, message.body)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from firetrail.errors import (
    ConfigError,
    FlushFailedError,
    FormatError,
    StoreClosedError,
    StoreDamagedError,
    WrongTypeError,
)
from firetrail.format.arguments import function, instance, number, seconds, truth
from firetrail.format.record import Record, decode_message
from firetrail.format.whole import whole
from firetrail.store.config import StoreConfig
from firetrail.store.dispatch.deriver import Arrival
from firetrail.store.engine import Engine
from firetrail.store.inspect.damage import READ_REMEDY
from firetrail.store.lifecycle.recovery import RecoveryReport
from firetrail.store.log.flusher import ThreadWaiter
from firetrail.store.log.records import record_offset
from firetrail.store.put.writer import Writer
from firetrail.store.reader import TIME_MAX, Boundary, tag_hashes, tag_names
from firetrail.store.results import GetResult
from firetrail.store.stats import Snapshot
from firetrail.system import System

CATCH_UP_S = 1.0
"""Longest that a read waits for messages that were put before it to be dispatched."""


class Store(Writer):
    """A message store that is open for writing."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._get = engine.reader.get
        self._closed = False

    @classmethod
    def open(
        cls,
        path: str | Path,
        config: StoreConfig | None = None,
        *,
        system: System | None = None,
    ) -> Self:
        """Open the store in a folder, or begin one there.

        File sizes of an existing store are taken from its files, whatever the configuration says.
        Raises NotAStoreError, StoreLockedError or StoreDamagedError, and has changed nothing then.
        """
        if not isinstance(path, str | Path):
            raise WrongTypeError("path", path, "expected a str or a Path")
        if path == "":
            raise ConfigError("path", path, "is empty; '.' is the current folder")
        config = StoreConfig() if config is None else instance("config", config, StoreConfig)
        system = System() if system is None else instance("system", system, System)
        return cls(Engine(Path(path), config, system))

    def close(self, within_s: float | None = None) -> None:
        """Make everything durable and close the store; raises if that was not possible.

        With ``within_s``, what takes longer is left to the next opening, which then recovers:
        queues and index may not have the last messages yet, which are in the log and on disk.
        """
        if within_s is not None:
            seconds("within_s", within_s)
        if not self._closed:
            self._closed = True
            self._engine.stop(within_s)

    def __del__(self) -> None:
        # Its threads go on: they hold what is behind it, and this may be one of them.
        if not getattr(self, "_closed", True) and not self._engine.is_stopped:
            warnings.warn(
                f"the store {self._engine.root} was dropped and not closed: it stays open, and "
                "locked, until the process ends; use 'with Store.open(...)', or close it",
                ResourceWarning,
                source=self,
                stacklevel=1,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- get ----------------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int = 0,
        offset: int = 0,
        max_count: int = 32,
        tags: str | Iterable[str] | None = None,
    ) -> GetResult:
        """Messages of a queue from ``offset`` on: slices of the log, status, next offset.

        ``tags`` (``"A || B"`` or several) are compared by hash, as RocketMQ's broker does; a
        message with another tag of the same hash may be among the answer.
        """
        if not type(queue_id) is type(offset) is type(max_count) is int or max_count < 1:
            queue_id, offset = whole("queue_id", queue_id), whole("offset", offset)
            max_count = number("max_count", max_count, 1)
        if type(topic) is not str:
            instance("topic", topic, str)
        wanted = None if tags is None else tag_hashes(tags)
        return self._statistics.noted(self._get(topic, queue_id, offset, max_count, wanted))

    def read(
        self,
        topic: str,
        queue_id: int = 0,
        offset: int | None = None,
        tags: str | Sequence[str] | None = None,
    ) -> Iterator[Record]:
        """The messages of a queue, from ``offset`` (or the first one) on, up to now."""
        _check_read(topic, queue_id, offset, tags)
        return self._read(topic, queue_id, offset, tags)

    def _read(
        self, topic: str, queue_id: int, offset: int | None, tags: str | Sequence[str] | None
    ) -> Iterator[Record]:
        for messages, _ in self._pages(topic, queue_id, offset, tags):
            yield from messages

    def _pages(
        self, topic: str, queue_id: int, offset: int | None, tags: str | Sequence[str] | None
    ) -> Iterator[tuple[Iterator[Record], int]]:
        """The messages of a queue up to now, some at a time, and the offset behind them.

        The number in a message is that in its own queue, and not in a light queue.
        """
        self._catch_up()
        wanted = tag_hashes(tags)
        names = None if wanted is None or tags is None else set(tag_names(tags))
        first = self.min_offset(topic, queue_id)
        position = first if offset is None else whole("offset", offset)
        while True:
            result = self._engine.reader.get(topic, queue_id, position, tags=wanted)
            messages = self._decoded_of(topic, queue_id, position, wanted, result)
            if names is not None:
                messages = (message for message in messages if message.tags in names)
            yield messages, result.next_offset
            if result.next_offset <= position or position >= result.max_offset:
                return
            position = result.next_offset

    def _decoded_of(
        self,
        topic: str,
        queue_id: int,
        position: int,
        wanted: frozenset[int] | None,
        result: GetResult,
    ) -> Iterator[Record]:
        """The messages that a get from ``position`` has found; StoreDamagedError at a bad one."""
        for place, buffer in enumerate(result.buffers):
            try:
                yield decode_message(buffer)
            except FormatError as error:
                reader = self._engine.reader
                raise reader.damage(topic, queue_id, position, place, wanted) from error

    def follow(
        self,
        topic: str,
        queue_id: int = 0,
        offset: int | None = None,
        tags: str | Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> Iterator[Record]:
        """As :meth:`read`, and then wait for more, until the store is closed.

        With a ``timeout``, end when for so many seconds nothing has arrived in the queue.
        """
        _check_read(topic, queue_id, offset, tags)
        if timeout is not None:
            seconds("timeout", timeout)
        return self._follow(topic, queue_id, offset, tags, timeout)

    def _follow(
        self,
        topic: str,
        queue_id: int,
        offset: int | None,
        tags: str | Sequence[str] | None,
        timeout: float | None,
    ) -> Iterator[Record]:
        arrivals, clock = self._engine.arrivals, self._engine.system.clock
        first = self.min_offset(topic, queue_id)
        position = first if offset is None else whole("offset", offset)
        with arrivals.watched(), suppress(StoreClosedError):
            since = clock.monotonic()
            while True:
                mark = arrivals.mark
                end = self.max_offset(topic, queue_id)
                for messages, behind in self._pages(topic, queue_id, position, tags):
                    for message in messages:
                        yield message
                        since = clock.monotonic()
                    position = max(position, behind)
                position = max(position, end)
                left = None if timeout is None else since + timeout - clock.monotonic()
                if not arrivals.wait(mark, left):
                    return

    def by_id(self, message_id: str) -> Record | None:
        """The message with this offset message id."""
        buffer = self._engine.reader.by_id(instance("message_id", message_id, str))
        return None if buffer is None else self._decoded(buffer)

    def at(self, physical_offset: int) -> Record | None:
        """The message that begins at this offset of the log."""
        buffer = self._engine.reader.at_offset(whole("physical_offset", physical_offset))
        return None if buffer is None else self._decoded(buffer)

    def query(
        self,
        topic: str,
        key: str,
        begin: int = 0,
        end: int = TIME_MAX,
        max_count: int | None = None,
    ) -> list[Record]:
        """Messages with this key or unique key, newest first; ``begin..end`` in ms.

        At most ``max_count``, or the setting ``default_query_count`` without one, and never more
        than ``max_query_count``.
        """
        begin, end = whole("begin", begin), whole("end", end)
        instance("topic", topic, str)
        instance("key", key, str)
        if max_count is not None:
            max_count = number("max_count", max_count)
        self._catch_up()
        if max_count == 0:
            return []
        result = self._engine.reader.query(topic, key, begin, end, max_count)
        return [self._decoded(buffer) for buffer in result.buffers]

    def _decoded(self, buffer: memoryview) -> Record:
        """The message in a slice of the log; StoreDamagedError if its bytes are not as stored."""
        try:
            return decode_message(buffer)
        except FormatError as error:
            offset = record_offset(buffer)
            segment = self._log.queue.find(offset)
            if segment is None:
                raise
            raise StoreDamagedError(
                str(segment.path),
                offset - segment.base + error.offset,
                offset,
                f"{error.field}: {error.detail}",
                READ_REMEDY,
            ) from error

    def offset_at(
        self, topic: str, queue_id: int, time_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Queue offset that a store time (ms) stands for."""
        queue_id, time_ms = whole("queue_id", queue_id), whole("time_ms", time_ms)
        instance("topic", topic, str)
        instance("boundary", boundary, Boundary)
        return self._engine.reader.offset_at(topic, queue_id, time_ms, boundary)

    # -- what is there ------------------------------------------------------------------------

    @property
    def config(self) -> StoreConfig:
        """The settings in force; file sizes are those of the files."""
        return self._engine.config

    @property
    def recovery(self) -> RecoveryReport:
        """What opening the store found and did."""
        return self._engine.recovery

    @property
    def refusal(self) -> str:
        """Why puts are refused, empty while they are not."""
        return self._gate.refusal or self._dispatcher.starved

    @property
    def has_light_queues(self) -> bool:
        """Whether messages are put into the light queues that they name."""
        return self._engine.drafter.rules.light_queues

    def topics(self) -> list[str]:
        """Every topic with a queue, in order."""
        return self._engine.queues.topics()

    def queues(self, topic: str) -> list[int]:
        """The queue ids of a topic, in order."""
        instance("topic", topic, str)
        return [queue_id for name, queue_id in self._engine.queues.pairs() if name == topic]

    def min_offset(self, topic: str, queue_id: int = 0) -> int:
        """Queue offset of the oldest message there is; 0 for a missing queue."""
        topic, queue_id = instance("topic", topic, str), whole("queue_id", queue_id)
        queue = self._engine.queues.find(topic, queue_id)
        return queue.min_offset(self._log.min_offset) if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int = 0) -> int:
        """Queue offset that the next message gets to see; 0 for a missing queue."""
        topic, queue_id = instance("topic", topic, str), whole("queue_id", queue_id)
        queue = self._engine.queues.find(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    @property
    def log_range(self) -> tuple[int, int]:
        """Physical offsets of the oldest record and behind the newest one."""
        return self._log.min_offset, self._log.max_offset

    @property
    def flushed_offset(self) -> int:
        """The log is on disk up to this physical offset."""
        return self._log.flushed_offset

    @property
    def dispatch_behind(self) -> int:
        """Bytes of the log that are not in queues and index yet."""
        return max(self._log.max_offset - self._dispatcher.position, 0)

    def statistics(self) -> Snapshot:
        """Counters since the store was opened."""
        return self._statistics.snapshot(self._engine.system.clock.monotonic())

    # -- work that usually happens by itself --------------------------------------------------

    def flush(self) -> None:
        """Return when everything put so far is on the disk; raises FlushFailedError."""
        end = self._log.max_offset
        waiter = ThreadWaiter(end)
        self._engine.flusher.add(waiter)
        waiter.wait(-1)
        if not waiter.durable:
            raise FlushFailedError(f"not all is on disk: {self._gate.refusal}")

    def wait_dispatched(self, timeout: float = 60.0) -> bool:
        """Wait until everything put so far is in queues and index; False at the timeout."""
        seconds("timeout", timeout)
        return self._wait_dispatched(self._log.max_offset, timeout)

    def _wait_dispatched(self, end: int, timeout: float) -> bool:
        arrivals, clock = self._engine.arrivals, self._engine.system.clock
        deadline = clock.monotonic() + timeout
        with arrivals.watched():
            while True:
                mark = arrivals.mark
                if self._dispatcher.position >= end:
                    return True
                left = deadline - clock.monotonic()
                if left <= 0 or self._engine.failure is not None or arrivals.is_closed:
                    return False
                arrivals.wait(mark, min(left, 0.001))  # what is in no queue does not arrive

    def _catch_up(self) -> None:
        """Let a program find what it has put before: dispatch is a moment behind the log."""
        end = self._engine.dispatchable()
        if self._dispatcher.position < end and not self._dispatcher.starved:
            self._wait_dispatched(end, CATCH_UP_S)

    def delete_expired(self, *, forced: bool = False) -> int:
        """Delete expired files of the log now, whatever the hour; how many went.

        ``forced``, also those that have not expired, but never the active one.
        """
        return self._engine.retention.delete(forced=truth("forced", forced))

    def on_arrival(self, listener: Callable[[list[Arrival]], None]) -> None:
        """Call ``listener`` in the dispatching thread whenever messages became readable."""
        function("listener", listener, "def on_arrival(arrivals)")
        self._dispatcher.listeners.append(listener)


def _check_read(
    topic: str, queue_id: int, offset: int | None, tags: str | Sequence[str] | None
) -> None:
    """Refuse wrong arguments in the call itself, and not only when the first message is read."""
    instance("topic", topic, str)
    whole("queue_id", queue_id)
    if offset is not None:
        whole("offset", offset)
    if tags is not None:
        tag_names(tags)
