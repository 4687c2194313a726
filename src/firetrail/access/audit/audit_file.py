"""The files of an audit log: lines are appended, and full files are renamed and finally deleted."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from firetrail.system import Files


class AuditFile:
    """Appends lines to the newest of a limited number of files, which only their owner can read.

    It is used by one thread.

    Args:
        files: Files to use.
        path: The file that is being written. With ``.1`` at the end of its name, it is the one
            before it, and so on.
        size_max: A file that would become larger is followed by a new one.
        count: The number of files that are kept.
    """

    def __init__(self, files: Files, path: Path, size_max: int, count: int) -> None:
        self._files = files
        self.path = path
        self._size_max = size_max
        self._count = count
        self._descriptor: int | None = None
        self._size = 0

    def append(self, lines: Sequence[bytes]) -> None:
        """Write lines; raise OSError, and leave no part of them, if that fails."""
        if self._descriptor is None:
            self._open()
        if self._size and self._size + sum(map(len, lines)) > self._size_max:
            self._begin_next()
        assert self._descriptor is not None
        try:
            self._size = self._files.write(self._descriptor, lines, self._size)
        except OSError:
            self._files.set_size(self._descriptor, self._size)
            self.close()
            raise

    def close(self) -> None:
        """Close the file. The next line opens it again."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            self._files.close(descriptor)

    def _open(self) -> None:
        self._files.make_folder(self.path.parent)
        self._descriptor = self._files.open(self.path, writable=True, create=True)
        if not self._files.is_private(self.path):
            self._files.make_private(self.path)
        self._size = self._files.size(self.path)

    def _begin_next(self) -> None:
        """Rename the files, so that the current one becomes the first of the old ones."""
        self.close()
        names = [self.path, *(self._old(number) for number in range(1, self._count))]
        if len(names) == 1:
            self._files.remove(self.path)
        for newer, older in reversed(list(pairwise(names))):
            if newer.exists():
                self._files.rename(newer, older)
        self._open()

    def _old(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")
