"""Fakes for the operating system, and helpers that the tests of the store share."""

import errno
import mmap
import os
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVarTuple

from firetrail import Message, Store, StoreConfig
from firetrail.system import SYSTEM, Clock, Event, Files, System, Threads

Arguments = TypeVarTuple("Arguments")
NEVER_MS = 3_600_000
"""An interval that no test waits for."""
PATIENCE_S = 60.0
"""How long a test waits for another thread before it fails; far more than necessary."""
START_MS = 1_700_000_000_000


@dataclass
class Call:
    """One operation on the file system."""

    operation: str
    path: Path


def concerns(path: Path, name: str) -> bool:
    """Return whether a component of the path, or several, begins with ``name``."""
    return not name or f"/{name}" in str(path)


@dataclass
class Fault:
    """An error that some operations raise."""

    operation: str
    name: str
    code: int
    skip: int
    times: int

    def applies(self, operation: str, path: Path) -> bool:
        """Return whether this operation must fail, and count it."""
        if self.times == 0 or operation != self.operation or not concerns(path, self.name):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class FaultyFiles(Files):
    """A file system that fails and stalls on demand, and counts operations.

    An operation has the name of its method. ``name`` selects paths by the beginning of one of their
    components; the empty name selects all.
    """

    def __init__(self, threads: Threads = SYSTEM.threads) -> None:
        self._threads = threads
        self.calls: list[Call] = []
        self.used: float | None = 0.1  # None: as full as the disk of the test machine
        self._faults: list[Fault] = []
        self._stalls: list[tuple[str, str, Callable[[], None]]] = []
        self._paths: dict[int, Path] = {}

    def fail(
        self, operation: str, code: int, name: str = "", *, skip: int = 0, times: int = -1
    ) -> None:
        """Make an operation fail with an errno ``times`` times, after ``skip`` successes."""
        self._faults.append(Fault(operation, name, code, skip, times))

    def fill_disk(self, name: str = "") -> None:
        """Make allocations fail for the files that ``name`` selects."""
        self.fail("allocate", errno.ENOSPC, name)

    def heal(self) -> None:
        """Remove all failures, and all actions of :meth:`on`."""
        self._faults.clear()
        self._stalls.clear()

    @contextmanager
    def stalled(self, operation: str, name: str = "") -> Iterator[Event]:
        """Make operations wait for the end of the block; the event is set when one waits."""
        reached, released = self._threads.event(), self._threads.event()

        def stall() -> None:
            reached.set()
            assert released.wait(PATIENCE_S)

        entry = (operation, name, stall)
        self._stalls.append(entry)
        try:
            yield reached
        finally:
            if entry in self._stalls:
                self._stalls.remove(entry)
            released.set()

    def on(self, operation: str, action: Callable[[], None], name: str = "") -> None:
        self._stalls.append((operation, name, action))

    def count(self, operation: str, name: str = "") -> int:
        """Count such operations since :meth:`forget`."""
        return sum(c.operation == operation and concerns(c.path, name) for c in self.calls)

    def tally(self) -> Counter[str]:
        return Counter(call.operation for call in self.calls)

    def forget(self) -> None:
        self.calls.clear()

    @property
    def open_files(self) -> list[Path]:
        return sorted(self._paths.values())

    def _note(self, operation: str, target: Path | int) -> None:
        path = self._paths[target] if isinstance(target, int) else target
        self.calls.append(Call(operation, path))
        for wanted, name, action in list(self._stalls):
            if wanted == operation and concerns(path, name):
                action()
        for fault in list(self._faults):
            if fault.applies(operation, path):
                raise OSError(fault.code, os.strerror(fault.code), str(path))

    def open(self, path: Path, *, writable: bool, create: bool = False) -> int:
        self._note("open", path)
        descriptor = super().open(path, writable=writable, create=create)
        self._paths[descriptor] = path
        return descriptor

    def open_new(self, path: Path) -> int:
        self._note("open", path)
        descriptor = super().open_new(path)
        self._paths[descriptor] = path
        return descriptor

    def give_name(self, descriptor: int, path: Path) -> None:
        self._note("give_name", path)
        super().give_name(descriptor, path)

    def close(self, descriptor: int) -> None:
        self._note("close", descriptor)
        del self._paths[descriptor]
        super().close(descriptor)

    def size(self, path: Path) -> int:
        self._note("size", path)
        return super().size(path)

    def set_size(self, descriptor: int, size: int) -> None:
        self._note("set_size", descriptor)
        super().set_size(descriptor, size)

    def allocate(self, descriptor: int, offset: int, length: int) -> None:
        self._note("allocate", descriptor)
        super().allocate(descriptor, offset, length)

    def map(self, descriptor: int, size: int, *, writable: bool) -> mmap.mmap:
        self._note("map", descriptor)
        return super().map(descriptor, size, writable=writable)

    def populate(self, view: memoryview, offset: int, length: int) -> None:
        self._note("populate", Path())
        super().populate(view, offset, length)

    def write(self, descriptor: int, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        self._note("write", descriptor)
        return super().write(descriptor, buffers, offset)

    def write_zeros(self, descriptor: int, offset: int, end: int) -> None:
        self._note("write_zeros", descriptor)
        super().write_zeros(descriptor, offset, end)

    def copy_range(self, source: int, target: int, offset: int, end: int) -> None:
        self._note("copy_range", target)
        super().copy_range(source, target, offset, end)

    def sync(self, descriptor: int) -> None:
        self._note("sync", descriptor)
        super().sync(descriptor)

    def sync_folder(self, path: Path) -> None:
        self._note("sync_folder", path)
        super().sync_folder(path)

    def begin_folder(self, path: Path) -> None:
        self._note("begin_folder", path)
        super().begin_folder(path)

    def names(self, path: Path) -> list[str]:
        self._note("names", path)
        return super().names(path)

    def sizes(self, path: Path) -> dict[str, int]:
        self._note("sizes", path)
        return super().sizes(path)

    def folders(self, path: Path) -> list[str]:
        self._note("folders", path)
        return super().folders(path)

    def read_at(self, descriptor: int, offset: int, size: int) -> bytes:
        self._note("read_at", descriptor)
        return super().read_at(descriptor, offset, size)

    def read(self, path: Path) -> bytes:
        self._note("read", path)
        return super().read(path)

    def remove(self, path: Path) -> None:
        self._note("remove", path)
        super().remove(path)

    def lock_memory(self, mapping: mmap.mmap) -> None:
        self._note("lock_memory", Path())
        super().lock_memory(mapping)

    def used_ratio(self, path: Path) -> float:
        self._note("used_ratio", path)
        return super().used_ratio(path) if self.used is None else self.used


class ManualClock(Clock):
    """A clock whose wall time changes only on demand; monotonic time runs, and can be advanced."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.ms = now_ms
        self.pauses: list[int] = []
        self._pushed_s = 0.0

    def time_ns(self) -> int:
        return self.ms * 1_000_000

    def monotonic(self) -> float:
        return super().monotonic() + self._pushed_s

    def since_boot(self) -> float:
        return super().since_boot() + self._pushed_s

    def sleep_ms(self, pause_ms: int) -> None:
        self.pauses.append(pause_ms)
        time.sleep(0)  # otherwise a loop that pauses would keep other threads from running

    def advance(self, ms: int) -> None:
        """Let time pass: advance wall time and monotonic time."""
        self.ms += ms
        self._pushed_s += ms / 1000

    def set_wall(self, ms: int) -> None:
        """Set the wall clock, without letting time pass."""
        self.ms = ms


class Machine:
    """A system of fakes, by default with the threads of the process."""

    def __init__(
        self,
        memory_bytes: int = 1 << 40,
        files: FaultyFiles | None = None,
        clock: ManualClock | None = None,
        threads: Threads = SYSTEM.threads,
    ) -> None:
        self.files = files or FaultyFiles()
        self.clock = clock or ManualClock()
        self.system = System(self.files, self.clock, memory_bytes, threads)


def small_config(
    log: int = 4096, units: int = 10, slots: int = 16, entries: int = 64, **changes: Any
) -> StoreConfig:
    """Return settings with tiny files, and without background work unless asked for.

    ``units`` is the number of units per consume-queue file.
    """
    quiet = {
        "flush_interval_ms": NEVER_MS,
        "consume_queue_flush_interval_ms": NEVER_MS,
        "commit_interval_ms": NEVER_MS,
    }
    sized = StoreConfig().for_files(
        commit_log_file_size=log,
        consume_queue_file_size=20 * units,
        index_slots=slots,
        index_entries=entries,
    )
    return sized.replace(**(quiet | changes))


def put_all(store: Store, bodies: Sequence[bytes], topic: str = "T", **fields: Any) -> list[int]:
    """Put messages and wait until they can be read; return their physical offsets."""
    offsets = [store.put(Message(topic, body, **fields)).physical_offset for body in bodies]
    assert store.wait_dispatched(PATIENCE_S)
    return offsets


def bodies(store: Store, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [bytes(message.body) for message in store.read(topic, queue_id)]


def crash_image(root: Path, target: Path) -> Path:
    """Copy a store as a killed process would leave it; the store may be open.

    Files and folders that vanish during the copy are skipped, such as the temporary file of a save
    and the queues of a deleted topic.
    """
    target.mkdir()
    for path in list(root.iterdir()):
        with suppress(FileNotFoundError):
            if path.is_dir():
                crash_image(path, target / path.name)
            else:
                shutil.copy2(path, target / path.name)
    return target


def tree(root: Path) -> dict[str, bytes]:
    """Return name and content of every file below a folder."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


_pauses: list[Callable[[float], None]] = [time.sleep]


@contextmanager
def waiting_for(pause: Callable[[float], None]) -> Iterator[None]:
    """Make `eventually` wait with this function instead of `time.sleep`."""
    _pauses.append(pause)
    try:
        yield
    finally:
        _pauses.remove(pause)


def eventually(holds: Callable[[*Arguments], bool], *arguments: *Arguments) -> None:
    """Wait for another thread to make ``holds(*arguments)`` true."""
    for _ in range(int(PATIENCE_S / 0.002)):
        if holds(*arguments):
            return
        _pauses[-1](0.002)
    raise AssertionError(f"the condition did not become true within {PATIENCE_S:g} s")


def in_threads(*actions: Callable[[], object]) -> None:
    """Run the actions in parallel, switching threads often; raise the first exception."""
    failures: list[BaseException] = []
    start = threading.Barrier(len(actions))

    def run(action: Callable[[], object]) -> None:
        try:
            start.wait()
            action()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(action,)) for action in actions]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if failures:
        raise failures[0]
