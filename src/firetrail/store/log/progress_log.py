"""Log lines about work that takes long."""

import logging

from firetrail.system import Clock
from firetrail.text import human_size

_log = logging.getLogger(__name__)
INTERVAL_S = 5.0
"""The time before the first line, and between two lines."""


class ProgressLog:
    """The progress of a ``task`` on the log from ``start`` to ``end``."""

    def __init__(self, clock: Clock, task: str, start: int, end: int) -> None:
        self._clock = clock
        self._task = task
        self._start = start
        self._end = end
        self._last = clock.monotonic()

    def note(self, position: int) -> None:
        """Log that the task has reached this physical offset, if a line is due."""
        now = self._clock.monotonic()
        if now - self._last >= INTERVAL_S:
            self._last = now
            done, total = position - self._start, self._end - self._start
            _log.info("%s: %s of %s done", self._task, human_size(done), human_size(total))
