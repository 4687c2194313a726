"""Lines in the log about work that takes long."""

from __future__ import annotations

import logging

from firetrail.system import Clock
from firetrail.text import human_size

_LOGGER = logging.getLogger(__name__)
INTERVAL_S = 5.0
"""What is done sooner is not worth a line, and none comes sooner after another."""


class Progress:
    """How far some work on the log has come: ``what`` is done, from ``start`` to ``end``."""

    def __init__(self, clock: Clock, what: str, start: int, end: int) -> None:
        self._clock = clock
        self._what = what
        self._start = start
        self._end = end
        self._last = clock.monotonic()

    def note(self, position: int) -> None:
        """It has come to this physical offset."""
        now = self._clock.monotonic()
        if now - self._last >= INTERVAL_S:
            self._last = now
            done, total = position - self._start, self._end - self._start
            _LOGGER.info("%s: %s of %s done", self._what, human_size(done), human_size(total))
