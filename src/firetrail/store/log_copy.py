"""The log of a replica: it grows by records of the master's log, not by puts."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from firetrail.errors import DiskFullError, StoreError, StoreReadOnlyError
from firetrail.store.admission.gate import Closure
from firetrail.store.engine import Engine
from firetrail.store.log.flusher import ThreadWaiter
from firetrail.store.log.log_records import record_at
from firetrail.store.log.segment_scan import record_offsets
from firetrail.store.settings.store_config import FlushMode
from firetrail.system import NO_SPACE, SyncError


class LastRecord(NamedTuple):
    """The last record of a log, with its bytes."""

    offset: int
    content: bytes

    @property
    def end(self) -> int:
        """The physical offset after the record."""
        return self.offset + len(self.content)


class LogCopy:
    """Appends records of another log to an open store whose role is SLAVE."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._log = engine.log
        self._appended_at = 0  # where the last append began
        self._told = -1  # what the master said last to be confirmed

    @property
    def file_size(self) -> int:
        """The length of the log's files."""
        return self._log.file_size

    @property
    def min_offset(self) -> int:
        """The physical offset of the oldest record."""
        return self._log.min_offset

    @property
    def max_offset(self) -> int:
        """The physical offset of the next record."""
        return self._log.max_offset

    @property
    def is_empty(self) -> bool:
        """Whether the log has no record, so that it may begin at any file of the master."""
        return self._log.is_empty

    def last_record(self) -> LastRecord | None:
        """Return the last record, or None if the log has none; nothing may be appended meanwhile.

        It ends before the log does if a BLANK record follows it.
        """
        known = max(self._engine.dispatcher.last_record_offset, self._appended_at)
        for segment in reversed(self._log.queue.segments):
            offsets = record_offsets(segment, max(known, segment.base), segment.wrote)
            if offsets:
                content = record_at(self._log.queue, offsets[-1])
                assert content is not None
                with content:
                    return LastRecord(offsets[-1], bytes(content))
        return None

    def append_copied(self, offset: int, records: memoryview, store_time: int) -> None:
        """Append whole, checked records of one file, and have them dispatched.

        Args:
            offset: Their physical offset, which is the end of this log.
            records: The bytes of the records.
            store_time: The store time of the last one.

        Raises:
            StoreReadOnlyError: The store has failed, or its disk is nearly full.
            DiskFullError: There is no space for the records.
            StoreError: A file operation has failed.
        """
        with self._writing():
            self._log.append_copied(offset, records, store_time)
        self._appended_at = offset
        self._appended()

    def fill_up_copied(self, offset: int) -> None:
        """Append the BLANK record that fills up a file from ``offset``; raises the same errors."""
        with self._writing():
            self._log.fill_up_copied(offset)
        self._appended()

    def note_unsealed(self) -> None:
        """Prepare for records that have no checksum over the whole record."""
        with self._writing():
            self._engine.note_unsealed()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Check that the store accepts records, and name it in errors of its files."""
        self._check_open()
        try:
            yield
        except OSError as error:
            if isinstance(error, SyncError):
                self._engine.fail(error)
            kind = DiskFullError if error.errno in NO_SPACE else StoreError
            raise kind(f"{self._engine.root}: the replica cannot store records: {error}") from error

    def durable_offset(self) -> int:
        """Return the end of the log that a crash would keep; with SYNC_FLUSH, sync the log before.

        Raises:
            StoreReadOnlyError: A sync has failed.
        """
        if self._engine.config.flush is not FlushMode.SYNC:
            return self._log.max_offset
        end = self._log.max_offset
        if self._log.flushed_offset < end:
            waiter = ThreadWaiter(end, self._engine.system.threads)
            self._engine.flusher.add(waiter)
            waiter.wait(self._engine.config.sync_flush_timeout_ms / 1000)
            self._check_open()
        return self._log.flushed_offset

    def confirm(self, offset: int) -> None:
        """Dispatch only up to ``offset``, before which the master considers its log safe."""
        if offset != self._log.confirmed_offset:
            self._log.confirmed_offset = self._told = offset
            self._log.is_confirmed_end_known = True
            self._keep_confirmed()
            self._engine.dispatcher.wake_if_idle()

    def _keep_confirmed(self) -> None:
        """Keep what is confirmed of this log, which may lack a part of what the master says.

        A master that needs no replica confirms nothing. Once the log has what the master knows to
        be confirmed, a power failure has cut nothing from it that is still missing.
        """
        log, file = self._log, self._engine.confirmed
        if file is None or self._told < 0:
            return
        if log.needs_confirmation:
            file.note(log.confirmed_end)
        if self._told <= log.max_offset or not log.needs_confirmation:
            file.settle()

    def _check_open(self) -> None:
        refusal = self._engine.gate.refusal_besides(Closure.SLAVE)
        if refusal:
            raise StoreReadOnlyError(f"the replica's store accepts nothing: {refusal}")

    def _appended(self) -> None:
        self._keep_confirmed()
        if self._engine.config.flush is not FlushMode.SYNC and self._engine.dispatcher.idle:
            self._engine.dispatcher.wake()
