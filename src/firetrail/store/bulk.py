"""Bulk appends to a store that is not in use: all of the messages become visible, or none.

Records are written after the end of the log, except for the first eight bytes there (a record's
size and magic, or the end mark of a file). While these are zeros the log ends before them, for
every reader and every recovery, including Java's. Everything is synced, the store is marked as not
closed, then those eight bytes are written and synced: that moment is the commit. Queues and index
are derived from the log when the store is opened, as after any unclean stop. That opening also
clears records that were not committed.

A writer that appends with an id and a number (the batches of a stream) never appends a number
twice. The file ``firetrail.sink`` has the last number of each writer
(:mod:`firetrail.store.bulk_journal`).
"""

import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from firetrail.errors import IllegalMessageError, StoreError, StoreLockedError
from firetrail.format import layout
from firetrail.format.kernels.encode import RecordFields, RecordWriter, measure_batch
from firetrail.format.names import COMMIT_LOG, SINK, check_topic
from firetrail.format.record import move_record
from firetrail.format.values.hosts import encode_host
from firetrail.storage.segment import Segment
from firetrail.storage.segment_queue import SegmentQueue
from firetrail.store.admission.drafter import without_crcs
from firetrail.store.bulk_journal import Commit, Journal, Ticket
from firetrail.store.inspect.view import StoreState, StoreView
from firetrail.store.log.good_records import GoodRecord, good_records
from firetrail.store.log.paths import settle_paths
from firetrail.store.queues.generations import begins_generation
from firetrail.store.queues.queue_table import QueueKey
from firetrail.store.root.folder import AbortFile, FolderLock, prepare_folder
from firetrail.store.root.sizes import adopt_sizes
from firetrail.store.settings.store_config import StoreConfig
from firetrail.store.store import Store
from firetrail.system import SYSTEM, System

_log = logging.getLogger(__name__)
_HEAD = layout.BLANK.size
_ITEM_SIZE = layout.BATCH_ITEM.offsets["total_size"]


class AppendResult(NamedTuple):
    """The messages that have become visible."""

    messages: int
    start: int
    end: int


