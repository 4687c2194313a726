"""Temporary files of the tests in memory, where a sync costs nothing.

On a disk, the tests wait for many thousands of syncs. The difference affects no test: power
failures are simulated, and syncs are counted where the store calls the system.
"""

import os
import tempfile
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
FREE_LEAST = 3 << 30
"""Three workers use up to 1.5 GiB; containers often have only 64 MiB."""


def use_memory() -> None:
    """Keep temporary files of this process and its children in memory, if there is enough.

    Nothing changes if ``TMPDIR`` is set.
    """
    if "TMPDIR" not in os.environ and _is_suitable(SHARED_MEMORY):
        os.environ["TMPDIR"] = str(SHARED_MEMORY)
        tempfile.tempdir = None  # it is looked up again


def _is_suitable(folder: Path) -> bool:
    if not os.access(folder, os.W_OK):
        return False
    status = os.statvfs(folder)
    may_execute = not status.f_flag & os.ST_NOEXEC  # tests run programs that they have written
    return may_execute and status.f_bavail * status.f_frsize >= FREE_LEAST
