"""Operations on files: reads, writes, syncs, locks and disk space.

Nothing here retries, and only advice to the kernel, which affects speed alone, may fail without an
error. A sync is ``fdatasync``: on Linux it covers pages that were written through a mapping, and it
releases the GIL, which ``mmap.flush`` does not.
"""

import errno
import fcntl
import mmap
import os
import resource
import shutil
import struct
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from firetrail import libc

FOLDER_MODE = 0o700
FILE_MODE = 0o600
SYNC_THREADS = 16
"""Number of threads that wait for the disk at the same time."""
SYNC_SHARE = 16
"""Maximum number of calls that one of these threads gets at a time. Passing tens of thousands one
by one would take longer than the calls."""
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
"""The error of too many open files: the sync did not begin, and may be retried unlike a failed
one."""

_UNNAMED = getattr(os, "O_TMPFILE", 0) if Path("/proc/self/fd").exists() else 0
_ZEROS = bytes(1 << 20)
_COPY_STEP = 16 << 20
_NO_KERNEL_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
"""Errors of ``copy_file_range`` where files, or this kernel, require a copy through the process."""
_WRITEV_MAX = 1024  # IOV_MAX of Linux


class SyncError(OSError):
    """A failed sync of a new file or folder, which must not be retried."""


class Files:
    """The operations on files that the store uses."""

    def open(self, path: Path, *, writable: bool, create: bool = False) -> int:
        """Open a file, which must exist unless ``create``; return the descriptor."""
        flags = (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0)
        return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)

    def open_new(self, path: Path) -> int:
        """Create an empty file that :meth:`give_name` will call ``path``; return the descriptor.

        A crash before that leaves no file, if the file system supports unnamed files; otherwise the
        file has its name from the beginning.
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
        """Give a file of :meth:`open_new` its name, and replace a file that has it."""
        if os.fstat(descriptor).st_nlink == 0:
            path.unlink(missing_ok=True)
            # os.link follows the link in /proc only if it is given a directory descriptor, too.
            os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)

    def close(self, descriptor: int) -> None:
        """Close a descriptor of :meth:`open` or :meth:`open_new`."""
        os.close(descriptor)

    def descriptor_limit(self) -> int:
        """Return the number of files that the process may have open."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return soft if soft != resource.RLIM_INFINITY else 1 << 20

    def size(self, path: Path) -> int:
        """Return the length of the file in bytes."""
        return path.stat().st_size

    def part(self, path: Path, offset: int, size: int) -> tuple[bytes, int]:
        """Return some bytes of a file, fewer at its end, and the length of the file."""
        descriptor = self.open(path, writable=False)
        try:
            return self.read_at(descriptor, offset, size), os.fstat(descriptor).st_size
        finally:
            self.close(descriptor)

    def modified_ms(self, path: Path) -> int:
        """Return when the file was last changed, in ms since 1970."""
        return path.stat().st_mtime_ns // 1_000_000

    def is_private(self, path: Path) -> bool:
        """Return whether a file keeps a secret: only its owner may read or write it.

        If it belongs to root, and this process does not, a group may read it, too. Container
        systems provide secrets in this way.
        """
        status = path.stat()
        return not status.st_mode & (0o037 if _is_handed_over(status) else 0o077)

    def private_mode(self, path: Path) -> str:
        """Return the mode to advise for a secret: ``600``, or ``640`` if only a group may read it.

        The latter is a file of root, which this process could otherwise not read.
        """
        return "640" if _is_handed_over(path.stat()) else "600"

    def make_private(self, path: Path) -> None:
        """Allow only the owner of the file to read and write it."""
        path.chmod(FILE_MODE)

    def is_shared(self, folder: Path) -> bool:
        """Return whether others than its owner may create, replace or delete files in a folder."""
        return bool(folder.stat().st_mode & 0o022)

    def set_size(self, descriptor: int, size: int) -> None:
        """Make the file ``size`` bytes long; new bytes read as zeros and take no space yet."""
        os.ftruncate(descriptor, size)

    def allocate(self, descriptor: int, offset: int, length: int) -> None:
        """Allocate disk space for a range, so that writing to its mapping cannot raise SIGBUS."""
        os.posix_fallocate(descriptor, offset, length)

    def map(self, descriptor: int, size: int, *, writable: bool) -> mmap.mmap:
        """Map the first ``size`` bytes of the file, shared.

        Raises MemoryError, which is temporary, if the process has too much mapped.
        """
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        try:
            return mmap.mmap(descriptor, size, access=access)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            raise MemoryError(f"no memory to map a file of {size} bytes") from error

    def populate(self, view: memoryview, offset: int, length: int) -> None:
        """Fault in the pages of a range for writing, without the GIL.

        It affects only speed, so it is not an error if the kernel does not support it.
        """
        libc.advise(view, offset, length, libc.MADV_POPULATE_WRITE)

    def expect_scattered(self, mapping: mmap.mmap) -> None:
        """Switch off read-ahead for a mapping.

        By default the kernel reads up to ``read_ahead_kb`` around a missing page, including holes,
        which is megabytes per file on some machines. This affects only speed and memory.
        """
        mapping.madvise(mmap.MADV_RANDOM)

    def release_pages(self, mapping: mmap.mmap, offset: int, length: int) -> None:
        """Remove a range of a shared mapping from the memory of this process.

        No data is lost: the pages stay in the page cache, and are mapped again at the next access.
        """
        libc.advise(mapping, offset, length, mmap.MADV_DONTNEED)

    def lock_memory(self, mapping: mmap.mmap) -> None:
        """Lock a mapping in memory. Raises OSError, usually because it is not permitted."""
        libc.lock_memory(mapping)

    def write(self, descriptor: int, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        """Write all buffers in sequence at ``offset``, and return the position after them."""
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
        """Copy a range of a file to the same position in another one.

        The kernel copies if it can, and only shares the blocks if the file system can.
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
                if copied == 0:  # some file systems that cannot do it return 0
                    in_kernel = False
                    continue
            else:
                copied = os.pwrite(target, os.pread(source, step, offset), offset)
            if copied == 0:
                return  # the file was truncated
            offset += copied

    def data_ranges(self, descriptor: int, offset: int, end: int) -> Iterable[tuple[int, int]]:
        """Yield the parts of a range that may contain other bytes than zeros; skip holes."""
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
        """Sync the data of a file to disk."""
        os.fdatasync(descriptor)

    def sync_folder(self, path: Path) -> None:
        """Sync the names in a folder to disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def run_in_threads(
        self, calls: Sequence[Callable[[], object]], is_over: Callable[[], bool] | None = None
    ) -> bool:
        """Run calls that wait for the disk, several at a time, and return True.

        The file system then writes its journal once for all calls that wait. Raises the exception
        of the first call that failed. Returns False if ``is_over`` returns True before that; some
        of the calls were then not run.
        """
        if len(calls) < SYNC_THREADS:
            return self.run_in_order(calls, is_over)
        size = min(max(len(calls) // (4 * SYNC_THREADS), 1), SYNC_SHARE)
        shares = [calls[at : at + size] for at in range(0, len(calls), size)]
        with ThreadPoolExecutor(SYNC_THREADS, "firetrail-sync") as pool:
            return all(list(pool.map(partial(self.run_in_order, is_over=is_over), shares)))

    @staticmethod
    def run_in_order(
        calls: Sequence[Callable[[], object]], is_over: Callable[[], bool] | None
    ) -> bool:
        """Do the same as :meth:`run_in_threads`, without other threads."""
        return all(_run_in_time(is_over, call) for call in calls)

    def make_folder(self, path: Path) -> None:
        """Create the folder and its missing parents durably.

        Raises OSError, and then leaves no folder.
        """
        if path.is_dir():
            return
        self.make_folder(path.parent)
        self.begin_folder(path)
        try:
            self.sync_folder(path.parent)
        except OSError as error:
            path.rmdir()  # otherwise the next call would consider it durable
            if error.errno in NO_DESCRIPTOR:
                raise
            raise SyncError(error.errno, error.strerror, str(path.parent)) from error

    def begin_folder(self, path: Path) -> None:
        """Create the folder; its name is durable once its parent is synced."""
        path.mkdir(mode=FOLDER_MODE, exist_ok=True)

    def names(self, path: Path) -> list[str]:
        """Return the names in a folder, sorted; none if the folder does not exist."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def sizes(self, path: Path) -> dict[str, int]:
        """Return the names in a folder, sorted, with their lengths; none if it does not exist."""
        try:
            with os.scandir(path) as entries:
                return dict(sorted((entry.name, entry.stat().st_size) for entry in entries))
        except FileNotFoundError:
            return {}

    def folders(self, path: Path) -> list[str]:
        """Return the names of the folders in a folder, sorted; none if it does not exist."""
        try:
            with os.scandir(path) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, path: Path) -> bytes:
        """Return the content of a small file."""
        return path.read_bytes()

    def read_at(self, descriptor: int, offset: int, size: int) -> bytes:
        """Read at most ``size`` bytes; unlike in a mapping, a hole then allocates no page."""
        return os.pread(descriptor, size, offset)

    def replace(self, path: Path, content: bytes) -> None:
        """Replace the content of a file durably; a crash leaves the old or the new content."""
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

    def link(self, path: Path, other: Path) -> None:
        """Give a file a second name; raise FileExistsError if that is taken. It is not synced."""
        os.link(path, other)

    def exchange(self, path: Path, other: Path) -> None:
        """Swap the names of two files or folders of one file system, durably.

        The swap is atomic if the kernel and the file system support it; otherwise ``other`` is
        missing for a moment.
        """
        if not libc.swap_names(path, other):
            aside = path.with_name(f"{path.name}.aside")
            os.rename(other, aside)
            os.rename(path, other)
            os.rename(aside, path)
        self.sync_folder(other.parent)
        self.sync_folder(path.parent)

    def remove(self, path: Path) -> None:
        """Remove a file durably. Mappings of it stay readable."""
        os.unlink(path)
        self.sync_folder(path.parent)

    def remove_folder(self, path: Path) -> None:
        """Remove a folder durably if it is empty."""
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
            ignore_errors: Whether to keep files that cannot be removed, instead of raising OSError.
        """
        shutil.rmtree(path, ignore_errors=ignore_errors)

    def discard(self, path: Path) -> None:
        """Remove a file of unfinished work, if there is one; not durably."""
        path.unlink(missing_ok=True)

    def used_ratio(self, path: Path) -> float:
        """Return the used part of the file system that contains ``path``, from 0.0 to 1.0."""
        stat = os.statvfs(path)
        used = stat.f_blocks - stat.f_bfree
        available = used + stat.f_bavail
        return used / available if available else 0.0

    def disk_space(self, path: Path) -> tuple[int, int]:
        """Return the total and the free bytes of the file system that contains ``path``."""
        stat = os.statvfs(path)
        return stat.f_blocks * stat.f_frsize, stat.f_bfree * stat.f_frsize

    def lock(self, descriptor: int) -> bool:
        """Lock byte 0 of the file, as RocketMQ does; return False if another process has it."""
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        return True

    def lock_open_file(self, descriptor: int) -> bool:
        """Take a lock that belongs to this descriptor; return False if another one has it.

        Unlike :meth:`lock` it also excludes other users of the file in this process.
        """
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock_open_file(self, descriptor: int) -> None:
        """Release a lock of :meth:`lock_open_file`, also for copies of the descriptor."""
        fcntl.flock(descriptor, fcntl.LOCK_UN)

    def lock_owner(self, descriptor: int) -> int | None:
        """Return the id of another process that holds the lock on byte 0; None if there is none."""
        request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, owner = struct.unpack(
            "hhqqi4x", fcntl.fcntl(descriptor, fcntl.F_GETLK, request)
        )
        return None if kind == fcntl.F_UNLCK else owner


def _is_handed_over(status: os.stat_result) -> bool:
    """Whether a file belongs to root, and this process does not."""
    return status.st_uid == 0 and os.geteuid() != 0


def _run_in_time(is_over: Callable[[], bool] | None, call: Callable[[], object]) -> bool:
    """Run a call and return True; return False if its time is over."""
    if is_over is not None and is_over():
        return False
    call()
    return True


def allow_many_files() -> None:
    """Raise the limit of open files to the hard limit, as the Java runtime does.

    A store may have more files than a process may open by default.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
