"""Several folders, usually on several disks, that together hold the files of one segment queue.

A new file goes to the writable folders in turn: of the ``n`` usable folders, sorted by path, the
file with number ``i`` (its start offset divided by the file size) goes to folder ``i % n``. That is
the rule of RocketMQ's ``MultiPathMappedFileQueue``. Folders on a nearly full disk are left out
while others are usable. Files are found wherever they are, so the set of folders may change.
"""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from firetrail.format.names import parse_segment_name, segment_name
from firetrail.system import NO_SPACE, Files

UNUSABLE = (*NO_SPACE, errno.EROFS, errno.EACCES, errno.EIO, errno.ENOENT)
"""Errors after which a new file is created in another folder."""
_STEP = 1 << 20


class DuplicateSegments(NamedTuple):
    """Two files with the same start offset, in different folders."""

    base: int
    kept: Path
    other: Path


class Spread:
    """The folders of one segment queue, and where its files are."""

    def __init__(
        self,
        files: Files,
        writable: tuple[Path, ...],
        read_only: tuple[Path, ...] = (),
        full_above: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """Prepare to find files.

        Args:
            files: The files of the system.
            writable: Folders for new files, at least one.
            read_only: Folders whose existing files are used, but which get no new ones.
            full_above: Returns the used part of a disk above which it gets no new files.
        """
        self._files = files
        self._writable = tuple(sorted(set(writable) - set(read_only), key=str))
        self._full_above = full_above
        self.folders = tuple(dict.fromkeys((*writable, *read_only)))
        """All of them."""
        self._found: dict[int, Path] | None = None  # None until the folders are listed

    def list(self) -> tuple[dict[int, Path], list[DuplicateSegments]]:
        """Return the existing files by start offset, in order, and those that exist twice.

        Of two files with one name, the one that has data counts. RocketMQ may leave a second file
        of zeros if a disk became full after the file was created in advance.
        """
        found: dict[int, Path] = {}
        duplicates = []
        for folder in self.folders:
            for name in self._files.names(folder):
                base = parse_segment_name(name)
                if base is None:
                    continue
                path = folder / name
                if base in found:
                    kept, other = found[base], path
                    if self.is_unused(kept) and not self.is_unused(other):
                        kept, other = other, kept
                    duplicates.append(DuplicateSegments(base, kept, other))
                    path = kept
                found[base] = path
        self._found = dict(sorted(found.items()))
        return self._found, duplicates

    def is_unused(self, path: Path) -> bool:
        """Return whether a file holds nothing but zeros."""
        descriptor = self._files.open(path, writable=False)
        try:
            for start, end in self._files.data_ranges(descriptor, 0, self._files.size(path)):
                for at in range(start, end, _STEP):
                    if any(self._files.read_at(descriptor, at, min(_STEP, end - at))):
                        return False
        finally:
            self._files.close(descriptor)
        return True

    def path_of(self, base: int, size: int) -> Path:
        """Return the path of the file, or the one at which it will be created."""
        found = self._found if self._found is not None else self.list()[0]
        return found.get(base) or next(self.places(base, size))

    def placed(self, base: int, path: Path) -> None:
        """Note where a file was created."""
        if self._found is not None:
            self._found[base] = path

    def places(self, base: int, size: int) -> Iterator[Path]:
        """Yield paths for a new file, the one that RocketMQ would choose first."""
        limit = self._full_above()
        usable = [folder for folder in self._writable if self._used(folder) <= limit]
        usable = usable or list(self._writable)
        first = base // size % len(usable)
        folders = (*usable[first:], *usable[:first], *self._writable)
        for folder in dict.fromkeys(folders):
            yield folder / segment_name(base)

    def used_ratio(self) -> float:
        """Return the used part of the emptiest disk that gets new files."""
        return min(self._used(folder) for folder in self._writable)

    def used_ratios(self) -> dict[Path, float]:
        """Return the used part of the disk of each folder."""
        return {folder: self._used(folder) for folder in self.folders}

    def _used(self, folder: Path) -> float:
        try:
            return self._files.used_ratio(folder)
        except OSError:
            return 1.0  # its disk is not there at the moment
