"""Steps of the wall clock: how far it was set while the process ran."""

from firetrail.system import Clock

STEP_MS = 1_000
"""The smallest step that is reported; smaller ones delay a message by no more than a slot."""


class ClockSteps:
    """Compares the wall clock with one that is never set.

    Args:
        clock: The clocks.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall_ms = clock.now_ms()
        self._running_s = clock.since_boot()

    def since_last(self) -> int:
        """Return by how much the clock was set since the last call, in ms; negative: back."""
        wall_ms, running_s = self._clock.now_ms(), self._clock.since_boot()
        step = wall_ms - self._wall_ms - round((running_s - self._running_s) * 1000)
        self._wall_ms, self._running_s = wall_ms, running_s
        return step if abs(step) >= STEP_MS else 0
