"""A folder of segments that together form one long byte range.

File names are start offsets. All files have the same size and follow each other without gaps. The
list of segments is replaced, never changed in place, so readers take it once and need no lock. A
lock serializes the replacements, because one thread may append while another removes the oldest.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from firetrail.errors import DiskFullError, SegmentSizeError, StoreDamagedError
from firetrail.format.names import parse_segment_name, segment_name
from firetrail.storage.growth import LOG_GROWTH, Growth
from firetrail.storage.new_files import NewFiles
from firetrail.storage.open_files import OpenSegments
from firetrail.storage.segment import Segment
from firetrail.storage.spread import UNUSABLE, Spread
from firetrail.system import SyncError, System

_log = logging.getLogger(__name__)


def usual_size(sizes: Iterable[int]) -> int:
    """Return the most frequent file size, the largest if there are several; 0 without files."""
    counted = Counter(size for size in sizes if size > 0)
    return max(counted, key=lambda size: (counted[size], size), default=0)


class SegmentQueue:
    """The segments of ``folder``, oldest first."""

    def __init__(
        self,
        system: System,
        folder: Path,
        segment_size: int,
        *,
        writable: bool = True,
        growth: Growth = LOG_GROWTH,
        remedy: str = "put the file back from a copy",
        open_segments: OpenSegments | None = None,
        new_files: NewFiles | None = None,
        spread: Spread | None = None,
    ) -> None:
        self.system = system
        self.folder = folder
        self.spread = spread
        """The folders of its files, if they are not simply in ``folder``."""
        self.segment_size = segment_size
        self.writable = writable
        self.growth = growth
        self.remedy = remedy
        """The advice in errors about its files."""
        self.open_segments = open_segments
        self._new_files = new_files
        self.segments: tuple[Segment, ...] = ()
        self.torn = True
        """Whether a crash may have left an unfinished file."""
        self._guard = system.threads.lock()  # over changes of segments and _retired
        self._retired: list[Segment] = []
        self.before_removal: list[Callable[[], None]] = []
        """Functions that release slices of the files, called before files are removed or closed."""

    def load(self) -> None:
        """List the files, and treat them as completely written.

        The most frequent size counts as that of all. Files whose name is not an offset are ignored.
        A gap or a file of another size raises an error that names the file. If :attr:`torn`, an
        empty last file is the result of a crash right after its creation; it is ignored, and
        removed if the queue is writable.
        """
        if self.spread is not None:
            self._settle_twins(self.spread)
        paths = {base: self.path_of(base) for base in self.starts()}
        found = [(base, self.system.files.size(path)) for base, path in paths.items()]
        if self.torn and found and found[-1][1] == 0:
            base, _ = found.pop()
            if self.writable:
                self.system.files.remove(paths[base])
        segments: list[Segment] = []
        if found:
            self.segment_size = usual_size(size for _, size in found)
        for base, size in found:
            segments.append(self._full(base, paths[base]))
            self._check(segments[-1], size, segments[-2] if len(segments) > 1 else None)
        self.segments = tuple(segments)
        if self.torn and self.writable and self._new_files is not None and len(segments) == 1:
            self._new_files.add_existing(segments[0])

    def adopt(self, bases: Iterable[int]) -> None:
        """Treat the files with these start offsets as completely written, without reading them."""
        self.segments = tuple(self._full(base, self.path_of(base)) for base in bases)

    def _full(self, base: int, path: Path) -> Segment:
        return Segment(
            self.system,
            path,
            base,
            self.segment_size,
            writable=self.writable,
            growth=self.growth,
            filled=self.segment_size,
            open_segments=self.open_segments,
        )

    def _settle_twins(self, spread: Spread) -> None:
        """Remove unused files with the name of a file with data; refuse two files with data."""
        for base, kept, other in spread.list()[1]:
            if not spread.is_unused(other):
                raise StoreDamagedError(
                    str(other),
                    0,
                    base,
                    f"{kept} has the same name: only one of them can belong to the log",
                    "compare them with cmp, and move one of them out of these folders",
                )
            if self.writable:
                self.system.files.remove(other)

    def starts(self) -> list[int]:
        """Return the start offsets of the files in the folder, in order."""
        if self.spread is not None:
            return list(self.spread.list()[0])
        names = self.system.files.names(self.folder)
        return sorted(base for base in map(parse_segment_name, names) if base is not None)

    def _check(self, segment: Segment, size: int, previous: Segment | None) -> None:
        path, expected = segment.path, self.segment_size
        if size == 0 or size != expected:
            remedy = self.remedy
            if size > expected:
                remedy = f"put the file back from a copy, or cut it: truncate -s {expected} {path}"
            raise SegmentSizeError(
                f"{path}: the file has {size} bytes, the other files have {expected}; {remedy}"
            )
        if previous is not None and segment.base != previous.end:
            raise StoreDamagedError(
                str(segment.path),
                0,
                previous.end,
                f"the file {segment_name(previous.end)} before it is missing",
                self.remedy,
            )

    def path_of(self, base: int) -> Path:
        """Return the path of the segment that starts at ``base``."""
        if self.spread is not None:
            return self.spread.path_of(base, self.segment_size)
        return self.folder / segment_name(base)

    @property
    def first(self) -> Segment | None:
        """Return the oldest segment."""
        return self.segments[0] if self.segments else None

    @property
    def last(self) -> Segment | None:
        """Return the newest segment, to which records are appended."""
        return self.segments[-1] if self.segments else None

    @property
    def min_offset(self) -> int:
        """Return the first offset of the range; 0 if it is empty."""
        return self.segments[0].base if self.segments else 0

    @property
    def wrote_offset(self) -> int:
        """Return the offset after the last written byte."""
        last = self.last
        return last.base + last.wrote if last else 0

    @property
    def readable_offset(self) -> int:
        """Return the offset after the last readable byte."""
        for segment in reversed(self.segments):
            if segment.committed:
                return segment.base + segment.committed
        return self.min_offset

    def find(self, offset: int) -> Segment | None:
        """Return the segment that contains ``offset``, whether written or not."""
        segments = self.segments
        if not segments:
            return None
        index = (offset - segments[0].base) // self.segment_size
        return segments[index] if 0 <= index < len(segments) else None

    def read(self, offset: int, size: int) -> memoryview | None:
        """Return a slice of the mapping; None if the range does not exist or is not readable."""
        segment = self.find(offset)
        if segment is None:
            return None
        at = offset - segment.base
        if at + size > segment.committed:
            return None
        return segment.view[at : at + size]

    def from_offset(self, offset: int) -> Iterator[Segment]:
        """Yield the segments, starting with the one that contains ``offset``."""
        for segment in self.segments:
            if segment.end > offset:
                yield segment

    def release_pages(self, end: int) -> None:
        """Unmap the pages before ``end`` from the memory of this process."""
        for segment in self.segments:
            if segment.base >= end:
                break
            segment.release_pages(min(end - segment.base, segment.size))

    def next_base(self, offset: int = 0) -> int:
        """Return the start of the next segment; the first one of a queue contains ``offset``."""
        last = self.last
        return last.end if last else offset - offset % self.segment_size

    def append(self, segment: Segment) -> None:
        """Add the segment that starts at :meth:`next_base`."""
        with self._guard:
            self.segments = (*self.segments, segment)

    def keep_first(self, count: int) -> None:
        """Close all but the oldest ``count`` segments; their files stay."""
        with self._guard:
            dropped, self.segments = self.segments[count:], self.segments[:count]
        for segment in dropped:
            segment.close()

    def roll(self, offset: int = 0) -> Segment:
        """Create and append the next segment; the first one of a queue contains ``offset``.

        The new file is durable on return, and so are the files before it: after a crash there must
        not be a file without its predecessors. Only the first file of a queue with ``new_files``
        becomes durable later, with their next sync. Raises DiskFullError.
        """
        base = self.next_base(offset)
        last = self.last
        later = self._new_files if last is None else None
        if last is not None and self._new_files is not None:
            self._new_files.sync_one(last)
        segment = self.create(base, later)
        self.append(segment)
        return segment

    def create(self, base: int, later: NewFiles | None = None) -> Segment:
        """Create the file of a segment, which is not appended yet.

        If there are several folders and one of them cannot hold the file, another one is used.
        """
        if self.spread is None:
            return self._create_at(self.path_of(base), base, later)
        failure: OSError | DiskFullError | None = None
        for path in self.spread.places(base, self.segment_size):
            try:
                segment = self._create_at(path, base, later)
            except SyncError:
                raise
            except (OSError, DiskFullError) as error:
                if isinstance(error, OSError) and error.errno not in UNUSABLE:
                    raise
                _log.warning("no new log file in %s: %s; trying the next folder", path, error)
                failure = failure or error
            else:
                self.spread.placed(base, path)
                return segment
        assert failure is not None  # there is at least one folder
        raise failure

    def _create_at(self, path: Path, base: int, later: NewFiles | None) -> Segment:
        return Segment.create(
            self.system, path, base, self.segment_size, self.growth, self.open_segments, later
        )

    def remove_only(self) -> None:
        """Remove the only segment, if there is one, so that the queue may begin elsewhere."""
        with self._guard:
            removed, self.segments = self.segments, ()
        for segment in removed:
            segment.destroy(0)

    def truncate(self, offset: int) -> int:
        """Delete everything from ``offset`` on, durably; return how many bytes held data.

        The segment that contains ``offset`` is zeroed from there on. Later ones are removed,
        including those that :meth:`keep_first` closed; the first one of the queue is kept.
        """
        removed = 0
        for base in reversed(self.starts()):
            if self.last is not None and base >= self.last.end:
                self.system.files.remove(self.path_of(base))
        for segment in reversed(self.segments):
            if segment.base >= offset and segment is not self.first:
                removed += segment.data_size(0)
                with self._guard:
                    self.segments = self.segments[:-1]
                segment.destroy(0)
            elif segment.end > offset:
                removed += segment.truncate(max(offset - segment.base, 0))
        return removed

    def truncate_all(self) -> None:
        """Remove all files if the queue has no segment, such as files that could not be loaded."""
        if not self.segments:
            for base in reversed(self.starts()):
                self.system.files.remove(self.path_of(base))

    def retire_first(self, grace_ms: int) -> Segment:
        """Take the oldest segment out of the queue, and return it.

        Its file is removed when it has no more readers, or after ``grace_ms`` at the latest.
        """
        with self._guard:
            segment, self.segments = self.segments[0], self.segments[1:]
            self._retired.append(segment)
        self.sweep(grace_ms)
        return segment

    @property
    def has_retired(self) -> bool:
        """Return whether files wait for their readers before they can be removed."""
        return bool(self._retired)

    def sweep(self, grace_ms: int) -> None:
        """Remove the files of retired segments without readers, or after ``grace_ms``."""
        for release in self.before_removal:
            release()
        with self._guard:
            retired, self._retired = self._retired, []
        gone: set[Segment] = set()
        try:
            gone.update(segment for segment in retired if segment.destroy(grace_ms))
        finally:
            with self._guard:
                self._retired += (segment for segment in retired if segment not in gone)

    def destroy(self) -> None:
        """Remove every file, and the folder. Slices that readers hold stay valid."""
        while self.segments:
            self.retire_first(0)
        self.system.files.remove_folder(self.folder)

    def close(self) -> None:
        """Close every file."""
        self.sweep(0)
        for segment in self.segments:
            segment.close()
