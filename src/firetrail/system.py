"""The one seam to the operating system: files, syncs, locks and the clock.

Everything below the store goes through a :class:`System` that is handed in, so that tests can
replace it and make a disk full, a sync fail or a clock run backwards. Nothing here retries and
nothing swallows an error.

Syncs are ``fdatasync``: on Linux it covers pages that were written through a mapping, and it lets
other threads run, which ``mmap.flush`` does not.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import shutil
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from firetrail import libc

FOLDER_MODE = 0o700
FILE_MODE = 0o600
SYNCS_AT_ONCE = 16
"""So many threads wait for the disk at the same time."""
SYNCS_IN_LINE = 256
"""So many are handed to these threads at a time."""
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
"""Nothing was synced yet, and later there may be one: not a sync that failed."""

_UNNAMED = getattr(os, "O_TMPFILE", 0) if Path("/proc/self/fd").exists() else 0
_ZEROS = bytes(1 << 20)
_COPY_STEP = 16 << 20
_NO_KERNEL_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
"""Between these two files, or on this kernel, bytes are copied through the process."""
_WRITEV_MAX = 1024  # IOV_MAX of Linux


class SyncError(OSError):
    """A sync that failed where a file or a folder was made: it must not be tried again."""


class Files:
    """What the store asks of a file system."""

    def open(self, path: Path, *, writable: bool, create: bool = False) -> int:
        """A file descriptor of the file, which must exist unless ``create``."""
        flags = (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0)
        return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)

    def open_new(self, path: Path) -> int:
        """A descriptor of a new, empty file that :meth:`give_name` will call ``path``.

        Until then a crash leaves nothing of it, where the file system can do that; elsewhere it
        has its name at once.
        """
        if _UNNAMED:
            try:
                return os.open(path.parent, _UNNAMED | os.O_RDWR | os.O_CLOEXEC, FILE_MODE)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
                    raise
        descriptor = self.open(path, writable=True, create=True)
        self.set_size(descriptor, 0)
        return descriptor

    def give_name(self, descriptor: int, path: Path) -> None:
        """Let a file that :meth:`open_new` gave appear, in the place of whatever is there."""
        if os.fstat(descriptor).st_nlink == 0:
            path.unlink(missing_ok=True)
            # With a directory descriptor, which an absolute path does not need, links are followed.
            os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)

    def close(self, descriptor: int) -> None:
        """Close a descriptor that :meth:`open` or :meth:`open_new` gave."""
        os.close(descriptor)

    def descriptor_limit(self) -> int:
        """How many files the process may have open."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return soft if soft != resource.RLIM_INFINITY else 1 << 20

    def size(self, path: Path) -> int:
        """Length of the file in bytes."""
        return path.stat().st_size

    def modified_ms(self, path: Path) -> int:
        """When the file was last changed."""
        return path.stat().st_mtime_ns // 1_000_000

    def set_size(self, descriptor: int, size: int) -> None:
        """Make the file ``size`` bytes long; new bytes read as zeros and take no space yet."""
        os.ftruncate(descriptor, size)

    def allocate(self, descriptor: int, offset: int, length: int) -> None:
        """Back a range with disk space, so that writing to its mapping cannot kill the process."""
        os.posix_fallocate(descriptor, offset, length)

    def map(self, descriptor: int, size: int, *, writable: bool) -> mmap.mmap:
        """A shared mapping of the file's first ``size`` bytes.

        Raises MemoryError if the process may not have so much, or so many: that passes.
        """
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        try:
            return mmap.mmap(descriptor, size, access=access)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            raise MemoryError(f"no memory to map a file of {size} bytes") from error

    def populate(self, view: memoryview, offset: int, length: int) -> None:
        """Fault the pages of a range in for writing, with other threads running meanwhile.

        Only speed depends on it: a kernel that cannot do it is no error.
        """
        libc.advise(view, offset, length, libc.MADV_POPULATE_WRITE)

    def expect_scattered(self, mapping: mmap.mmap) -> None:
        """Read no neighbours of a page that is missing from a mapping.

        By default the kernel reads up to ``read_ahead_kb`` around it, holes included, which is
        megabytes per file on some machines. Only speed and memory depend on it.
        """
        mapping.madvise(mmap.MADV_RANDOM)

    def let_go(self, mapping: mmap.mmap, offset: int, length: int) -> None:
        """Count a range of a shared mapping no longer as memory of this process.

        Nothing is lost: the pages stay in the system's cache, and are there at the next access.
        """
        libc.advise(mapping, offset, length, mmap.MADV_DONTNEED)

    def lock_memory(self, mapping: mmap.mmap) -> None:
        """Keep the mapping's pages in memory. Raises OSError, mostly for want of permission."""
        libc.lock_memory(mapping)

    def write(self, descriptor: int, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        """Write all of the buffers one behind the other at ``offset``; the position behind."""
        pending = [memoryview(buffer) for buffer in buffers if len(buffer)]
        while pending:
            written = os.pwritev(descriptor, pending[:_WRITEV_MAX], offset)
            offset += written
            while pending and written >= len(pending[0]):
                written -= len(pending.pop(0))
            if written:
                pending[0] = pending[0][written:]
        return offset

    def write_zeros(self, descriptor: int, offset: int, end: int) -> None:
        """Overwrite a range with zeros."""
        while offset < end:
            offset += os.pwrite(descriptor, _ZEROS[: end - offset], offset)

    def copy_range(self, source: int, target: int, offset: int, end: int) -> None:
        """Copy a range of a file to the same place of another one.

        In the kernel, and without a copy where the file system can share blocks.
        """
        in_kernel = True
        while offset < end:
            step = min(end - offset, _COPY_STEP)
            if in_kernel:
                try:
                    copied = os.copy_file_range(source, target, step, offset, offset)
                except OSError as error:
                    if error.errno not in _NO_KERNEL_COPY:
                        raise
                    copied = 0
                if copied == 0:  # what some file systems say that cannot do it, too
                    in_kernel = False
                    continue
            else:
                copied = os.pwrite(target, os.pread(source, step, offset), offset)
            if copied == 0:
                return  # the file has become shorter
            offset += copied

    def data_ranges(self, descriptor: int, offset: int, end: int) -> Iterable[tuple[int, int]]:
        """The parts of a range that may hold anything but zeros; holes are left out."""
        while offset < end:
            try:
                start = os.lseek(descriptor, offset, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but holes up to the end of the file
                    return
                raise
            if start >= end:
                return
            offset = min(os.lseek(descriptor, start, os.SEEK_HOLE), end)
            yield start, offset

    def sync(self, descriptor: int) -> None:
        """Return when the file's data is on the disk."""
        os.fdatasync(descriptor)

    def sync_folder(self, path: Path) -> None:
        """Return when the names in the folder are on the disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def at_once(
        self, calls: Sequence[Callable[[], object]], is_over: Callable[[], bool] | None = None
    ) -> bool:
        """Make calls that wait for the disk, several at a time.

        A journal that has to be written for one of them is then written for all that wait. Raises
        what the first one raised that failed. False, and not all were made, if the time for it
        ``is_over`` before.
        """
        if len(calls) < SYNCS_AT_ONCE:
            return self.one_by_one(calls, is_over)
        make = partial(_make_in_time, is_over)
        with ThreadPoolExecutor(SYNCS_AT_ONCE, "firetrail-sync") as pool:
            for at in range(0, len(calls), SYNCS_IN_LINE):
                begun = [pool.submit(make, call) for call in calls[at : at + SYNCS_IN_LINE]]
                if not all([made.result() for made in begun]):
                    return False
        return True

    @staticmethod
    def one_by_one(
        calls: Sequence[Callable[[], object]], is_over: Callable[[], bool] | None
    ) -> bool:
        """As :meth:`at_once`, without other threads."""
        return all(_make_in_time(is_over, call) for call in calls)

    def make_folder(self, path: Path) -> None:
        """Create the folder and those above it, each of them durably.

        Raises OSError, and then it is not there.
        """
        if path.is_dir():
            return
        self.make_folder(path.parent)
        self.begin_folder(path)
        try:
            self.sync_folder(path.parent)
        except OSError as error:
            path.rmdir()  # or the next one would take it for durable
            if error.errno in NO_DESCRIPTOR:
                raise
            raise SyncError(error.errno, error.strerror, str(path.parent)) from error

    def begin_folder(self, path: Path) -> None:
        """Create the folder; its name is durable once the folder above it is synced."""
        path.mkdir(mode=FOLDER_MODE, exist_ok=True)

    def names(self, path: Path) -> list[str]:
        """The names in a folder, sorted; none if there is no such folder."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def sizes(self, path: Path) -> dict[str, int]:
        """The names in a folder, sorted, and their lengths; none if there is no such folder."""
        try:
            with os.scandir(path) as entries:
                return dict(sorted((entry.name, entry.stat().st_size) for entry in entries))
        except FileNotFoundError:
            return {}

    def folders(self, path: Path) -> list[str]:
        """The names of the folders in a folder, sorted; none if there is no such folder."""
        try:
            with os.scandir(path) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, path: Path) -> bytes:
        """The whole content of a small file."""
        return path.read_bytes()

    def read_at(self, descriptor: int, offset: int, size: int) -> bytes:
        """At most ``size`` bytes of an open file; unlike its mapping, a hole takes no space."""
        return os.pread(descriptor, size, offset)

    def replace(self, path: Path, content: bytes) -> None:
        """Give the file a new content, so that a crash leaves the old one or the new one."""
        temporary = path.with_name(path.name + ".tmp")
        descriptor = self.open(temporary, writable=True, create=True)
        try:
            self.set_size(descriptor, 0)
            self.write(descriptor, [content], 0)
            self.sync(descriptor)
        finally:
            self.close(descriptor)
        self.rename(temporary, path)

    def rename(self, path: Path, target: Path) -> None:
        """Rename durably."""
        os.rename(path, target)
        self.sync_folder(target.parent)

    def exchange(self, path: Path, other: Path) -> None:
        """Let two files or folders of one file system swap their names, durably.

        At once, where the kernel and the file system can; elsewhere there is a moment in which
        ``other`` is not there.
        """
        if not libc.swap_names(path, other):
            aside = path.with_name(f"{path.name}.aside")
            os.rename(other, aside)
            os.rename(path, other)
            os.rename(aside, path)
        self.sync_folder(other.parent)
        self.sync_folder(path.parent)

    def remove(self, path: Path) -> None:
        """Remove a file and make that durable. What is mapped stays readable."""
        os.unlink(path)
        self.sync_folder(path.parent)

    def remove_folder(self, path: Path) -> None:
        """Remove a folder that is empty, durably; one with something in it stays."""
        try:
            os.rmdir(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise
        else:
            self.sync_folder(path.parent)

    def remove_tree(self, path: Path, *, ignore_errors: bool = False) -> None:
        """Remove a folder and everything in it, not durably.

        It is for unfinished work, which is removed again if a crash brings it back.

        Args:
            path: The folder.
            ignore_errors: Whether to leave what cannot be removed, instead of raising OSError.
        """
        shutil.rmtree(path, ignore_errors=ignore_errors)

    def discard(self, path: Path) -> None:
        """Remove a file of unfinished work, if there is one; not durably."""
        path.unlink(missing_ok=True)

    def used_ratio(self, path: Path) -> float:
        """Used part of the file system that holds ``path``, from 0.0 to 1.0."""
        stat = os.statvfs(path)
        used = stat.f_blocks - stat.f_bfree
        available = used + stat.f_bavail
        return used / available if available else 0.0

    def disk_space(self, path: Path) -> tuple[int, int]:
        """Bytes of the file system that holds ``path``: all of them, and those that are free."""
        stat = os.statvfs(path)
        return stat.f_blocks * stat.f_frsize, stat.f_bfree * stat.f_frsize

    def lock(self, descriptor: int) -> bool:
        """Take the lock on byte 0 that RocketMQ takes; False if another process has it."""
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        return True

    def lock_open_file(self, descriptor: int) -> bool:
        """Take a lock that belongs to this open file; False if another open file has it.

        Unlike :meth:`lock` it also keeps out other users of the file in this process.
        """
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def lock_owner(self, descriptor: int) -> int | None:
        """Process id of the holder of the lock on byte 0, if another process holds it."""
        request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, owner = struct.unpack(
            "hhqqi4x", fcntl.fcntl(descriptor, fcntl.F_GETLK, request)
        )
        return None if kind == fcntl.F_UNLCK else owner


def _make_in_time(is_over: Callable[[], bool] | None, call: Callable[[], object]) -> bool:
    """Make a call, unless the time for it is over; whether it was made."""
    if is_over is not None and is_over():
        return False
    call()
    return True


def allow_many_files() -> None:
    """Let this process open as many files as it may at all, as the Java runtime does.

    A store may have more of them than a process may open by default.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Clock:
    """Wall time for what is stored, monotonic time for what is waited for."""

    time_ns = staticmethod(time.time_ns)
    """Nanoseconds since 1970."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return self.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds since some moment; never runs backwards."""
        return time.monotonic()

    def sleep_ms(self, pause_ms: int) -> None:
        """Let time pass."""
        time.sleep(pause_ms / 1000)


@dataclass(frozen=True, slots=True)
class System:
    """The operating system as the store sees it."""

    files: Files = field(default_factory=Files)
    clock: Clock = field(default_factory=Clock)
    memory_bytes: int = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


SYSTEM = System()
"""The operating system of this process: what runs without a system of its own uses this one."""
