"""The files of a log that is only read: files that do not fit are reported, not refused."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from firetrail.errors import SegmentSizeError
from firetrail.format.columns import Check, Columns, Stop
from firetrail.format.names import COMMIT_LOG, parse_segment_name, segment_name
from firetrail.format.values.javahash import java_text
from firetrail.storage.segment import Segment
from firetrail.storage.segment_queue import SegmentQueue, usual_size
from firetrail.storage.spread import DuplicateSegments
from firetrail.store.log.log_records import scan_record
from firetrail.store.log.paths import log_folders, log_spread, shown_path
from firetrail.store.problems import CUT_IT, MOVE_IT, Problem, ProblemKind
from firetrail.system import System


def segment_sizes(system: System, folder: Path) -> list[tuple[int, int]]:
    """Return start offset and length of every segment file in a folder, in order."""
    named = ((parse_segment_name(name), folder / name) for name in system.files.names(folder))
    return _sizes(system, ((base, path) for base, path in named if base is not None))


def log_size(system: System, root: Path) -> int:
    """Return the length of all log files of a store."""
    folders = log_folders(system.files, root)
    return sum(size for folder in folders for _, size in segment_sizes(system, folder))


def _sizes(system: System, paths: Iterable[tuple[int, Path]]) -> list[tuple[int, int]]:
    found = []
    for base, path in paths:
        with suppress(FileNotFoundError):  # retention has deleted it since it was listed
            found.append((base, system.files.size(path)))
    return found


def misfits(
    folder: str,
    files: list[tuple[int, int]],
    size: int,
    path_of: Callable[[int], str] | None = None,
) -> list[Problem]:
    """Return the problems of a row of segment files that should all be ``size`` bytes long.

    ``path_of`` gives the paths of files that are not in ``folder``.
    """
    found = []
    path_of = path_of or (lambda base: f"{folder}/{segment_name(base)}")
    for base, length in files:
        path = path_of(base)
        last = base == files[-1][0]
        if length == 0 and last:
            detail = "the file is empty, as a crash right after its creation leaves it"
            found.append(Problem(path, 0, None, ProblemKind.EMPTY_FILE, detail))
        elif length != size:
            detail = f"{length} bytes long, but the other files have {size}"
            if length > size:
                detail += f"; {CUT_IT} {size} {path}"
            found.append(Problem(path, min(length, size), None, ProblemKind.FILE_SIZE, detail))
    for (base, _), (following, _) in pairwise(files):
        if following > base + size:
            count = -(-(following - base - size) // size)
            detail = f"{count} missing between {segment_name(base)} and {segment_name(following)}"
            path = f"{folder}/{segment_name(base + size)}"
            found.append(Problem(path, 0, base + size, ProblemKind.FILE_MISSING, detail))
        elif following < base + size:
            path = path_of(following)
            detail = f"begins inside the previous file {segment_name(base)}; {MOVE_IT}"
            found.append(Problem(path, 0, following, ProblemKind.FILE_OVERLAP, detail))
    return found


class ViewLog(SegmentQueue):
    """The segments of a log that is only read.

    A file that is too short is read to its end, one that is too long up to the expected size. There
    may be gaps between files. ``committed`` of each segment is the end of the part that readers
    see.
    """

    def __init__(self, system: System, root: Path, *, is_local: bool = True) -> None:
        """Prepare to read a log.

        Args:
            system: Files and clock.
            root: The folder of the store.
            is_local: Whether the log may be in several folders; that of a remote store is not.
        """
        spread = log_spread(system.files, root) if is_local else None
        super().__init__(system, root / COMMIT_LOG, 0, writable=False, spread=spread)
        self._root = root
        self.misfits: list[Problem] = []
        self._bases: list[int] = []

    def load(self) -> None:
        """Find the files and their most common size."""
        duplicates: list[DuplicateSegments] = []
        if self.spread is None:
            files = segment_sizes(self.system, self.folder)
        else:
            listed, duplicates = self.spread.list()
            files = _sizes(self.system, listed.items())
        steps = (following - base for (base, _), (following, _) in pairwise(files))
        self.segment_size = usual_size([*(size for _, size in files), *steps])
        self.misfits = [
            *misfits(COMMIT_LOG, files, self.segment_size, self._name_of),
            *self._duplicates(duplicates),
        ]
        self.segments = tuple(
            Segment(self.system, self.path_of(base), base, size, writable=False)
            for base, size in files
            if size
        )
        self._bases = [segment.base for segment in self.segments]
        for segment in self.segments:
            segment.set_position(self.length_of(segment))

    def _name_of(self, base: int) -> str:
        return self.relative(self.path_of(base))

    def relative(self, path: Path) -> str:
        """Return a path for reports: relative if it is in the store."""
        return shown_path(self._root, path)

    def _duplicates(self, duplicates: list[DuplicateSegments]) -> Iterator[Problem]:
        """Yield the log files that exist in two folders and have data in both."""
        for base, kept, other in duplicates:
            if self.spread is not None and not self.spread.is_unused(other):
                detail = f"the log has this file in {self.relative(kept.parent)}, too; {MOVE_IT}"
                yield Problem(self.relative(other), 0, base, ProblemKind.FILE_OVERLAP, detail)

    def length_of(self, segment: Segment) -> int:
        """Return the number of bytes of the segment that belong to the log."""
        following = bisect_right(self._bases, segment.base)
        length = min(segment.size, self.segment_size)
        if following < len(self._bases):
            length = min(length, self._bases[following] - segment.base)
        return length

    def look(self, segment: Segment) -> memoryview | None:
        """Return the bytes of a segment, or None if its file cannot be read."""
        try:
            return segment.view
        except (OSError, SegmentSizeError):
            return None

    def is_gone(self, offset: int) -> bool:
        """Return whether the file that held ``offset`` was deleted since the log was loaded."""
        segment = self.find(offset)
        return segment is None or segment.look() is None

    def scan_one(self, offset: int, check: Check) -> tuple[Stop, Columns]:
        """Check the record at ``offset``; return LIMIT and its row, or why it is not good."""
        segment = self.find(offset)
        if segment is None:
            return Stop.CUT, Columns(1)
        try:
            return scan_record(segment, offset, check, self.length_of(segment))
        except (OSError, SegmentSizeError):  # the file cannot be read
            return Stop.CUT, Columns(1)

    def queue_place(self, offset: int) -> tuple[str, int, int]:
        """Return topic, queue id and queue offset that are stored in the record at ``offset``."""
        stop, columns = self.scan_one(offset, Check.NONE)
        segment = self.find(offset)
        if stop is not Stop.LIMIT or segment is None:
            return "", -1, -1
        row = columns.row(0)
        topic = segment.view[row["topic_at"] : row["topic_at"] + row["topic_size"]]
        return java_text(bytes(topic)), row["queue_id"], row["queue_offset"]

    @property
    def limit(self) -> int:
        """The end of the room that the files have."""
        last = self.last
        return last.base + self.length_of(last) if last else 0

    def find(self, offset: int) -> Segment | None:
        """Return the segment that holds ``offset``, whether it is written or not."""
        index = bisect_right(self._bases, offset) - 1
        if index < 0:
            return None
        segment = self.segments[index]
        return segment if offset - segment.base < self.length_of(segment) else None

    def following(self, offset: int) -> Segment | None:
        """Return the first segment that begins after ``offset``."""
        index = bisect_right(self._bases, offset)
        return self.segments[index] if index < len(self.segments) else None

    def end_at(self, offset: int) -> None:
        """Hide everything from ``offset`` on from readers."""
        for segment in self.segments:
            inside = min(max(offset - segment.base, 0), self.length_of(segment))
            segment.set_position(inside)