class BulkAppend:
    """One commit. Use it as a context manager: call :meth:`add`, then :meth:`commit`.

    Raises StoreLockedError if the store is in use, and DiskFullError; then nothing is appended.
    ``done`` is True if the ticket's number was committed before, so that there is nothing to add.
    """

    def __init__(
        self,
        root: Path,
        config: StoreConfig,
        ticket: Ticket | None = None,
        system: System | None = None,
    ) -> None:
        self._system = system or SYSTEM
        self._root = root.absolute()
        self._ticket = ticket
        self._segments: list[Segment] = []
        self._head: tuple[Segment, int, bytes] | None = None
        self._first: tuple[int, bytes] | None = None  # offset and content of the first record
        self._committed = False
        self.messages = 0
        prepare_folder(self._system, self._root)
        self._lock: FolderLock | None = FolderLock(self._system, self._root)
        try:
            paths = settle_paths(self._system.files, self._root, config)
            if paths is None:
                self._system.files.make_folder(self._root / COMMIT_LOG)
            self.config = adopt_sizes(self._system, self._root, config)
            self._store_host = encode_host(self.config.store_host)
            self._log = SegmentQueue(
                self._system,
                self._root / COMMIT_LOG,
                self.config.commit_log_file_size,
                spread=paths
                and paths.spread(self._system.files, lambda: self.config.disk_clean_forcibly_ratio),
            )
            if not self._look():
                self._lock.release()
                self._lock = None
                self._derive()  # recovers the store, or creates it
                self._lock = FolderLock(self._system, self._root)
                if not self._look():
                    raise StoreError(
                        f"{root}: not closed cleanly, and opening it did not help; "
                        "check it with 'firetrail fsck'"
                    )
            self._journal = Journal(self._system, self._root)
            self._journal.settle(self._is_published)
            self.done = ticket is not None and self._journal.has(ticket)
        except BaseException:
            self.close()
            raise

    def _look(self) -> bool:
        """Find the ends of log and queues; return False if the store must be recovered first."""
        with StoreView.open(self._root, self.config, system=self._system, exclusive=True) as view:
            mark = view.watermark
            if (
                view.state is not StoreState.CLOSED
                or view.queue_faults
                or mark is None
                or not mark.clean
                or view.end != mark.durable_offset
            ):
                return False
            self._log_min = view.log.min_offset
            self._start = self._end = view.end
            self._next = {pair: tail.max_offset for pair, tail in view.tails.items()}
            self._time = max(self._system.clock.now_ms(), mark.last_store_time)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def last_numbers(self) -> Mapping[str, int]:
        """The last number that each writer has committed."""
        return self._journal.numbers

    @property
    def last_commit(self) -> Commit | None:
        """The last commit of the ticket's writer; None if there is none."""
        return None if self._ticket is None else self._journal.last_commit(self._ticket.writer)

    def committed_records(self, commit: Commit) -> Iterator[GoodRecord]:
        """Yield the records of an earlier commit; those that were deleted since are missing."""
        with StoreView.open(self._root, self.config, system=self._system, exclusive=True) as view:
            begin = max(commit.start, view.log.min_offset)
            yield from good_records(view.log, begin, min(commit.end, self._start))

    # -- adding -------------------------------------------------------------------------------

    def add(self, topic: str, queue_id: int, items: bytes | memoryview, sys_flag: int = 0) -> None:
        """Append messages of one queue, encoded as a client batch (``format.batch``)."""
        if (topic, queue_id) not in self._next:
            check_topic(topic)
        self._add((topic, queue_id), without_crcs(items), sys_flag)

    def _add(self, key: QueueKey, items: bytes | memoryview, sys_flag: int) -> None:
        encoded = key[0].encode()
        count, size, largest = self._measure(items, encoded)
        if largest > self.config.max_record_size:
            raise IllegalMessageError(
                "message", f"a record of {largest} bytes, at most {self.config.max_record_size}"
            )
        segment = self._segments[-1] if self._segments else self._open_last()
        if segment is None or segment.wrote + size + _HEAD > segment.size:
            if count > 1:
                for item in _split(memoryview(items)):
                    self._add(key, item, sys_flag)
                return
            segment = self._roll(segment)
        self._write(segment, key, encoded, items, count, size, sys_flag)

    def add_record(self, record: GoodRecord) -> int:
        """Append a record of another store, changing only its offsets; return its queue offset.

        A record that is in no queue keeps its queue offset. A record that begins a new generation
        of its queue does so here as well.
        """
        content = record.content
        size = len(content)
        segment = self._segments[-1] if self._segments else self._open_last()
        if segment is None or segment.wrote + size + _HEAD > segment.size:
            segment = self._roll(segment)
        key = (record.topic, record.queue_id)
        number = self._next.get(key, 0) if record.in_queue else record.queue_offset
        if record.in_queue and begins_generation(record.queue_offset, number):
            number = 0
        moved = move_record(content, segment.base + segment.wrote, number)
        self._place(segment, moved)
        if record.in_queue:
            self._next[key] = number + 1
        self.messages += 1
        return number

    def _place(self, segment: Segment, records: bytes | bytearray) -> None:
        """Write records; the head of the very first one is held back until the commit."""
        at, size = segment.wrote, len(records)
        segment.allocate(at + size)
        hidden = 0
        if self._head is None:
            hidden = _HEAD
            self._head = segment, at, bytes(records[:_HEAD])
        segment.view[at + hidden : at + size] = records[hidden:]
        if self._first is None:
            length = int.from_bytes(records[:4], "big")
            self._first = segment.base + at, bytes(records[:length])
        segment.wrote_to(at + size)
        self._end = segment.base + at + size

    def _measure(self, items: bytes | memoryview, topic: bytes) -> tuple[int, int, int]:
        hosts = 2 * len(self._store_host)
        return measure_batch(items, hosts, len(topic), 0, self.config.property_crc)

    def _write(
        self,
        segment: Segment,
        key: QueueKey,
        topic: bytes,
        items: bytes | memoryview,
        count: int,
        size: int,
        sys_flag: int,
    ) -> None:
        at = segment.wrote
        scratch = bytearray(size) if self._first is None else None
        if scratch is None:
            segment.allocate(at + size)
        writer = RecordWriter(segment.view if scratch is None else scratch)
        if len(self._store_host) == layout.HOST_V6_SIZE:
            sys_flag |= layout.BORN_HOST_V6 | layout.STORE_HOST_V6
        common = RecordFields(
            topic,
            self._store_host,
            self._store_host,
            queue_id=key[1],
            queue_offset=self._next.get(key, 0),
            physical_offset=segment.base + at,
            sys_flag=sys_flag,
            born_time=self._time,
            store_time=self._time,
        )
        start = at if scratch is None else 0
        writer.write_batch(start, items, common, self.config.property_crc)
        if scratch is not None:
            self._place(segment, scratch)
        else:
            segment.wrote_to(at + size)
            self._end = segment.base + at + size
        self._next[key] = self._next.get(key, 0) + count
        self.messages += count

    # -- files --------------------------------------------------------------------------------

    def _open_last(self) -> Segment | None:
        """Return the file in which the log ends, or None if the next record begins a new one."""
        size = self.config.commit_log_file_size
        base = self._start - self._start % size
        path = self._log.path_of(base)
        if not path.exists():
            return None
        segment = Segment(self._system, path, base, size, filled=self._start - base)
        segment.truncate(self._start - base)  # clears what a killed append has left
        self._segments.append(segment)
        return segment

    def _roll(self, full: Segment | None) -> Segment:
        """Close a file with its end mark, and begin the next one."""
        size = self.config.commit_log_file_size
        base = full.end if full is not None else self._start - self._start % size
        path = self._log.path_of(base)
        if path.exists():
            self._system.files.remove(path)  # left by a killed append
        if full is not None and not full.is_full:
            blank = layout.BLANK.struct.pack(full.size - full.wrote, layout.MAGIC_BLANK)
            full.allocate(full.wrote + _HEAD)
            if self._head is None:
                self._head = full, full.wrote, blank
            else:
                full.view[full.wrote : full.wrote + _HEAD] = blank
            full.wrote_to(full.size)
        segment = self._log.create(base)
        self._segments.append(segment)
        return segment

    # -- the commit ---------------------------------------------------------------------------

    def commit(self) -> AppendResult:
        """Make all messages durable and visible, and derive queues and index.

        An error means that nothing was committed. Failures after the commit are logged.
        """
        start, end = self._start, self._end
        commit = None
        if self._ticket is not None:
            commit = Commit(*self._ticket, self.messages, start, end)
        if self._head is not None and self._first is not None:
            for segment in self._segments:
                segment.sync()
            head_segment, at, head = self._head
            AbortFile(self._system, self._root).create(sealed=self.config.property_crc)
            self._journal.announce(commit, head_segment.base + at, head, *self._first)
            self._committed = True  # from here on, the pending note and the log decide
            head_segment.view[at : at + _HEAD] = head
            head_segment.sync()
        try:
            self._conclude(commit)
        except (OSError, StoreError) as error:
            if not self._committed:
                raise
            _log.warning(
                "%s: %d messages are stored, but their queues could not be derived (%s); the next "
                "opening of the store derives them",
                self._root,
                self.messages,
                error,
            )
        return AppendResult(self.messages, start, end)

    def _conclude(self, commit: Commit | None) -> None:
        """Finish after the commit; if this fails, the next opening of the store does it."""
        self._journal.conclude(commit)
        self.close()
        if self._committed:
            with suppress(StoreLockedError):  # the process that has opened it derives them
                self._derive()

    def close(self) -> None:
        """Release the store; discard uncommitted messages."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        try:
            for segment in reversed(self._segments):
                if self._committed:
                    segment.close()
                elif segment.base >= self._start:
                    segment.destroy(0)
                else:
                    segment.truncate(self._start - segment.base)
                    segment.close()
        finally:
            lock.release()

    def _derive(self) -> None:
        Store.open(self._root, self.config, system=self._system).close()

    def _is_published(self, note: dict[str, Any]) -> bool:
        """Return whether the log has the commit that a killed process was about to make."""
        head_at, record_at = note["head_at"], note["record_at"]
        if head_at < self._log_min:
            raise StoreError(
                f"{self._root}: retention has deleted the records that would show whether batch "
                f"{note['number']} of {note['writer']} was committed; if it was not, remove "
                f"'pending' from {SINK}"
            )
        if record_at + note["record_size"] > self._end:
            return False
        with StoreView.open(self._root, self.config, system=self._system, exclusive=True) as view:
            head = view.log.read(head_at, _HEAD)
            record = view.log.read(record_at, note["record_size"])
            return (
                head is not None
                and record is not None
                and bytes(head).hex() == note["head"]
                and hashlib.sha256(record).hexdigest() == note["record_sha256"]
            )


def _split(items: memoryview) -> Iterator[memoryview]:
    at = 0
    while at < len(items):
        size = int.from_bytes(items[at + _ITEM_SIZE : at + _ITEM_SIZE + 4], "big")
        yield items[at : at + size]
        at += size


def committed_numbers(root: Path, config: StoreConfig) -> dict[str, int]:
    """Return the last number that each writer has committed, after resolving a killed commit.

    Raises StoreLockedError if the store is in use.
    """
    if not (root / SINK).exists():
        return {}
    with BulkAppend(root, config) as bulk:
        return dict(bulk.last_numbers)
