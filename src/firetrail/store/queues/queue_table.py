"""All consume queues of a store, by topic and queue id.

Folders are listed when the store is opened; the files of a queue are opened when it is first used.
The table keeps the set of queues with something to flush, so that no round visits all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from firetrail.errors import StoreClosedError
from firetrail.format.files.unit import UNIT_SIZE, ConsumeQueueUnit, decode_unit
from firetrail.format.light import is_light
from firetrail.format.names import (
    CONSUME_QUEUE,
    CONSUME_QUEUE_EXT,
    OFFSET_MAX,
    extension_folder,
    is_folder_name,
    parse_queue_id,
    parse_segment_name,
    queue_folder,
    segment_name,
)
from firetrail.storage.growth import QUEUE_GROWTH
from firetrail.storage.new_files import NewFiles
from firetrail.storage.open_files import OpenSegments
from firetrail.storage.parallel import map_in_threads
from firetrail.storage.segment_queue import SegmentQueue
from firetrail.store.queues.consume_queue import ConsumeQueue
from firetrail.store.queues.extension import QueueExtension
from firetrail.store.queues.queue_end import QueueEnd, find_end
from firetrail.system import System

QueueKey = tuple[str, int]
"""Topic and queue id."""
DescribeRecord = Callable[[str, int, int], tuple[int, bytes]]
"""A function that returns the store time and filter bitmap of a record of a topic, given its offset
and size."""


class QueueExtent(NamedTuple):
    """The range of a queue: the first byte of its files, and the number of its units."""

    first: int
    end: int


class Extensions(NamedTuple):
    """The settings of extension files."""

    file_size: int
    describe: DescribeRecord | None
    """A function that returns the content of new extended units; None if none are written."""


class QueueTable:
    """The queues below ``<root>/consumequeue``."""

    def __init__(
        self, system: System, root: Path, file_size: int, *, writable: bool = True
    ) -> None:
        self.system = system
        self._root = root
        self.file_size = file_size
        self._writable = writable
        self.open_segments = OpenSegments(system.files.descriptor_limit())
        """The open files of the queues."""
        self._new_files = NewFiles(system)
        self._known: dict[QueueKey, None] = {}
        self.light_queues = 0
        """The number of light queues, which hold records of other topics."""
        self.known_extents: dict[QueueKey, QueueExtent] | None = None
        """The extents of queues that recovery need not open; None if they are not known.

        They are those of the inventory after a clean stop, and of :meth:`leave_certain` after an
        unclean one."""
        self.lost: frozenset[QueueKey] = frozenset()
        """Queues that lack files and will be derived again; other code ignores them."""
        self.loaded: dict[QueueKey, ConsumeQueue] = {}
        """The queues in use."""
        self._guard = system.threads.lock()  # held while queue objects are created
        self._closed = False
        self.extensions: Extensions | None = None
        """The extension of queues; None if the store has no extension files."""
        self.torn = True
        """Whether a crash may have left something unfinished."""
        self.dirty: set[ConsumeQueue] = set()
        """Queues with units that are not on disk yet."""

    def extend(self, file_size: int, describe: DescribeRecord | None) -> None:
        """Use extension files: existing ones, and new ones for new units if ``describe`` is given.

        Light queues have none.
        """
        if describe is not None or (self._root / CONSUME_QUEUE_EXT).is_dir():
            self.extensions = Extensions(file_size, describe)

    def _extension(self, topic: str, queue_id: int) -> QueueExtension | None:
        if self.extensions is None or is_light(topic):
            return None
        describe = self.extensions.describe
        files = SegmentQueue(
            self.system,
            self._root / extension_folder(topic, queue_id),
            self.extensions.file_size,
            writable=self._writable,
            growth=QUEUE_GROWTH,
            open_segments=self.open_segments,
            new_files=self._new_files,
        )
        return QueueExtension(files, partial(describe, topic) if describe is not None else None)

    def list_folders(self, topics: Iterable[str] | None = None) -> None:
        """Find out which queues exist, of all topics or of the given ones."""
        base = self._root / CONSUME_QUEUE
        folders = self.system.files.folders
        names = [
            name for name in (folders(base) if topics is None else topics) if is_folder_name(name)
        ]
        for topic, found in zip(
            names,
            map_in_threads(self.system.threads, lambda name: folders(base / name), names),
            strict=True,
        ):
            for name in found:
                queue_id = parse_queue_id(name)
                if queue_id is not None:
                    self._note(topic, queue_id)

    def pairs(self) -> list[QueueKey]:
        """Return topic and queue id of every queue, in order."""
        return sorted(self._known)

    @property
    def count(self) -> int:
        """The number of queues."""
        return len(self._known)

    @property
    def has_light_queues(self) -> bool:
        """Whether any of the queues is a light one."""
        return self.light_queues > 0

    @property
    def may_lack_light_queues(self) -> bool:
        """Whether light queues are to be derived: some exist, or no queues at all."""
        return not self._known or self.has_light_queues

    def topics(self) -> list[str]:
        """Return every topic that has a queue, in order."""
        return sorted({topic for topic, _ in self.pairs()})

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, or None if no message was ever put to it."""
        queue = self.loaded.get((topic, queue_id))
        if queue is None and (topic, queue_id) in self._known:
            return self.open(topic, queue_id)
        return queue

    def is_complete(self, topic: str, queue_id: int, extent: QueueExtent | None) -> bool:
        """Return whether a queue has all its files, consecutive and of full length.

        With an ``extent``, it must also begin no later, and have a unit right before its end.
        """
        if (topic, queue_id) not in self._known:
            return extent is None
        folder = self._root / queue_folder(topic, queue_id)
        if extent is not None and extent.first < OFFSET_MAX and not self.torn:
            return self._has_files(folder, extent)
        found = {
            base: size
            for name, size in self.system.files.sizes(folder).items()
            if (base := parse_segment_name(name)) is not None
        }
        if self.torn and found and next(reversed(found.values())) == 0:
            found.popitem()  # a crash right after its creation left it empty
        bases, sizes = list(found), found.values()
        if any(size != self.file_size for size in sizes):
            return False
        if any(later - base != self.file_size for base, later in pairwise(bases)):
            return False
        if extent is None:
            return True
        return bool(bases) and bases[0] <= extent.first and self._has_unit(folder, extent.end - 1)

    def _has_files(self, folder: Path, extent: QueueExtent) -> bool:
        """Do the same after a clean stop, without listing the folder.

        The extent then says which files there are. Almost always it is one.
        """
        files, size = self.system.files, self.file_size
        at = (extent.end - 1) * UNIT_SIZE
        last = at - at % size
        try:
            earlier = range(extent.first, last, size)
            if any(files.size(folder / segment_name(base)) != size for base in earlier):
                return False
            content, length = files.part(folder / segment_name(last), at - last, UNIT_SIZE)
        except FileNotFoundError:
            return False
        return length == size and decode_unit(content).is_written

    def extents(self) -> dict[QueueKey, QueueExtent]:
        """Return the extent of every queue; of unused ones, that of :attr:`known_extents`."""
        found = {
            key: QueueExtent(queue.files.min_offset, queue.max_offset)
            for key, queue in list(self.loaded.items())
            if queue.max_offset
        }
        before = self.known_extents or {}
        return {key: before[key] for key in before if key in self._known} | found

    def discard(self, topic: str, queue_id: int) -> None:
        """Remove the files of a queue that will be derived again."""
        self._forget_extent(topic, queue_id)
        queue = self.loaded.pop((topic, queue_id), None)
        if queue is not None:
            self.dirty.discard(queue)
            queue.close()
        folders = [queue_folder(topic, queue_id)]
        if self.extensions is not None:
            folders.append(extension_folder(topic, queue_id))
        for folder in folders:
            for name in self.system.files.names(self._root / folder):
                if parse_segment_name(name) is not None:
                    self.system.files.remove(self._root / folder / name)

    def reaches(self, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether a queue has a unit right before ``offset``, or had one that has expired.

        A queue that is not in use is not opened for this: a start asks it for every position of
        every group, and one read of 20 bytes costs a fraction of opening a queue.
        """
        queue = self.loaded.get((topic, queue_id))
        if queue is not None:
            return offset <= queue.max_offset
        if offset <= 0:
            return True
        if (topic, queue_id) not in self._known or offset * UNIT_SIZE > OFFSET_MAX:
            return False
        return self._has_unit(self._root / queue_folder(topic, queue_id), offset - 1)

    def unit(self, topic: str, queue_id: int, offset: int) -> ConsumeQueueUnit | None:
        """Return the unit at a queue offset, or None; a queue that stays closed is not opened."""
        key = (topic, queue_id)
        if key in self.loaded or key not in (self.known_extents or ()):
            queue = self.find(*key)
            return queue.unit(offset) if queue is not None else None
        try:
            return self._read_unit(self._root / queue_folder(*key), offset)
        except FileNotFoundError:
            return None

    def _has_unit(self, folder: Path, offset: int) -> bool:
        """Return whether the files in a folder have a unit at a queue offset, or had one."""
        try:
            return self._read_unit(folder, offset) is not None
        except FileNotFoundError:
            starts = (parse_segment_name(name) for name in self.system.files.names(folder))
            return any(start is not None and start > offset * UNIT_SIZE for start in starts)

    def _read_unit(self, folder: Path, offset: int) -> ConsumeQueueUnit | None:
        """Return the unit at a queue offset; None if it was never written."""
        at = offset * UNIT_SIZE
        base = at - at % self.file_size
        content, _ = self.system.files.part(folder / segment_name(base), at - base, UNIT_SIZE)
        unit = decode_unit(content) if len(content) == UNIT_SIZE else None
        return unit if unit is not None and unit.is_written else None

    def open(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue; create an empty one if it does not exist."""
        key = (topic, queue_id)
        queue = self.loaded.get(key)
        if queue is not None:
            return queue
        with self._guard:
            if self._closed:
                raise StoreClosedError("the store is closed")
            queue = self.loaded.get(key)
            if queue is None:
                queue = ConsumeQueue(
                    self.system,
                    self._root,
                    topic,
                    queue_id,
                    self.file_size,
                    writable=self._writable,
                    open_segments=self.open_segments,
                    new_files=self._new_files,
                    extension=self._extension(topic, queue_id),
                )
                if key in self._known:  # otherwise it has no files
                    try:
                        queue.load(torn=self.torn and key not in (self.known_extents or ()))
                    except BaseException:
                        queue.close()
                        raise
                self._note(*key)
                self.loaded[key] = queue
        return queue

    def _note(self, topic: str, queue_id: int) -> None:
        """Add a queue to the known ones."""
        if (topic, queue_id) not in self._known:
            self._known[topic, queue_id] = None
            self.light_queues += is_light(topic)

    def _forget_extent(self, topic: str, queue_id: int) -> None:
        if self.known_extents is not None:
            self.known_extents.pop((topic, queue_id), None)

    def remove(self, topic: str) -> None:
        """Remove the queues of a topic with their files; the next message creates a new one.

        No thread may append to them during this call.
        """
        keys = [key for key in self.pairs() if key[0] == topic]
        if not keys:
            return  # a name that is not a folder must not become a path
        for key in keys:
            self.remove_queue(*key)

    def remove_queue(self, topic: str, queue_id: int) -> None:
        """Remove a queue with its files, and the folder of its topic with the last queue.

        No thread may append to it during this call.
        """
        key = (topic, queue_id)
        queue = self.open(*key)
        self._forget_extent(*key)
        with self._guard:
            self.loaded.pop(key, None)
            self._known.pop(key, None)
            self.light_queues -= is_light(topic)
        self.dirty.discard(queue)
        queue.files.destroy()
        self.system.files.remove_folder(self._root / CONSUME_QUEUE / topic)
        if queue.extension is not None:
            queue.extension.files.destroy()
            self.system.files.remove_folder(self._root / CONSUME_QUEUE_EXT / topic)

    def all(self) -> Iterator[ConsumeQueue]:
        """Yield every queue that is not lost, opening them one by one."""
        for key in self.pairs():
            if key not in self.lost:
                yield self.open(*key)

    def leave_certain(self, is_certain: Callable[[QueueKey, QueueEnd], bool]) -> None:
        """Find the queues after an unclean stop that need no change and stay closed.

        Args:
            is_certain: Returns whether all units of a queue are certain, given its end. It is
                called in several threads.
        """
        if self.extensions is not None:
            return  # their ends have to be compared as well
        keys = [key for key in self.pairs() if key not in self.lost and key not in self.loaded]

        def extent(key: QueueKey) -> QueueExtent | None:
            end = find_end(self.system.files, self._root / queue_folder(*key), self.file_size)
            return QueueExtent(*end[:2]) if end is not None and is_certain(key, end) else None

        found = zip(keys, map_in_threads(self.system.threads, extent, keys), strict=True)
        self.known_extents = {key: extent for key, extent in found if extent is not None}

    def uncertain(self) -> Iterator[ConsumeQueue]:
        """Yield every queue that :meth:`all` yields, except for those that stay closed."""
        known = self.known_extents or {}
        for key in self.pairs():
            if key not in self.lost and key not in known:
                yield self.open(*key)

    def continue_numbering(self) -> None:
        """Give the next message of each queue the offset after its last unit.

        Recovery needs this, because it adds units that no put has counted. During normal
        operation the puts count ahead of the units.
        """
        for queue in self.loaded.values():
            queue.next_offset = queue.max_offset

    def withhold(self, log_offset: int) -> None:
        """Show no more units of records at or after ``log_offset`` until they are appended again.

        All units must be on disk.
        """
        for queue in list(self.loaded.values()):
            queue.withhold(log_offset)

    def flush(self, least_pages: int = 0, is_over: Callable[[], bool] | None = None) -> bool:
        """Sync the queues that have enough unsynced units.

        With ``least_pages`` 0 everything is durable afterwards, including the names of new queues.
        Returns False, and not everything is, if ``is_over`` returned True before that.
        """
        syncs = [partial(self._flush_queue, queue, least_pages) for queue in list(self.dirty)]
        if not self.system.files.run_in_threads(syncs, is_over):
            return False
        return least_pages > 0 or self._new_files.sync(is_over)

    def sync_new(self, keep: int, is_over: Callable[[], bool]) -> None:
        """Sync queues that were created since the last flush, except for the newest ``keep``."""
        self._new_files.sync_oldest(self._new_files.count - keep, is_over)

    def _flush_queue(self, queue: ConsumeQueue, least_pages: int) -> None:
        self.dirty.discard(queue)
        clean = False
        try:
            clean = queue.flush(least_pages)
        finally:
            if not clean:
                self.dirty.add(queue)

    def close(self) -> None:
        """Close the files of every queue in use; no queue can be opened afterwards."""
        with self._guard:
            self._closed = True
        for queue in self.loaded.values():
            queue.close()
