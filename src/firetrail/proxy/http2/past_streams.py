"""The ends of past streams of a connection, as far as they matter for late frames."""

from array import array
from enum import Enum

REMEMBERED = 1000
"""Number of complete streams that are remembered, in 4 bytes each: there may be thousands of
connections. Of streams that were reset, which are rare, 1,000 to 2,000 are remembered."""


class StreamEnd(Enum):
    """The end of a stream."""

    COMPLETE = 0
    """Both sides sent everything."""
    RESET_HERE = 1
    """The server reset it, and the client may not have heard of it yet."""
    RESET_THERE = 2
    """The client reset it."""


class PastStreams:
    """The ends of the latest streams of a connection."""

    __slots__ = ("_complete", "_new_resets", "_next", "_old_resets")

    def __init__(self) -> None:
        self._complete = array("I")  # a ring, once it is full
        self._next = 0
        self._new_resets: dict[int, StreamEnd] = {}  # two generations, so that nothing is searched
        self._old_resets: dict[int, StreamEnd] = {}

    def add(self, stream_id: int, end: StreamEnd) -> None:
        """Remember how a stream ended."""
        if end is StreamEnd.COMPLETE:
            self._add_complete(stream_id)
            return
        if len(self._new_resets) >= REMEMBERED:
            self._old_resets = self._new_resets
            self._new_resets = {}
        self._new_resets[stream_id] = end

    def _add_complete(self, stream_id: int) -> None:
        if len(self._complete) < REMEMBERED:
            self._complete.append(stream_id)
        else:
            self._complete[self._next] = stream_id
            self._next = (self._next + 1) % REMEMBERED

    def end_of(self, stream_id: int) -> StreamEnd | None:
        """Return the end of a stream; None if it is forgotten or was never opened."""
        reset = self._new_resets.get(stream_id) or self._old_resets.get(stream_id)
        if reset is None and stream_id in self._complete:
            return StreamEnd.COMPLETE
        return reset
