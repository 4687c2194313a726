"""Faults of the operating system for a whole process: builds ``faults.c`` and sets its rules.

The library is compiled on first use, into a folder of its own for this machine. It shares a small
file with the tests, so rules that are set here take effect at once in a running process.
"""

import functools
import hashlib
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
from enum import IntFlag
from pathlib import Path

SOURCE = Path(__file__).with_name("faults.c")
TEXT = 256
HEAD = struct.Struct(f"=qqqqq{TEXT}s{TEXT}s")
RULE = struct.Struct(f"=iiiiqqqq{TEXT}s{TEXT}s")
RULES = 8
EVER = 1 << 62
KILL = -1
"""Used in place of an errno: the process is killed before the operation."""
HOLD = -2
"""Used in place of an errno: the process stops before the operation, until a test kills it."""


class Operation(IntFlag):
    """Operations that can fail. ALLOCATE includes changes of a length; NAME renames and links."""

    SYNC = 1
    ALLOCATE = 2
    WRITE = 4
    CREATE = 8
    NAME = 16
    REMOVE = 32


CHANGES = Operation(63)
SPACE = Operation.ALLOCATE | Operation.WRITE | Operation.CREATE
"""The operations that need space on the disk."""


def compiler() -> str | None:
    """Return the C compiler, or None if there is none."""
    return shutil.which("cc") or shutil.which("gcc")


@functools.cache
def library() -> Path:
    """Return the path of the library; it is built if its source has changed."""
    version = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"firetrail-faults-{os.getuid()}-{version}.so"
    if not path.exists():
        built = path.with_suffix(f".{os.getpid()}")
        cc = compiler()
        assert cc is not None, "no C compiler"
        command = [cc, "-O1", "-Wall", "-Werror", "-shared", "-fPIC"]
        subprocess.run([*command, "-o", str(built), str(SOURCE), "-ldl"], check=True)
        built.rename(path)
    return path


class Rule:
    """A rule that was set, and what has come of it."""

    def __init__(self, shared: mmap.mmap, at: int) -> None:
        self._shared = shared
        self._at = at

    def __call__(self) -> int:
        """Return how often the rule has taken effect."""
        return int(RULE.unpack_from(self._shared, self._at)[6])

    @property
    def hit_at(self) -> float:
        """The time at which it first took effect, by the monotonic clock."""
        return int(RULE.unpack_from(self._shared, self._at)[7]) / 1e9

    @property
    def path(self) -> str:
        """The path at which it first took effect."""
        path: bytes = RULE.unpack_from(self._shared, self._at)[9]
        return path.rstrip(b"\0").decode()


class Faults:
    """The rules for the processes that are started with :attr:`environment`."""

    def __init__(self, file: Path, root: Path) -> None:
        """Create ``file``. Only paths below ``root`` are affected."""
        file.write_bytes(bytes(HEAD.size + RULES * RULE.size))
        with file.open("r+b") as opened:
            self._shared = mmap.mmap(opened.fileno(), 0)
        HEAD.pack_into(self._shared, 0, 0, 0, 0, 0, 0, f"{root}/".encode(), b"")
        self._used = 0
        self.environment = {"LD_PRELOAD": str(library()), "FIRETRAIL_FAULTS": str(file)}

    def add(
        self,
        operations: Operation,
        code: int = 0,
        *,
        match: str = "",
        skip: int = 0,
        times: int = EVER,
        delay_ms: int = 0,
    ) -> Rule:
        """Let operations on paths with ``match`` in them fail or take long, after ``skip`` others.

        With neither code nor delay they are only counted.
        """
        assert self._used < RULES
        at = HEAD.size + self._used * RULE.size
        self._used += 1
        RULE.pack_into(
            self._shared, at, 0, operations, code, delay_ms, skip, times, 0, 0, match.encode(), b""
        )
        struct.pack_into("=i", self._shared, at, 1)  # only now: no process sees half a rule
        return Rule(self._shared, at)

    def heal(self) -> None:
        struct.pack_into("=q", self._shared, 24, 0)
        for number in range(self._used):
            struct.pack_into("=i", self._shared, HEAD.size + number * RULE.size, 0)
        self._used = 0

    def set_clock(self, seconds: float) -> None:
        """Set the wall clock this far ahead of the machine's; back if negative."""
        struct.pack_into("=q", self._shared, 0, int(seconds * 1e9))

    def forget(self) -> None:
        """Restart the count of operations at 0."""
        struct.pack_into("=q", self._shared, 8, 0)

    @property
    def operations(self) -> int:
        """The number of changes that processes have asked the file system for."""
        return int(HEAD.unpack_from(self._shared)[1])

    @property
    def waiting(self) -> int:
        """The number of operations that are being delayed at the moment."""
        return int(HEAD.unpack_from(self._shared)[2])

    @property
    def held(self) -> int:
        """Return the id of the process that was killed or is stopped; 0 if none."""
        return int(HEAD.unpack_from(self._shared)[3])

    @property
    def place(self) -> str:
        """Before which operation it was: its kind and the path."""
        *_, last, _, path = HEAD.unpack_from(self._shared)
        return f"{Operation(last).name} {path.partition(bytes(1))[0].decode()}"

    def close(self) -> None:
        self._shared.close()
