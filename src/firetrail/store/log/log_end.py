"""The end of a log opened for reading, by the rules of :mod:`firetrail.store.inspect.view`."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from firetrail.format import columns as col
from firetrail.format.columns import Check, Stop
from firetrail.store.log.view_log import ViewLog
from firetrail.store.log.walk import LogWalk, RecordBatch
from firetrail.store.problems import ProblemKind

FOLLOWED_MAX = 64 << 20
"""Maximum number of bytes of the log that are followed before queues of other topics are read."""


class LogEnd(NamedTuple):
    """The end of the log, and the offset of its last record (-1 if there is none)."""

    offset: int
    last_record: int


class RecordPointer(NamedTuple):
    """The position of a record that a queue, the index or the watermark points to."""

    physical_offset: int
    size: int | None  # None if it is not known


def newest_known(log: ViewLog, pointers: Iterable[RecordPointer], *, trusted: bool) -> LogEnd:
    """Return the end of the newest record that is pointed to and exists; newest pointers first.

    If ``trusted``, a record of the expected size counts with any content.
    """
    for pointer in pointers:
        size = _record_size(log, pointer, trusted)
        if size is not None:
            return LogEnd(pointer.physical_offset + size, pointer.physical_offset)
    for segment in reversed(log.segments):
        if log.scan_one(segment.base, Check.RECORD)[0] is Stop.LIMIT:
            return LogEnd(segment.base, -1)
    return LogEnd(log.min_offset, -1)


def _record_size(log: ViewLog, pointer: RecordPointer, trusted: bool) -> int | None:
    check = Check.NONE if trusted and pointer.size is not None else Check.RECORD
    stop, columns = log.scan_one(pointer.physical_offset, check)
    if stop is not Stop.LIMIT:
        return None
    size = columns.row(0)["size"]
    return size if pointer.size in (None, size) else None


class _Followed(NamedTuple):
    """The end of the records that verify, and the following damage."""

    end: int
    last: list[int]  # offsets of the last records, beginning with the one that was known
    end_of_last: int
    found: ProblemKind | None  # None if no file follows


class EndSearch:
    """The search for the end of a log, from the newest record that is known.

    ``live`` says that another process writes the log. ``has_unit`` returns whether a record is in
    its queue.
    """

    def __init__(self, log: ViewLog, live: bool, has_unit: Callable[[int], bool]) -> None:
        self._log = log
        self._live = live
        self._has_unit = has_unit
        self.clean_end: int | None = None
        """The end as the last clean stop left it."""

    def run(self, known: LogEnd, durable: int) -> LogEnd:
        """Return the end, after everything that points into the log was considered."""
        if known.offset == self.clean_end:
            return known
        followed = self._follow(known)
        assert followed is not None
        return self._settle(followed, durable)

    def short_way(self, known: LogEnd, durable: int, *, vouched: bool) -> LogEnd | None:
        """Return the end after reading only some queues, or None if all of them are needed.

        ``vouched`` is True if the queues that were read hold all messages that the caller asks for.
        Then none of them can be after the zeros that follow. Otherwise a hole in the log would look
        like its end, unless the log is being written.
        """
        if known.offset == self.clean_end and self._is_nothing_at(known.offset):
            return known
        if not (vouched or self._live):
            return None
        followed = self._follow(known, FOLLOWED_MAX)
        if followed is None:
            return None
        clean = followed.found in (None, ProblemKind.LOG_HOLE)
        return self._settle(followed, durable) if clean or self._live else None

    def _is_nothing_at(self, offset: int) -> bool:
        """Return whether the log does not continue at ``offset``, in this file or the next one.

        A store without watermarks (Java's) may have appended to it.
        """
        places = [offset] if self._log.find(offset) is not None else []
        following = self._log.following(offset)
        if following is not None:
            places.append(following.base)
        return all(self._log.scan_one(place, Check.NONE)[0] is Stop.EMPTY for place in places)

    def _follow(self, known: LogEnd, most: int | None = None) -> _Followed | None:
        """Follow the log while records verify; return None after more than ``most`` bytes."""
        walk = LogWalk(self._log, known.offset, self._log.limit, resync=False)
        last = [known.last_record]
        position = known.offset
        for part in walk:
            if not isinstance(part, RecordBatch):
                return _Followed(part.physical_offset, last, position, part.kind)
            good = part.rows - 1 if part.failed else part.rows
            last += part.columns.column(col.PHYSICAL_OFFSET)[max(good - 2, 0) : good].tolist()
            position = part.segment.base + part.position
            if most is not None and position - known.offset > most:
                return None
            if part.failed:
                end = part.failed.physical_offset
                return _Followed(end, last, end, part.failed.kind)
        return _Followed(walk.position, last, position, None)

    def _settle(self, followed: _Followed, durable: int) -> LogEnd:
        """Leave out the last record of a live store if nothing shows that it is complete."""
        end, last, end_of_last, _ = followed
        doubtful = self._live and len(last) > 1
        if doubtful and end == end_of_last and end > durable and not self._has_unit(last[-1]):
            return LogEnd(last[-1], last[-2])
        return LogEnd(end, last[-1])
