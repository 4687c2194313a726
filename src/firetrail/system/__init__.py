"""The only access to the operating system: files, syncs, locks, the clock and threads.

The store reaches the operating system through a :class:`System` that it is given. Tests replace it
to make a disk full, a sync fail, a clock run backwards or a thread run late.
"""

import os
from dataclasses import dataclass, field

from firetrail.system.clock import Clock
from firetrail.system.files import (
    FILE_MODE,
    FOLDER_MODE,
    NO_DESCRIPTOR,
    NO_SPACE,
    SYNC_THREADS,
    Files,
    SyncError,
    allow_many_files,
)
from firetrail.system.threads import Condition, Event, Lock, Thread, Threads

__all__ = [
    "FILE_MODE",
    "FOLDER_MODE",
    "NO_DESCRIPTOR",
    "NO_SPACE",
    "SYNC_THREADS",
    "SYSTEM",
    "Clock",
    "Condition",
    "Event",
    "Files",
    "Lock",
    "SyncError",
    "System",
    "Thread",
    "Threads",
    "allow_many_files",
]


@dataclass(frozen=True, slots=True)
class System:
    """The operating system as the store sees it. Tests replace parts of it.

    Args:
        files: The operations on files (default: those of the operating system).
        clock: The clock (default: that of the operating system).
        memory_bytes: The size of the memory, which limits caches (default: all of the machine).
        threads: Starts background threads (default: threads of this process).
    """

    files: Files = field(default_factory=Files)
    clock: Clock = field(default_factory=Clock)
    memory_bytes: int = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    threads: Threads = field(default_factory=Threads)


SYSTEM = System()
"""The operating system of this process, which is the default :class:`System`."""
