"""``--late-events SEED``: what happens in event loops happens late, as on a busy machine.

Sockets become readable and writable later than they are, some before others, and now and then the
whole process pauses, so that timers expire at once. Nothing that asyncio guarantees changes.
A test that fails with this option depends on the speed of the machine. To look for such tests:
``.venv/bin/pytest -q --late-events 1 tests/broker``. The same seed draws the same delays, but which
event gets them depends on the machine.
"""

import random
import selectors
import time
from collections.abc import Mapping
from typing import Any

import pytest

LATE = 0.2
"""The share of events that come late."""
LATE_S = 0.03
STILL = 0.01
"""The share of steps at which the process pauses."""
STILL_S = 0.15

Ready = list[tuple[selectors.SelectorKey, int]]


class LateSelector(selectors.BaseSelector):
    """A selector that withholds some events for a while."""

    source = random.Random()

    def __init__(self) -> None:
        self._selector = selectors.EpollSelector()
        self._held: dict[int, float] = {}
        """File descriptors whose events are withheld, and until when; 0 for those that were."""

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._selector.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = self._selector.unregister(fileobj)
        self._held.pop(key.fd, None)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._selector.modify(fileobj, events, data)

    def close(self) -> None:
        self._selector.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._selector.get_map()

    def select(self, timeout: float | None = None) -> Ready:
        """Return events that are due, after at most ``timeout`` seconds."""
        if self.source.random() < STILL:
            time.sleep(self.source.uniform(0, STILL_S))
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            ready = self._selector.select(left)
            due = [each for each in ready if self._is_due(each[0].fd)]
            if due or not ready or (end is not None and time.monotonic() >= end):
                return due
            time.sleep(0.001)

    def _is_due(self, fd: int) -> bool:
        now = time.monotonic()
        until = self._held.get(fd)
        if until is None:
            is_late = self.source.random() < LATE
            until = self._held[fd] = now + self.source.uniform(0, LATE_S) if is_late else 0.0
        if until > now:
            return False
        del self._held[fd]
        return True


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--late-events", metavar="SEED", type=int, help="let events of event loops come late"
    )


def configure(config: pytest.Config) -> None:
    """Give every event loop of this process late events, if the option is there."""
    seed = config.getoption("late_events", None)
    if seed is not None:
        LateSelector.source = random.Random(seed)
        selectors.DefaultSelector = LateSelector  # type: ignore[misc, assignment]
