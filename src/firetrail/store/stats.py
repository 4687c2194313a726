"""Counters of a store: how many messages and bytes went in and out, and how long puts took."""

from __future__ import annotations

from typing import NamedTuple

PUT_LATENCY_BOUNDS_MS = (0, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
"""Upper bounds of the latency classes, those of the Java store; one more class is above them."""


SAMPLE_MASK = 63
"""Of the puts that wait for nothing, one in 64 is timed; all of those that wait for the disk."""


class Snapshot(NamedTuple):
    """The counters at one moment; two of them make a rate."""

    time_s: float
    put_messages: int
    put_bytes: int
    put_failed: int
    put_latency: tuple[int, ...]
    get_calls: int
    get_messages: int
    get_bytes: int

    def since(self, earlier: Snapshot) -> Rates:
        """What happened a second between two moments."""
        seconds = max(self.time_s - earlier.time_s, 1e-9)
        return Rates(
            put_messages=(self.put_messages - earlier.put_messages) / seconds,
            put_bytes=(self.put_bytes - earlier.put_bytes) / seconds,
            get_messages=(self.get_messages - earlier.get_messages) / seconds,
            get_bytes=(self.get_bytes - earlier.get_bytes) / seconds,
        )


class Rates(NamedTuple):
    """Messages and bytes a second."""

    put_messages: float
    put_bytes: float
    get_messages: float
    get_bytes: float


class Statistics:
    """Counted as the store works. Increments are not locked: under heavy threading a few may be
    lost, which these figures can bear and the put path cannot pay for."""

    __slots__ = (
        "get_bytes",
        "get_calls",
        "get_messages",
        "put_bytes",
        "put_calls",
        "put_failed",
        "put_latency",
        "put_messages",
    )

    def __init__(self) -> None:
        self.put_messages = 0
        self.put_bytes = 0
        self.put_calls = 0
        self.put_failed = 0
        self.put_latency = [0] * (len(PUT_LATENCY_BOUNDS_MS) + 1)
        self.get_calls = 0
        self.get_messages = 0
        self.get_bytes = 0

    def note_latency(self, seconds: float) -> None:
        """Note how long a put took."""
        latency_ms = int(seconds * 1000)
        for number, bound in enumerate(PUT_LATENCY_BOUNDS_MS):
            if latency_ms <= bound:
                self.put_latency[number] += 1
                return
        self.put_latency[-1] += 1

    def get(self, messages: int, size: int) -> None:
        """Note a get."""
        self.get_calls += 1
        self.get_messages += messages
        self.get_bytes += size

    def snapshot(self, time_s: float) -> Snapshot:
        """The counters now, at the monotonic time ``time_s``."""
        return Snapshot(
            time_s,
            self.put_messages,
            self.put_bytes,
            self.put_failed,
            tuple(self.put_latency),
            self.get_calls,
            self.get_messages,
            self.get_bytes,
        )
