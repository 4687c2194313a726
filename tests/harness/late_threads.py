"""Late background threads: ``pytest --late-threads SEED``.

Every thread that Firetrail starts through its seam (``firetrail.system.Threads``) starts late, and
pauses at random whenever it has waited and, sometimes, after it has released a lock. A test whose
outcome depends on how quickly such a thread works fails often instead of once in a thousand runs.
Threads of the test itself, and those of other processes, are not delayed.
"""

import random
import threading
import time
from collections.abc import Callable
from types import TracebackType

import pytest

from firetrail.system import Clock, Condition, Event, Lock, Thread, Threads

PAUSE_S = 0.1
"""The longest pause at the start of a thread, and after it has waited."""
LOCK_PAUSE_S = 0.1
"""The longest pause after a lock is released."""
LOCK_PAUSES = 0.2
"""The share of releases with a pause; a thread releases locks all the time."""


class Lateness:
    """Pauses the threads that it was told about."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._here = threading.local()

    def concern(self) -> None:
        """Pause the calling thread from now on."""
        self._here.is_late = True
        self.pause()

    def pause(self) -> None:
        """Make a late thread wait: every other time not at all, otherwise up to PAUSE_S."""
        if getattr(self._here, "is_late", False):
            time.sleep(max(self._random.uniform(-PAUSE_S, PAUSE_S), 0))

    def pause_sometimes(self) -> None:
        """Make a late thread wait now and then, up to LOCK_PAUSE_S."""
        if getattr(self._here, "is_late", False) and self._random.random() < LOCK_PAUSES:
            time.sleep(self._random.uniform(0, LOCK_PAUSE_S))


class LateLock:
    """A lock whose late owners pause after they release it."""

    def __init__(self, lateness: Lateness) -> None:
        self._lateness = lateness
        self._lock = threading.Lock()
        self.locked = self._lock.locked

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock; pause if that had to wait."""
        if self._lock.acquire(False):
            return True
        is_acquired = blocking and self._lock.acquire(True, timeout)
        if blocking:
            self._lateness.pause()
        return is_acquired

    def release(self) -> None:
        """Release the lock; pause sometimes."""
        self._lock.release()
        self._lateness.pause_sometimes()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        self.release()


class LateEvent(threading.Event):
    """An event that is noticed late."""

    def __init__(self, lateness: Lateness) -> None:
        super().__init__()
        self._lateness = lateness

    def wait(self, timeout: float | None = None) -> bool:
        is_set = super().wait(timeout)
        self._lateness.pause()
        return is_set


class LateCondition(threading.Condition):
    """A condition that is noticed late."""

    def __init__(self, lateness: Lateness) -> None:
        super().__init__()
        self._lateness = lateness

    def wait(self, timeout: float | None = None) -> bool:
        is_notified = super().wait(timeout)
        self._lateness.pause()
        return is_notified


class LateThreads:
    """The methods of `Threads`, and the pauses of a clock, with late threads."""

    def __init__(self, seed: int) -> None:
        self._lateness = Lateness(seed)

    def thread(self, name: str, run: Callable[[], object]) -> Thread:
        """Return a thread that starts late."""

        def run_late() -> None:
            self._lateness.concern()
            run()

        return threading.Thread(target=run_late, name=name, daemon=True)

    def lock(self) -> Lock:
        return LateLock(self._lateness)

    def event(self) -> Event:
        return LateEvent(self._lateness)

    def condition(self) -> Condition:
        return LateCondition(self._lateness)

    def sleep_ms(self, pause_ms: int) -> None:
        time.sleep(pause_ms / 1000)
        self._lateness.pause()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Make all threads late that are started through the seam from now on."""
        for name in ("thread", "lock", "event", "condition"):
            patch.setattr(Threads, name, getattr(self, name))
        patch.setattr(Clock, "sleep_ms", lambda _, pause_ms: self.sleep_ms(pause_ms))


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--late-threads",
        type=int,
        metavar="SEED",
        help="delay Firetrail's background threads at random, to find tests that depend on time",
    )


def configure(config: pytest.Config) -> None:
    seed = config.getoption("--late-threads")
    if seed is not None:
        LateThreads(seed).install(pytest.MonkeyPatch())
