"""Functions of the C library that Python lacks, or during which it holds the GIL."""

import ctypes
import errno
import mmap
import os
import signal
from pathlib import Path

MADV_POPULATE_WRITE = 23  # Linux 5.14
_RENAME_EXCHANGE = 2  # Linux 3.15, glibc 2.28
_AT_FDCWD = -100
_PR_SET_PDEATHSIG = 1  # Linux 2.1.57
_LIBC = ctypes.CDLL(None, use_errno=True)


def advise(mapping: mmap.mmap | memoryview, offset: int, length: int, advice: int) -> None:
    """Call ``madvise`` for a range; unlike the method of ``mmap``, it releases the GIL."""
    start = offset & ~(mmap.PAGESIZE - 1)
    anchor = ctypes.c_char.from_buffer(mapping, start)
    try:
        address = ctypes.c_void_p(ctypes.addressof(anchor))
        _LIBC.madvise(address, ctypes.c_size_t(offset + length - start), advice)
    finally:
        del anchor  # otherwise the mapping could not be closed


def lock_memory(mapping: mmap.mmap) -> None:
    """Lock a mapping in memory. Raises OSError, usually because it is not permitted."""
    anchor = ctypes.c_char.from_buffer(mapping)
    try:
        address = ctypes.c_void_p(ctypes.addressof(anchor))
        if _LIBC.mlock(address, ctypes.c_size_t(len(mapping))) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"mlock of {len(mapping)} bytes: {os.strerror(code)}")
    finally:
        del anchor  # otherwise the mapping could not be closed


def end_with_parent() -> None:
    """Let this process get SIGTERM when its parent ends for any reason.

    It runs between fork and exec, so it calls nothing but the C library.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def swap_names(path: Path, other: Path) -> bool:
    """Swap two names in one step; return False if the kernel or the file system cannot."""
    rename = getattr(_LIBC, "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, bytes(path), _AT_FDCWD, bytes(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS):
        return False
    raise OSError(code, os.strerror(code), str(other))
