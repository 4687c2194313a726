"""The root folder of a store: which process may open it, and how it was left."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from firetrail.errors import NotAStoreError, StoreError, StoreLockedError
from firetrail.format.files.store_files import STORE_MARKS
from firetrail.format.names import ABORT, COMMIT_LOG, LOCK, LOCK_CONTENT, LOG_PATHS
from firetrail.system import System

ABORT_MARK = b"firetrail "
"""The beginning of an abort file that Firetrail wrote; the process id follows."""
SEALED_MARK = b" sealed"
"""The end of the abort file if all records of that process have a whole-record checksum."""
_OUR_LOCK = b"fire"
"""The length of the abort file of Firetrail: that of the one that the Java store writes at its
start."""
_held: dict[Path, FolderLock] = {}  # fcntl locks do not distinguish the stores of one process
_held_guard = threading.Lock()


def _after_fork() -> None:
    """Forget the locks, which stayed with the parent; a lost thread may have held the guard."""
    global _held_guard
    _held_guard = threading.Lock()
    _held.clear()


os.register_at_fork(after_in_child=_after_fork)


def check_is_store(system: System, root: Path) -> None:
    """Raise NotAStoreError unless the folder holds a message store."""
    if not root.exists():
        raise NotAStoreError(f"{root}: no such folder")
    if not root.is_dir():
        raise NotAStoreError(f"{root}: not a folder")
    names = set(system.files.names(root))
    if not names & {COMMIT_LOG, LOG_PATHS}:
        raise NotAStoreError(
            f"{root}: not a message store: it has no folder {COMMIT_LOG!r}; if a broker keeps the "
            f"log elsewhere, write its line storePathCommitLog=… to {root / LOG_PATHS}"
        )


def prepare_folder(system: System, root: Path) -> None:
    """Create the folder if it does not exist; it must be a store or empty."""
    try:
        system.files.make_folder(root)
        names = set(system.files.names(root))
    except FileExistsError as error:
        raise NotAStoreError(f"{root}: not a folder") from error
    except OSError as error:
        raise StoreError(f"{root}: cannot be used as a store: {error.strerror}") from error
    if names and not names & STORE_MARKS:
        raise NotAStoreError(
            f"{root}: contains other files and no message store; choose an empty folder"
        )


def stamped_folder(system: System, root: Path, prefix: str) -> Path:
    """Return a path in the store that is named after the time and does not exist yet."""
    now_ms = system.clock.now_ms()
    while True:
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        path = root / f"{prefix}{now:%Y%m%dT%H%M%S}{now.microsecond // 1000:03d}Z"
        if not path.exists():
            return path
        now_ms += 1


def is_held_here(root: Path) -> bool:
    """Return whether a store of this process has the folder open for writing."""
    return root.resolve() in _held


def lock_owner(system: System, root: Path) -> int | None:
    """Return the id of the process that has the store open for writing, or None."""
    if is_held_here(root):
        return os.getpid()  # opening and closing the file would release the lock
    try:
        descriptor = system.files.open(root / LOCK, writable=False)
    except FileNotFoundError:
        return None
    try:
        return system.files.lock_owner(descriptor)
    finally:
        system.files.close(descriptor)


def check_not_in_use(system: System, root: Path) -> None:
    """Raise NotAStoreError if the folder is not a store, StoreLockedError if it is in use."""
    check_is_store(system, root)
    owner = lock_owner(system, root)
    if owner is not None:
        raise StoreLockedError(f"{root}: process {owner} has the store open; stop it first")


def last_held_by_java(system: System, root: Path) -> bool:
    """Return whether the Java store was the last to write a store."""
    held = _held.get(root.resolve())
    if held is not None:  # opening and closing the file would release the lock
        return held.last_held_by_java
    try:
        return system.files.read(root / LOCK).startswith(LOCK_CONTENT)
    except FileNotFoundError:
        return False


class FolderLock:
    """The exclusive right to write a store, in a way that the Java store understands."""

    def __init__(self, system: System, root: Path) -> None:
        self._system = system
        self.last_held_by_java = False
        """Whether the Java store was the last to hold the lock, and it was not signed since."""
        self._folders: list[int] = []  # descriptors of folders elsewhere
        self._path = root / LOCK
        self._key = root.resolve()
        with _held_guard:
            if self._key in _held:
                raise StoreLockedError(f"{root}: this process has the store open already")
            _held[self._key] = self
        try:
            self._descriptor = self._take(root)
        except BaseException:
            self._forget()
            raise

    def _take(self, root: Path) -> int:
        files = self._system.files
        try:
            descriptor = files.open(root / LOCK, writable=True, create=True)
            try:
                if not files.lock(descriptor):
                    owner = files.lock_owner(descriptor)
                    raise StoreLockedError(
                        f"{root}: process {owner} has the store open; stop it, or open the store "
                        "for reading only"
                    )
                self.last_held_by_java = (
                    files.read_at(descriptor, 0, len(LOCK_CONTENT)) == LOCK_CONTENT
                )
            except BaseException:
                files.close(descriptor)
                raise
        except OSError as error:
            raise StoreError(f"{root / LOCK}: cannot be written: {error.strerror}") from error
        return descriptor

    def hold(self, folders: Iterable[Path]) -> None:
        """Lock folders elsewhere that have files of the store.

        A file in them would keep the Java store from starting, so the folders themselves are
        locked. That excludes other stores of Firetrail only.
        """
        files = self._system.files
        for folder in folders:
            descriptor = files.open(folder, writable=False)
            self._folders.append(descriptor)
            if not files.lock_open_file(descriptor):
                raise StoreLockedError(
                    f"{folder}: another store has this folder of the log open; give each store "
                    "its own folders (storePathCommitLog)"
                )

    def leave_to_parent(self) -> None:
        """Close the folders after a fork; the parent keeps their locks."""
        for descriptor in self._folders:
            self._system.files.close(descriptor)
        self._folders.clear()

    def sign(self) -> None:
        """Record durably that Firetrail holds the lock, after a Java store was taken over."""
        try:
            self._system.files.write(self._descriptor, [_OUR_LOCK], 0)
            self._system.files.sync(self._descriptor)
            self.last_held_by_java = False
        except OSError as error:
            raise StoreError(f"{self._path}: cannot be written: {error.strerror}") from error

    def _forget(self) -> None:
        with _held_guard:
            _held.pop(self._key, None)

    def release(self) -> None:
        """Release the lock."""
        for descriptor in self._folders:
            self._system.files.unlock_open_file(descriptor)  # a forked process may have it, too
            self._system.files.close(descriptor)
        self._folders.clear()
        self._system.files.close(self._descriptor)
        self._forget()


class AbortFile:
    """The file that exists while a store is open for writing, and after an unclean stop."""

    def __init__(self, system: System, root: Path) -> None:
        self._files = system.files
        self._path = root / ABORT

    @property
    def exists(self) -> bool:
        """Whether the store is open, or its last stop was unclean."""
        return self._path.exists()

    @property
    def is_ours(self) -> bool:
        """Whether Firetrail was stopped uncleanly, rather than a Java broker."""
        try:
            return self._files.read(self._path).startswith(ABORT_MARK)
        except FileNotFoundError:
            return False

    @property
    def is_sealed(self) -> bool:
        """Whether all records of the uncleanly stopped process have a whole-record checksum.

        After a crash, a record that has lost the end of its properties has lost its checksum with
        it, and looks like a record that never had one.
        """
        try:
            return self._files.read(self._path).endswith(SEALED_MARK)
        except FileNotFoundError:
            return False

    def create(self, *, sealed: bool) -> None:
        """Mark the store as open, durably; ``sealed`` if records get a whole-record checksum."""
        mark = ABORT_MARK + str(os.getpid()).encode()
        self._files.replace(self._path, mark + SEALED_MARK if sealed else mark)

    def remove(self) -> None:
        """Mark the store as cleanly closed."""
        self._files.remove(self._path)
