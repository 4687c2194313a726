"""The log of a replica while it grows: bytes from a master become whole, checked records.

A master cuts its log anywhere. Received bytes are therefore staged until a record is complete, and
a record is appended only after its size, magic number, own offset and checksums have been checked.
So the log of a replica consists of whole records at any moment, and a bit that flips on the wire or
on the master's disk stops the replica instead of becoming part of its log.
"""

from typing import Protocol

from firetrail.errors import DivergedError, ReplicationError
from firetrail.format import columns as col
from firetrail.format import layout
from firetrail.format.columns import Check, Columns, Stop
from firetrail.format.kernels.scan import scan

ROWS = 1024
"""Maximum number of records that one scan checks."""


class CopiedLog(Protocol):
    """The commit log that received records are appended to."""

    @property
    def file_size(self) -> int:
        """The length of its files."""

    @property
    def max_offset(self) -> int:
        """The physical offset of the next record."""

    def note_unsealed(self) -> None:
        """Prepare for records without a checksum over the whole record."""

    def append_copied(self, offset: int, records: memoryview, store_time: int) -> None:
        """Append whole records of one file, which begin at ``offset``."""

    def fill_up_copied(self, offset: int) -> None:
        """Append a BLANK record from ``offset`` to the end of the file."""


class IncomingLog:
    """Appends the bytes of a master to the log of a replica.

    Attributes:
        position: The physical offset of the next byte that the master has to send.
    """

    def __init__(self, log: CopiedLog, position: int) -> None:
        """Continue a log.

        Args:
            log: The replica's log.
            position: Where the log continues: its end, or for an empty log the beginning of the
                file from which the master sends.
        """
        self._log = log
        self._staged = bytearray()
        self._start = position  # physical offset of the first staged byte
        self._blank_at: int | None = None  # offset of a BLANK record whose filler is arriving
        self._columns = Columns(ROWS)
        self._check = Check.SEALED  # until the first record without a checksum of the whole record
        self.position = position

    @property
    def _file_end(self) -> int:
        size = self._log.file_size
        return self._start - self._start % size + size

    def receive(self, offset: int, content: memoryview) -> bool:
        """Take the next bytes of the master's log; return whether the own log has grown.

        Raises:
            DivergedError: The master continues at another offset than the replica.
            ReplicationError: The bytes are not records, or the files of the master have another
                length. The records before them are appended.
        """
        if offset != self.position:
            raise DivergedError(
                f"the master sends its log from offset {offset}, but the replica has it up to "
                f"{self.position}"
            )
        if offset + len(content) > self._file_end:
            raise ReplicationError(
                f"the master sent {len(content)} bytes at offset {offset}, across the end of a "
                f"file at {self._file_end}: its log files are not {self._log.file_size} bytes long;"
                " set mappedFileSizeCommitLog of the replica to the master's and start it with an "
                "empty folder"
            )
        self.position += len(content)
        if self._blank_at is not None:
            return self._skip_filler()
        self._staged += content
        return self._append_whole_records()

    def _append_whole_records(self) -> bool:
        grown = False
        while self._blank_at is None:
            with memoryview(self._staged) as staged:
                end, stop = self._append_scanned(staged)
            grown = grown or end > 0
            del self._staged[:end]
            self._start += end
            if stop is Stop.BLANK:
                self._begin_filler()
                return self._skip_filler() or grown
            if stop is Stop.CUT:
                self._check_fits()
            elif stop.is_damage or stop is Stop.EMPTY:
                raise self._damage(stop)
            if stop is not Stop.FULL:
                break
        return grown

    def _append_scanned(self, staged: memoryview) -> tuple[int, Stop]:
        """Append the records at the start of the staged bytes; return their end."""
        if len(staged) < layout.BLANK.size:
            return 0, Stop.LIMIT
        columns = self._columns
        rows, end, stop = scan(staged, 0, len(staged), self._start, columns.table, self._check)
        if rows:
            if self._check is not Check.SEALED:
                self._log.note_unsealed()
            store_time = columns.column(col.STORE_TIME)[rows - 1]
            with staged[:end] as records:
                self._log.append_copied(self._start, records, store_time)
        if stop == Stop.PROPERTY_CRC and self._check is Check.SEALED:
            self._check = Check.RECORD
            stop = Stop.FULL  # scan the next record again: it may have no checksum
        return end, Stop(stop)

    def _check_fits(self) -> None:
        """Refuse a record whose size is larger than its file."""
        size = int.from_bytes(self._staged[:4], "big", signed=True)
        if self._start + size > self._file_end:
            raise self._damage(Stop.SIZE)

    def _begin_filler(self) -> None:
        """Note a BLANK record: it and the bytes after it fill the file up."""
        size = int.from_bytes(self._staged[:4], "big", signed=True)
        if self._start + size != self._file_end:
            raise self._damage(Stop.SIZE)
        self._staged.clear()
        self._blank_at = self._start

    def _skip_filler(self) -> bool:
        """Append the BLANK record once all bytes up to the end of the file have arrived.

        They are zeros, or remains of an earlier crash of a Java master. They are no records and are
        not copied.
        """
        if self.position < self._file_end:
            return False
        assert self._blank_at is not None
        self._log.fill_up_copied(self._blank_at)
        self._blank_at = None
        self._start = self.position
        return True

    def _damage(self, stop: Stop) -> ReplicationError:
        return ReplicationError(
            f"the master sent bytes at offset {self._start} that are not a good record "
            f"({stop.name}); the replica keeps its log up to there. Check the master's store with "
            "'firetrail fsck'; if it is good, start the replica again"
        )
