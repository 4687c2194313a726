"""Open files of consume queues, of which a store may have more than a process can open."""

from collections import OrderedDict
from pathlib import Path

from firetrail.storage.segment import Segment
from firetrail.store.inspect.view import StoreView

OPEN_FILES_MAX = 256
"""Maximum number of queue files that are open at the same time."""


class OpenFiles:
    """Queue files by path; the least recently used ones are closed."""

    def __init__(self, view: StoreView) -> None:
        self._system = view.system
        self._open: OrderedDict[Path, Segment] = OrderedDict()

    def get(self, path: Path, base: int, size: int) -> Segment:
        """Return the file, open for reading."""
        segment = self._open.get(path)
        if segment is None:
            segment = self._open[path] = Segment(self._system, path, base, size, writable=False)
            if len(self._open) > OPEN_FILES_MAX:
                self._open.popitem(last=False)[1].close()
        else:
            self._open.move_to_end(path)
        return segment

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()
