"""What one task reads: small, picklable descriptions that name a store and ranges in it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogSplit:
    """The records of a store that begin in ``start`` up to ``end`` (physical offsets)."""

    store: str
    start: int
    end: int

    @property
    def size(self) -> int:
        """Bytes of the log to read."""
        return self.end - self.start


Split = LogSplit
