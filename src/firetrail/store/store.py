"""The message store as programs use it::

with Store.open("data") as store:
    store.put(Message("orders", b"...", tags="paid", keys=["o-1"]))
    for message in store.read("orders"):
        print(message.queue_offset, message.body)
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from firetrail.errors import ConfigError, StoreClosedError, WrongTypeError
from firetrail.format.kernels.draft import Message
from firetrail.format.light import LIGHT_PREFIX
from firetrail.format.record import Record
from firetrail.format.values.arguments import function, instance, number, seconds, truth
from firetrail.format.values.integers import whole
from firetrail.store.admission.drafter import Batch
from firetrail.store.dispatch.catch_ups import CATCH_UP_S
from firetrail.store.dispatch.derivation import Arrival
from firetrail.store.engine import Engine
from firetrail.store.reads.queue_records import QueueRecords
from firetrail.store.reads.reader import TIME_MAX, Boundary, tag_hashes, tag_names
from firetrail.store.results import GetResult, PutResult
from firetrail.store.settings.store_config import StoreConfig
from firetrail.store.store_status import StoreStatus
from firetrail.system import SYSTEM, System


class Store(StoreStatus):
    """A message store that is open for reading and writing.

    Open it with :meth:`open`, and use it as a context manager or :meth:`close` it. Any number of
    threads may use it, but only one process can have a store open for writing. A
    :class:`StoreView` reads a store that another process has open.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._writer = engine.writer
        self._get = engine.reader.get
        self._records = QueueRecords(engine.reader, engine.log.queue)
        self._is_closing = False

    @classmethod
    def open(
        cls, path: str | Path, config: StoreConfig | None = None, *, system: System | None = None
    ) -> Self:
        """Open the store in a folder, or create one there.

        Args:
            path: The folder of the store.
            config: The settings; the defaults of :class:`StoreConfig` if omitted. An existing store
                keeps the file sizes that it was created with.
            system: Files and clock, for tests; those of the operating system if omitted.

        Raises:
            NotAStoreError: The folder has other files.
            StoreLockedError: Another process has the store open.
            StoreDamagedError: The store cannot be recovered; nothing was changed.
            StoreError: A file could not be read or written.
        """
        if not isinstance(path, str | Path):
            raise WrongTypeError("path", path, "expected a str or a Path")
        if path == "":
            raise ConfigError("path", path, "is empty; '.' is the current folder")
        config = StoreConfig() if config is None else instance("config", config, StoreConfig)
        system = SYSTEM if system is None else instance("system", system, System)
        return cls(Engine(Path(path), config, system))

    def close(self, within_s: float | None = None) -> None:
        """Sync everything and close the store.

        Args:
            within_s: Seconds after which the remaining work is left to the next opening, which then
                recovers: All messages are in the log and on disk, but queues and index may lack the
                last ones. None (the default) finishes all work.

        Raises:
            FlushFailedError: Not everything could be synced.
        """
        if within_s is not None:
            seconds("within_s", within_s)
        if not self._is_closing:
            self._is_closing = True
            self._engine.stop(within_s)  # listeners of the last messages may still read

    def __del__(self) -> None:
        # The threads keep running: they hold the engine, and one of them may be running this.
        if not getattr(self, "_is_closing", True) and not self._engine.is_stopped:
            warnings.warn(
                f"the store {self._engine.root} was dropped and not closed: it stays open and "
                "locked until the process ends; use 'with Store.open(...)' or call close()",
                ResourceWarning,
                source=self,
                stacklevel=1,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- put ----------------------------------------------------------------------------------

    def put(self, message: Message) -> PutResult:
        """Store a message; with SYNC_FLUSH, return when it is on disk.

        Without SYNC_FLUSH this takes microseconds, but it can wait for other puts (at most
        ``page_cache_busy_ms``), for dispatch (0.2 s), or for space in the log.

        Args:
            message: The message to store.

        Returns:
            Where the message was stored.

        Raises:
            WrongTypeError: The argument is not a :class:`Message`.
            IllegalMessageError: The message cannot be stored.
            StoreReadOnlyError: The store refuses messages; ``refusal`` says why.
            StoreBusyError: The disk or dispatch cannot keep up at the moment.
            DiskFullError: There is no space for the message.
            FlushFailedError: The message was stored but is not known to be on disk: a sync failed,
                or did not end within ``sync_flush_timeout_ms``.
            StoreError: Nothing was stored, because a file operation failed.
        """
        result = self._writer.put(message)
        return result if result.ok else result.require_ok()

    def try_put(self, message: Message) -> PutResult:
        """Store a message and return its status where :meth:`put` would raise an error.

        Args:
            message: The message to store.
        """
        return self._writer.put(message)

    async def put_async(self, message: Message) -> PutResult:
        """Store a message as :meth:`put` does, without blocking the event loop during a sync.

        Args:
            message: The message to store.
        """
        result = self._writer.begin_put(message)
        if isinstance(result, PutResult):
            return result.require_ok()
        return (await result).require_ok()

    def put_batch(self, batch: Batch | Sequence[Message]) -> PutResult:
        """Store messages of one topic and queue in one piece.

        Args:
            batch: A :class:`Batch`, or messages for :meth:`Batch.of`.

        Returns:
            Where the first message was stored.

        Raises:
            As :meth:`put`.
        """
        if not isinstance(batch, Batch):
            batch = Batch.of(batch)
        return self.try_put_batch(batch).require_ok()

    def try_put_batch(self, batch: Batch) -> PutResult:
        """Store a batch and return its status where :meth:`put_batch` would raise an error.

        Args:
            batch: The batch to store.
        """
        return self._writer.put_batch(batch)

    # -- get ----------------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int = 0,
        offset: int = 0,
        max_count: int = 32,
        tags: str | Iterable[str] | None = None,
    ) -> GetResult:
        """Return messages of a queue as slices of the log, with a status and the next offset.

        Does not wait for dispatch: a message is in its queue a moment after its put, and
        :meth:`wait_dispatched` waits for it. Blocks only for pages that are not in memory.

        Args:
            topic: The topic of the queue.
            queue_id: The number of the queue; 0 by default.
            offset: The queue offset of the first message; 0 by default.
            max_count: How many messages to return at most; 32 by default. The settings in the group
                "Read" limit the result as well.
            tags: Only messages with these tags, as ``"A || B"`` or as several strings; all messages
                by default. Tags are compared by hash, as RocketMQ's broker does, so that a
                message with another tag of the same hash may be returned.
        """
        if not type(queue_id) is type(offset) is type(max_count) is int or max_count < 1:
            queue_id, offset = whole("queue_id", queue_id), whole("offset", offset)
            max_count = number("max_count", max_count, 1)
        if type(topic) is not str:
            instance("topic", topic, str)
        wanted = None if tags is None else tag_hashes(tags)
        if self._engine.is_closed:
            self._engine.check_open()
        return self._engine.statistics.noted(self._get(topic, queue_id, offset, max_count, wanted))

    def read(
        self,
        topic: str,
        queue_id: int = 0,
        offset: int | None = None,
        tags: str | Sequence[str] | None = None,
    ) -> Iterator[Record]:
        """Return an iterator over the messages that a queue has now.

        Waits up to a second until the messages put before are dispatched, so that a program reads
        its own puts. In an event loop, call it and iterate in a thread.

        Args:
            topic: The topic of the queue.
            queue_id: The number of the queue; 0 by default.
            offset: The queue offset of the first message; by default that of the oldest one.
            tags: Only messages with these tags, as ``"A || B"`` or as several strings; all messages
                by default. Tags are compared exactly.

        Raises:
            StoreDamagedError: A message is damaged; raised when the iterator reaches it.
        """
        _check_read(topic, queue_id, offset, tags)
        self._engine.check_open()
        self._catch_up()
        return self._read(topic, queue_id, offset, tags, self.max_offset(topic, queue_id))

    def _read(
        self,
        topic: str,
        queue_id: int,
        offset: int | None,
        tags: str | Sequence[str] | None,
        end: int,
    ) -> Iterator[Record]:
        """Yield the messages before ``end``.

        A light queue is read in whole pages: its messages have the offsets of their own queues.
        """
        is_light = topic.startswith(LIGHT_PREFIX)
        first = self._first(topic, queue_id, offset)
        for messages, next_offset in self._records.pages(topic, queue_id, first, tags):
            for message in messages:
                if message.queue_offset >= end and not is_light:
                    return
                yield message
            if next_offset >= end:
                return

    def _first(self, topic: str, queue_id: int, offset: int | None) -> int:
        """Return the offset to start from; by default that of the oldest message."""
        oldest = self.min_offset(topic, queue_id)
        return oldest if offset is None else whole("offset", offset)

    def follow(
        self,
        topic: str,
        queue_id: int = 0,
        offset: int | None = None,
        tags: str | Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> Iterator[Record]:
        """Return an iterator as :meth:`read` does that then waits for new messages.

        The iterator ends when the store is closed. Each step blocks until there is a message, so
        that an event loop needs a thread for it.

        Args:
            topic: The topic of the queue.
            queue_id: The number of the queue; 0 by default.
            offset: The queue offset of the first message; by default that of the oldest one.
            tags: Only messages with these tags, as for :meth:`read`; all messages by default.
            timeout: End after this many seconds without a message; None (the default) never.
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
        with arrivals.watched(), suppress(StoreClosedError):
            position = self._first(topic, queue_id, offset)
            since = clock.monotonic()
            while True:
                mark = arrivals.mark
                end = self.max_offset(topic, queue_id)
                self._catch_up()
                self._engine.check_open()
                for messages, next_offset in self._records.pages(topic, queue_id, position, tags):
                    for message in messages:
                        yield message
                        since = clock.monotonic()
                    position = max(position, next_offset)
                position = max(position, end)
                left = None if timeout is None else since + timeout - clock.monotonic()
                if not arrivals.wait(mark, left):
                    return

    def by_id(self, message_id: str) -> Record | None:
        """Return the message with an offset message id, or None if the store does not have it.

        Args:
            message_id: The id that a :class:`PutResult` has, 32 or 56 hexadecimal digits.
        """
        buffer = self._engine.reader.by_id(instance("message_id", message_id, str))
        return None if buffer is None else self._records.decoded(buffer)

    def at(self, physical_offset: int) -> Record | None:
        """Return the message that begins at a position in the log, or None if none does.

        Args:
            physical_offset: The position in the log, in bytes.
        """
        buffer = self._engine.reader.at_offset(whole("physical_offset", physical_offset))
        return None if buffer is None else self._records.decoded(buffer)

    def query(
        self,
        topic: str,
        key: str,
        begin: int = 0,
        end: int = TIME_MAX,
        max_count: int | None = None,
    ) -> list[Record]:
        """Return messages with a key or unique key, newest first.

        Waits, as :meth:`read` does, up to a second until the messages put before are dispatched.

        Args:
            topic: The topic of the messages.
            key: One of their keys, or their unique key.
            begin: The earliest store time, in ms; 0 by default.
            end: The latest store time, in ms; unlimited by default.
            max_count: How many messages to return at most; the setting ``default_query_count`` by
                default, and never more than ``max_query_count``.
        """
        begin, end = whole("begin", begin), whole("end", end)
        instance("topic", topic, str)
        instance("key", key, str)
        if max_count is not None:
            max_count = number("max_count", max_count)
        self._engine.check_open()
        self._catch_up()
        if max_count == 0:
            return []
        result = self._engine.reader.query(topic, key, begin, end, max_count)
        return [self._records.decoded(buffer) for buffer in result.buffers]

    def offset_at(
        self, topic: str, queue_id: int, time_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Return the queue offset that a store time selects; 0 if the queue does not exist.

        Args:
            topic: The topic of the queue.
            queue_id: The number of the queue.
            time_ms: The store time, in ms.
            boundary: Which message to select if none was stored at exactly that time; by default
                the first one after it.
        """
        queue_id, time_ms = whole("queue_id", queue_id), whole("time_ms", time_ms)
        instance("topic", topic, str)
        instance("boundary", boundary, Boundary)
        return self._engine.reader.offset_at(topic, queue_id, time_ms, boundary)

    # -- work that usually happens in the background ------------------------------------------

    def flush(self) -> None:
        """Return when all messages put so far are on disk; raise FlushFailedError if that fails."""
        self._engine.flush()

    def wait_dispatched(self, timeout: float = 60.0) -> bool:
        """Wait until all messages put so far are in queues and index.

        Args:
            timeout: Seconds to wait at most; 60 by default.

        Returns:
            False if they were not when the time was over. A ``SYNC_MASTER`` with too few connected
            replicas returns False as soon as the only missing messages are those that cannot be
            confirmed.
        """
        seconds("timeout", timeout)
        self._engine.check_open()
        return self._wait_dispatched(self._log.max_offset, timeout)

    def _wait_dispatched(self, end: int, timeout: float) -> bool:
        arrivals, clock = self._engine.arrivals, self._engine.system.clock
        deadline = clock.monotonic() + timeout
        with arrivals.watched():
            while True:
                mark = arrivals.mark
                if self._dispatcher.position >= end:
                    return True
                if self._dispatcher.behind == 0 and not self._engine.acks.may_confirm(end):
                    return False
                left = deadline - clock.monotonic()
                if left <= 0 or self._engine.failure is not None or arrivals.is_closed:
                    return False
                self._dispatcher.wake_if_idle()  # an event loop that waits here dispatches nothing
                arrivals.wait(mark, min(left, 0.001))  # records without a queue do not arrive

    def _catch_up(self) -> None:
        """Wait for dispatch, which lags the log a little, so that a program finds its own puts."""
        end = self._log.dispatchable()
        if self._dispatcher.position < end and not self._dispatcher.starved:
            self._wait_dispatched(end, CATCH_UP_S)

    def delete_expired(self, *, forced: bool = False) -> int:
        """Delete expired files of the log now, regardless of ``delete_when``.

        Args:
            forced: Whether to delete files that have not expired as well, but never the active one;
                False by default.

        Returns:
            How many files were deleted.
        """
        return self._engine.retention.delete(forced=truth("forced", forced))

    def on_arrival(self, listener: Callable[[list[Arrival]], None]) -> None:
        """Call a function whenever messages become readable.

        Args:
            listener: Called with a list of :class:`Arrival` in the thread that dispatched the
                messages: That of the dispatcher, or in a broker also that of a put or pull. It must
                return quickly, because dispatch waits for it.
        """
        function("listener", listener, "def on_arrival(arrivals)")
        self._dispatcher.listeners.append(listener)


def _check_read(
    topic: str, queue_id: int, offset: int | None, tags: str | Sequence[str] | None
) -> None:
    """Check the arguments in the call itself rather than when the first message is read."""
    instance("topic", topic, str)
    whole("queue_id", queue_id)
    if offset is not None:
        whole("offset", offset)
    if tags is not None:
        tag_names(tags)
