"""Counters of a store: messages and bytes put and read, and how long puts took."""

from __future__ import annotations

from typing import NamedTuple

from firetrail.store.kernels.answer import GetResult
from firetrail.store.kernels.append import Appender

PUT_LATENCY_BOUNDS_MS = (0, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
"""Upper bounds of the latency classes of the Java store; one more class is above them."""


class Snapshot(NamedTuple):
    """The counters of a store at one moment; the difference of two snapshots is a rate.

    Attributes:
        time_s: The monotonic time, in seconds.
        put_calls: Puts that stored something; a batch is one put.
        put_messages: Messages that were stored.
        put_bytes: Their bytes in the log.
        put_refused: Puts that stored nothing.
        put_latency: Puts that waited for the disk, per class of ``PUT_LATENCY_BOUNDS_MS``.
        put_latency_max_ms: The longest put that waited for the disk.
        get_calls: Gets.
        get_messages: Messages that gets have returned.
        get_bytes: Their bytes.
        get_found: Gets that found at least one message.
    """

    time_s: float
    put_calls: int
    put_messages: int
    put_bytes: int
    put_refused: int
    put_latency: tuple[int, ...]
    put_latency_max_ms: int
    get_calls: int
    get_messages: int
    get_bytes: int
    get_found: int

    def put_times_since(self, earlier: Snapshot) -> list[int]:
        """Return the puts of each latency class since ``earlier``.

        The first class includes puts that did not wait for the disk, which are not timed.

        Args:
            earlier: A snapshot of the same store that was taken before this one.
        """
        pairs = zip(self.put_latency, earlier.put_latency, strict=True)
        times = [now - then for now, then in pairs]
        times[0] += max(self.put_calls - earlier.put_calls - sum(times), 0)
        return times

    def since(self, earlier: Snapshot) -> Rates:
        """Return the rates per second since ``earlier``.

        Args:
            earlier: A snapshot of the same store that was taken before this one.
        """
        seconds = max(self.time_s - earlier.time_s, 1e-9)
        return Rates(
            put_messages=(self.put_messages - earlier.put_messages) / seconds,
            put_bytes=(self.put_bytes - earlier.put_bytes) / seconds,
            get_messages=(self.get_messages - earlier.get_messages) / seconds,
            get_bytes=(self.get_bytes - earlier.get_bytes) / seconds,
            get_calls=(self.get_calls - earlier.get_calls) / seconds,
            get_found=(self.get_found - earlier.get_found) / seconds,
        )


class Rates(NamedTuple):
    """Messages, bytes and calls per second."""

    put_messages: float
    put_bytes: float
    get_messages: float
    get_bytes: float
    get_calls: float
    get_found: float


class Statistics:
    """The counters of a working store.

    Increments are not locked: with many threads a few may be lost. The figures tolerate that, and
    the code that counts cannot afford a lock. Only puts that wait for the disk are timed: the
    latency of the others is negligible.
    """

    __slots__ = (
        "_puts",
        "get_bytes",
        "get_calls",
        "get_found",
        "get_messages",
        "put_latency",
        "put_latency_max_ms",
        "put_refused",
    )

    def __init__(self, puts: Appender) -> None:
        self._puts = puts
        self.put_refused = 0
        self.put_latency = [0] * (len(PUT_LATENCY_BOUNDS_MS) + 1)
        self.put_latency_max_ms = 0
        self.get_calls = 0
        self.get_messages = 0
        self.get_bytes = 0
        self.get_found = 0

    def noted(self, result: GetResult) -> GetResult:
        """Count a get and return its result."""
        self.get_calls += 1
        if result.count:
            self.get_found += 1
            self.get_messages += result.count
            self.get_bytes += result.size
        return result

    def note_latency(self, seconds: float) -> None:
        """Count a put in its latency class."""
        latency_ms = int(seconds * 1000)
        self.put_latency_max_ms = max(self.put_latency_max_ms, latency_ms)
        for number, bound in enumerate(PUT_LATENCY_BOUNDS_MS):
            if latency_ms <= bound:
                self.put_latency[number] += 1
                return
        self.put_latency[-1] += 1

    def snapshot(self, time_s: float) -> Snapshot:
        """Return the counters at the monotonic time ``time_s``."""
        return Snapshot(
            time_s=time_s,
            put_calls=self._puts.calls,
            put_messages=self._puts.messages,
            put_bytes=self._puts.bytes,
            put_refused=self.put_refused,
            put_latency=tuple(self.put_latency),
            put_latency_max_ms=self.put_latency_max_ms,
            get_calls=self.get_calls,
            get_messages=self.get_messages,
            get_bytes=self.get_bytes,
            get_found=self.get_found,
        )
