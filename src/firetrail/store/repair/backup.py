"""A copy of a store that may be in use, as sparse as the store itself.

Files are copied in the reverse of the order in which they are written. The marks (checkpoint and
watermark) come first: everything that they say is on disk is on disk when the rest is copied. Then
come the files of the broker, the queues and the index, and finally the log, which therefore has
every record that the others refer to. At worst, the copy of a live store has the state that a crash
during the copy would have left, with every message that was acknowledged before it began. It is
recovered at once and then is a closed store. The copy of a store that is not in use is identical,
file by file.

Files that are removed during the copy are skipped; retention removes only files that are no longer
needed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from firetrail.format.files.store_files import COPY_ORDER, is_aside
from firetrail.format.names import ABORT, COMMIT_LOG, LOCK, LOG_PATHS, parse_segment_name
from firetrail.storage.copies import copy_file
from firetrail.store.log.paths import log_folders, shown_path
from firetrail.store.repair.rebuild import check_outside
from firetrail.store.root.folder import AbortFile, check_is_store, lock_owner
from firetrail.store.root.new_folder import built
from firetrail.store.settings.store_config import StoreConfig
from firetrail.store.store import Store
from firetrail.system import System


class Backup(NamedTuple):
    """The result of a copy."""

    files: int
    bytes: int
    live: bool
    """Whether the store was in use, so that the copy was recovered."""


def back_up(
    system: System,
    root: Path,
    target: Path,
    config: StoreConfig,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Backup:
    """Copy a store to ``target``, a new or empty folder, which is complete or does not exist.

    ``on_progress`` is called with the number of bytes copied. Raises OSError if there is no space
    or access.
    """
    check_is_store(system, root)
    check_outside(root, target)
    with built(system.files, target) as folder:
        copy = _Copy(system, root, folder, on_progress)
        live = copy.is_in_use()
        copy.run()
        live = live or copy.is_in_use()
        if live:
            abort = AbortFile(system, folder)
            if not abort.exists:  # the store was closed, or opened, during the copy
                abort.create(sealed=False)
            Store.open(folder, config, system=system).close()
        return Backup(copy.files, copy.bytes, live)


def copy_files(system: System, root: Path, folder: Path, log_end: int) -> None:
    """Copy a store that is not in use, with the log files that begin before ``log_end``."""
    _Copy(system, root, folder, lambda done: None).run(log_end)


class _Copy:
    """One copy of the files of a store."""

    def __init__(
        self, system: System, root: Path, folder: Path, on_progress: Callable[[int], None]
    ) -> None:
        self._system = system
        self._files = system.files
        self._root = root
        self._folder = folder
        self._on_progress = on_progress
        self.files = self.bytes = 0

    def is_in_use(self) -> bool:
        return lock_owner(self._system, self._root) is not None

    def run(self, log_end: int | None = None) -> None:
        names = self._files.names(self._root)
        folders = log_folders(self._files, self._root)
        left_out = {COMMIT_LOG, LOG_PATHS, LOCK, ABORT, *COPY_ORDER}
        left_out.update(shown_path(self._root, folder).partition("/")[0] for folder in folders)
        others = [name for name in names if name not in left_out and not is_aside(name)]
        # The abort file comes after the marks: a store opened in between must not look closed.
        self._copy_row(self._root, [*COPY_ORDER, *others, ABORT], [])
        self._copy_log(folders, log_end)

    def _copy_log(self, folders: tuple[Path, ...], end: int | None) -> None:
        """Copy the log up to its last file, which may change while the others are copied.

        The copy has all files in one folder.
        """
        target = self._folder / COMMIT_LOG
        self._files.make_folder(target)
        done: set[str] = set()
        copied: list[Path] = []
        while new := self._new_names(folders, done):
            done.update(new)
            wanted = [n for n in new if end is None or (parse_segment_name(n) or 0) < end]
            for name in sorted(wanted):
                self._copy_row(new[name], [name], copied, target)
        self._files.sync_folder(target)

    def _new_names(self, folders: tuple[Path, ...], done: set[str]) -> dict[str, Path]:
        return {
            name: folder
            for folder in folders
            for name in self._files.names(folder)
            if name not in done
        }

    def _copy_row(
        self, folder: Path, names: list[str], copied: list[Path], into: Path | None = None
    ) -> None:
        """Copy the files in a folder ``into`` another, and add them to ``copied``.

        A row of segments must not have a gap. Retention deletes the oldest first: if one of them is
        missing, so are those before it, and their copies are removed as well.
        """
        into = into or self._folder / folder.relative_to(self._root)
        for name in names:
            if name.endswith(".tmp"):
                continue  # about to be renamed, or left by a crash
            if self._copy(folder / name, into / name):
                copied.append(into / name)
            elif parse_segment_name(name) is not None:
                for earlier in copied:
                    self._files.remove(earlier)
                copied.clear()

    def _copy(self, path: Path, target: Path) -> bool:
        """Copy a file or folder; return False if it does not exist."""
        if not path.exists():
            return False  # asked first: the store may create a folder of this name at any moment
        if path.is_dir():
            self._files.make_folder(target)
            self._copy_row(path, self._files.names(path), [])
            self._files.sync_folder(target)
            return True
        try:
            self.bytes += copy_file(self._files, path, target)
        except FileNotFoundError:
            return False
        self.files += 1
        self._on_progress(self.bytes)
        return True
