"""How streams of a connection ended, as far as it matters for late frames."""

from __future__ import annotations

from enum import Enum

REMEMBERED = 1000
"""Streams that are remembered at least; at most twice as many are."""


class End(Enum):
    """How a stream ended."""

    COMPLETE = 0
    """Both sides sent everything."""
    RESET_HERE = 1
    """The server reset it, and the client may not have heard of it yet."""
    RESET_THERE = 2
    """The client reset it."""


class PastStreams:
    """The ends of the latest streams, in two generations, so that nothing has to be searched."""

    __slots__ = ("_new", "_old")

    def __init__(self) -> None:
        self._new: dict[int, End] = {}
        self._old: dict[int, End] = {}

    def add(self, stream_id: int, end: End) -> None:
        """Remember how a stream ended."""
        if len(self._new) >= REMEMBERED:
            self._old = self._new
            self._new = {}
        self._new[stream_id] = end

    def end_of(self, stream_id: int) -> End | None:
        """Return how a stream ended; None if it is forgotten or was never opened."""
        return self._new.get(stream_id) or self._old.get(stream_id)
