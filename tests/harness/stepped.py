"""A machine whose threads run only while the test waits for them, one at a time.

The test waits when it calls something that waits: a flush, a read that catches up with dispatch, a
close, `eventually`. Time passes only when every thread waits, and then jumps to the next deadline.
What a test sees between two such calls therefore never changes, and does not depend on the machine.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tests.crash.world.threads import World, WorldThreads
from tests.helpers import FaultyFiles, Machine, ManualClock, waiting_for

BEGIN_S = 1_000_000.0
"""The monotonic time at the beginning: the machine has been running for a while."""


class SteppedClock(ManualClock):
    """A clock whose wall time changes on demand, and whose monotonic time is that of a world."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def monotonic(self) -> float:
        return self._world.now

    def since_boot(self) -> float:
        return self._world.now

    def sleep_ms(self, pause_ms: int) -> None:
        self.pauses.append(pause_ms)
        self._world.pause(max(pause_ms / 1000, 1e-6))  # time passes even if the pause is 0

    def advance(self, ms: int) -> None:
        self.ms += ms
        self._world.now += ms / 1000


class SteppedFiles(FaultyFiles):
    """A file system that fails on demand, and uses no threads of its own."""

    def run_in_threads(
        self, calls: Sequence[Callable[[], object]], is_over: Callable[[], bool] | None = None
    ) -> bool:
        return self.run_in_order(calls, is_over)


class SteppedMachine(Machine):
    """A system of fakes with threads that the test steps."""

    def __init__(self, memory_bytes: int = 1 << 40, seed: int = 1) -> None:
        self.world = World(seed, now=BEGIN_S)
        threads = WorldThreads(self.world)
        super().__init__(memory_bytes, SteppedFiles(threads), SteppedClock(self.world), threads)

    def settle(self) -> None:
        """Let every thread work until all of them wait; no time passes."""
        self.world.settle()


@contextmanager
def stepped_machine() -> Iterator[SteppedMachine]:
    """Yield a machine; `eventually` lets its threads run. They have ended at the end."""
    machine = SteppedMachine()
    try:
        with waiting_for(machine.world.pause):
            yield machine
    finally:
        machine.world.abandon()
