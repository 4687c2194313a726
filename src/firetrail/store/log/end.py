"""Where a log opened for reading ends, by the rules of :mod:`firetrail.store.inspect.view`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from firetrail.format import columns as col
from firetrail.format.columns import Check, Stop
from firetrail.store.inspect.log_files import ViewLog
from firetrail.store.inspect.problems import ProblemKind
from firetrail.store.log.walk import LogWalk, RecordBatch

FOLLOWED_MAX = 64 << 20
"""Bytes of log that are followed before queues that were not asked for are looked at."""


class LogEnd(NamedTuple):
    """Where the log ends, and its last record (-1 if there is none)."""

    offset: int
    last_record: int


class Claim(NamedTuple):
    """A record that should be in the log, because something else points to it."""

    physical_offset: int
    size: int | None  # where it is known


def newest_known(log: ViewLog, claims: Iterable[Claim], *, trusted: bool) -> LogEnd:
    """The newest record that is claimed, newest first, and is there.

    If ``trusted``, one with the size that its claim says counts whatever its content.
    """
    for claim in claims:
        size = _record_size(log, claim, trusted)
        if size is not None:
            return LogEnd(claim.physical_offset + size, claim.physical_offset)
    for segment in reversed(log.segments):
        if log.scan_one(segment.base, Check.RECORD)[0] is Stop.LIMIT:
            return LogEnd(segment.base, -1)
    return LogEnd(log.min_offset, -1)


def _record_size(log: ViewLog, claim: Claim, trusted: bool) -> int | None:
    """Size of the record at a claimed place, None if there is none."""
    check = Check.NONE if trusted and claim.size is not None else Check.RECORD
    stop, columns = log.scan_one(claim.physical_offset, check)
    if stop is not Stop.LIMIT:
        return None
    size = columns.row(0)["size"]
    return size if claim.size in (None, size) else None


class _Followed(NamedTuple):
    """How far records verify, and what stands there."""

    end: int
    last: list[int]  # the last records, at least the one that was known
    behind_last: int
    found: ProblemKind | None  # None: no more file


class EndSearch:
    """The search for the end of a log, from the newest record that is known.

    ``live``: somebody is writing it. ``has_unit`` says whether a record is in its queue.
    """

    def __init__(self, log: ViewLog, live: bool, has_unit: Callable[[int], bool]) -> None:
        self._log = log
        self._live = live
        self._has_unit = has_unit
        self.told: int | None = None
        """Where a clean stop has left the end."""

    def run(self, known: LogEnd, durable: int) -> LogEnd:
        """The end if everything that is known of the log was considered."""
        if known.offset == self.told:
            return known
        followed = self._follow(known)
        assert followed is not None
        return self._settle(followed, durable)

    def short_way(self, known: LogEnd, durable: int, *, vouched: bool) -> LogEnd | None:
        """The end if not all queues were looked at, None if it takes the others to be sure.

        ``vouched`` says that all that is asked for is in queues that were looked at. Then nothing
        of that can be behind zeros that follow; otherwise a hole in the log would look like its end
        unless it is being written.
        """
        if known.offset == self.told and self._is_nothing_at(known.offset):
            return known
        if not (vouched or self._live):
            return None
        followed = self._follow(known, FOLLOWED_MAX)
        if followed is None:
            return None
        clean = followed.found in (None, ProblemKind.LOG_HOLE)
        return self._settle(followed, durable) if clean or self._live else None

    def _is_nothing_at(self, offset: int) -> bool:
        """Whether the log does not go on at ``offset``, in this file or the next one.

        A store that knows no watermark may have added to it.
        """
        places = [offset] if self._log.find(offset) is not None else []
        following = self._log.following(offset)
        if following is not None:
            places.append(following.base)
        return all(self._log.scan_one(place, Check.NONE)[0] is Stop.EMPTY for place in places)

    def _follow(self, known: LogEnd, most: int | None = None) -> _Followed | None:
        """Go on from a record as long as others verify; None if that is for more than ``most``."""
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
        """Leave out the last record of a store in use if nothing says that it is whole."""
        end, last, behind_last, _ = followed
        doubtful = self._live and len(last) > 1
        if doubtful and end == behind_last and end > durable and not self._has_unit(last[-1]):
            return LogEnd(last[-1], last[-2])
        return LogEnd(end, last[-1])
