"""Whether the store takes messages, and if not, why."""

from __future__ import annotations

import threading
from enum import Enum


class Closure(Enum):
    """The reasons for which puts are refused; each is lifted on its own."""

    CLOSED = "the store is closed"
    SLAVE = "the store is a slave"
    DISK_FULL = "the disk is nearly full"
    FAILED = "writing was given up"


class Gate:
    """Open while no reason is against it."""

    def __init__(self) -> None:
        self._reasons: dict[Closure, str] = {}
        self._guard = threading.Lock()
        self.refusal = ""
        """Why puts are refused, empty while they are not."""

    def shut(self, closure: Closure, detail: str = "") -> None:
        """Refuse puts for this reason, too."""
        with self._guard:
            self._reasons[closure] = f"{closure.value}: {detail}" if detail else closure.value
            self.refusal = "; ".join(self._reasons.values())

    def lift(self, closure: Closure) -> None:
        """This reason is gone."""
        with self._guard:
            self._reasons.pop(closure, None)
            self.refusal = "; ".join(self._reasons.values())

    def shut_for_good(self, reason: str) -> None:
        """Refuse puts from now on; takes no lock, which another thread may have died with."""
        self._reasons = {Closure.CLOSED: reason}
        self.refusal = reason
