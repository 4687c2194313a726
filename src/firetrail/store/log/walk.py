"""A walk over the log, record by record, that skips everything that is not a record.

Damage does not end the walk: it continues at the next good record and reports the skipped part. The
caller must know where the log ends, because old records that no longer count may follow the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from firetrail.errors import FormatError, SegmentSizeError
from firetrail.format import columns as col
from firetrail.format import layout
from firetrail.format.columns import Check, Columns, Stop
from firetrail.format.kernels.scan import scan
from firetrail.format.record import decode_record
from firetrail.storage.segment import Segment
from firetrail.store.log.segment_scan import find_record
from firetrail.store.log.view_log import ViewLog
from firetrail.store.problems import KIND_OF_STOP, ProblemKind

ROWS_PER_BATCH = 8192
CHECKSUM_STOPS = (Stop.BODY_CRC, Stop.PROPERTY_CRC)
_HEAD = layout.RECORD_HEAD.struct.unpack_from
_BLANK = layout.BLANK.struct.unpack_from


class RecordBatch(NamedTuple):
    """Consecutive records of one segment, as rows of ``columns`` (valid until the next batch)."""

    segment: Segment
    columns: Columns
    rows: int
    position: int  # in the segment, after the last record
    failed: Damage | None  # set if the last row's checksum is wrong


class Damage(NamedTuple):
    """A place in the log without a good record."""

    path: Path
    position: int  # in the file
    physical_offset: int
    kind: ProblemKind
    detail: str
    resume: int | None  # physical offset at which the walk continues, None if it ends here


class LogWalk:
    """The records from ``start`` up to ``end``; iterate over it once.

    ``live`` says that files may be deleted during the walk. Without ``resync`` the first damage
    ends it. With ``until`` it ends after the file that holds the byte before that offset; only the
    search for a good record after damage goes further. Batches have at most ``rows`` records.
    """

    def __init__(
        self,
        log: ViewLog,
        start: int,
        end: int,
        check: Check = Check.RECORD,
        *,
        live: bool = False,
        resync: bool = True,
        until: int | None = None,
        rows: int = ROWS_PER_BATCH,
    ) -> None:
        self._log = log
        self._end = end
        self._until = end if until is None else min(until, end)
        self._check = check
        self._live = live
        self._resync = resync
        self._columns = Columns(rows)
        self.position = start
        """Physical offset that the walk has reached."""

    def __iter__(self) -> Iterator[RecordBatch | Damage]:
        while self.position < self._until:
            segment = self._log.find(self.position)
            if segment is None:
                damage = self._gap()
                if damage is None:
                    return
                yield damage
                self.position = damage.resume if damage.resume is not None else self._end
            else:
                yield from self._segment(segment)

    def _gap(self) -> Damage | None:
        """Report that no file holds the position, and continue at the next file, if any."""
        following = self._log.following(self.position)
        if following is None or following.base >= self._end:
            return None
        path = self._log.path_of(self.position - self.position % self._log.segment_size)
        missing = not path.exists()
        return Damage(
            path,
            0 if missing else self._log.system.files.size(path),
            self.position,
            ProblemKind.FILE_MISSING if missing else ProblemKind.FILE_SIZE,
            "the file is missing" if missing else "the file ends here",
            following.base,
        )

    def _segment(self, segment: Segment) -> Iterator[RecordBatch | Damage]:
        try:
            view = segment.view
        except (OSError, SegmentSizeError) as error:
            if self._live and isinstance(error, FileNotFoundError):
                self.position = segment.end  # retention has deleted it during the walk
                return
            reason = error.strerror if isinstance(error, OSError) else str(error)
            yield self._move(segment, 0, ProblemKind.FILE_UNREADABLE, str(reason), segment.end)
            return
        limit = min(self._log.length_of(segment), self._end - segment.base)
        stop = Stop.FULL
        while stop is Stop.FULL:
            at = self.position - segment.base
            rows, at, number = scan(view, at, limit, segment.base, self._columns.table, self._check)
            stop = Stop(number)
            failed = None
            if stop in CHECKSUM_STOPS:
                after = at + self._columns.column(col.SIZE)[rows]
                detail = describe_stop(view, at, limit, stop)
                failed = self._damage(segment, at, KIND_OF_STOP[stop], detail, after)
                rows, at, stop = rows + 1, after, Stop.FULL
            self.position = segment.base + at
            if rows:
                yield RecordBatch(segment, self._columns, rows, at, failed)
        yield from self._stopped(segment, view, limit, stop)

    def _stopped(
        self, segment: Segment, view: memoryview, limit: int, stop: Stop
    ) -> Iterator[Damage]:
        """Continue after the position at which the scan of a segment has ended."""
        at = self.position - segment.base
        file_end = segment.base + self._log.segment_size
        if stop is Stop.BLANK:
            counted, rest = _BLANK(view, at)[0], self._log.segment_size - at
            if counted != rest:
                detail = f"the end mark of the file counts {counted} bytes, but {rest} are left"
                yield self._damage(segment, at, ProblemKind.BLANK_SIZE, detail, rest + at)
            self.position = file_end
        elif stop is Stop.LIMIT:
            if self.position >= self._end:
                return
            if limit < self._log.segment_size:
                self.position = segment.base + limit  # the missing part is reported as a gap
                return
            detail = f"{limit - at} bytes are left without an end mark of the file"
            yield self._move(segment, at, ProblemKind.FILE_END, detail, file_end)
        else:
            detail = describe_stop(view, at, limit, stop)
            resume = self._next_record(segment, at) if self._resync else None
            yield self._move(segment, at, KIND_OF_STOP[stop], detail, resume)

    def _next_record(self, segment: Segment, at: int) -> int | None:
        """Return the physical offset of the next good record after a bad one."""
        following: Segment | None = segment
        at += 1
        while following is not None and following.base < self._end:
            try:
                found = find_record(following, at)
            except (OSError, SegmentSizeError):
                return following.base  # the walk will report the error of this file
            if found is None or found >= self._log.length_of(following):
                at = 0
                following = self._log.following(following.base)
                continue
            offset = following.base + found
            if offset >= self._end:
                return None
            if self._log.scan_one(offset, Check.BODY)[0] is Stop.LIMIT:
                return offset
            at = found + 1  # the record extends beyond the end of the log
        return None

    def _damage(
        self, segment: Segment, at: int, kind: ProblemKind, detail: str, resume_at: int
    ) -> Damage:
        return Damage(segment.path, at, segment.base + at, kind, detail, segment.base + resume_at)

    def _move(
        self, segment: Segment, at: int, kind: ProblemKind, detail: str, resume: int | None
    ) -> Damage:
        self.position = self._end if resume is None else resume
        return Damage(segment.path, at, segment.base + at, kind, detail, resume)


def describe_stop(view: memoryview, at: int, limit: int, stop: Stop) -> str:
    """Describe the fault of the bytes at which a scan of ``view[:limit]`` stopped."""
    if stop is Stop.EMPTY:
        return "zeros where a record should begin"
    if stop is Stop.PHYSICAL_OFFSET:
        return f"the record says that its offset is {_HEAD(view, at)[6]}"
    if stop is Stop.PROPERTY_CRC:
        return "the record does not match the checksum in its property __CRC32#"
    try:
        decode_record(view[:limit], at)
    except FormatError as error:
        return f"{error.field}: {error.detail}"
    return stop.name.lower().replace("_", " ")
