"""The tasks of a rebuild that write the files of queues and index from staged pieces.

Files are written by the same classes as in a live store. Every attempt at a task has a folder of
its own, and its files are synced when it returns.
"""

from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from firetrail.format.files.index import IndexGeometry, IndexHeader
from firetrail.format.files.unit import UNIT_SIZE
from firetrail.format.names import INDEX
from firetrail.pipeline.jobs.rebuild.pieces import ENTRY_SIZE, StagedFiles
from firetrail.pipeline.workers import check_shared, worker_name
from firetrail.store.index.index_file import IndexFile
from firetrail.store.queues.consume_queue import ConsumeQueue
from firetrail.system import SYSTEM


class StagedUnits(NamedTuple):
    """Consecutive units in a staged file; the first one has queue offset ``offset``."""

    path: str
    position: int
    offset: int
    length: int


class QueueFiles(NamedTuple):
    """Files of one queue, to be written from these consecutive units.

    The first unit is at the beginning of a file, or is the first one of the queue.
    """

    topic: str
    queue_id: int
    file_size: int
    units: list[StagedUnits]

    @property
    def weight(self) -> int:
        """Approximate number of bytes that are read and written."""
        return 2 * UNIT_SIZE * sum(units.length for units in self.units)

    def write(self, folder: Path, staged: StagedFiles) -> list[Path]:
        """Write the files below ``folder`` and return their paths."""
        queue = ConsumeQueue(SYSTEM, folder, self.topic, self.queue_id, self.file_size)
        with closing(queue):
            for units in self.units:
                found = staged.units(units.path, units.position, units.length)
                queue.append(units.offset, found)
            queue.flush()
            return [segment.path for segment in queue.files.segments]


class StagedEntries(NamedTuple):
    """Entries ``first`` to ``end`` of a staged file."""

    path: str
    first: int
    end: int


class IndexFiles(NamedTuple):
    """One index file, to be written from ``entries``; ``before`` is the previous file's header."""

    name: str
    geometry: IndexGeometry
    before: IndexHeader | None
    entries: list[StagedEntries]

    @property
    def weight(self) -> int:
        """Approximate cost in bytes: reading, writing, and looking up slots."""
        return 3 * ENTRY_SIZE * sum(entries.end - entries.first for entries in self.entries)

    def write(self, folder: Path, staged: StagedFiles) -> list[Path]:
        """Write the file below ``folder`` and return its path."""
        path = folder / INDEX / self.name
        file = IndexFile.create_at(SYSTEM, path, self.geometry, self.before)
        with closing(file.segment):
            for entries in self.entries:
                file.append(staged.entries(entries.path), entries.first, entries.end)
            file.segment.sync()
        return [path]


class Assembly(NamedTuple):
    """The files that one task writes, in a new folder below ``folder``."""

    folder: str
    files: list[QueueFiles | IndexFiles]


class AssembledFiles(NamedTuple):
    """Files that a task has written on a worker, relative to ``folder``, with their sizes."""

    folder: str
    files: list[tuple[str, int]]
    worker: str


def assemble(task: Assembly) -> AssembledFiles:
    """Write the files of a task."""
    check_shared(task.folder)
    folder = Path(task.folder) / uuid4().hex  # attempts at a task may overlap
    staged = StagedFiles()
    assembled: list[tuple[str, int]] = []
    for wanted in task.files:
        paths = wanted.write(folder, staged)
        assembled += ((path.relative_to(folder).as_posix(), path.stat().st_size) for path in paths)
    return AssembledFiles(str(folder), assembled, worker_name())
