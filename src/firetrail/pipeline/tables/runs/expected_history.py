"""The rows that a table with history should have, with code that the merge does not use."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from heapq import merge
from itertools import accumulate
from typing import Any, NamedTuple

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MessagePlace = tuple[str, int, int]
"""The broker, queue and offset of a message."""


class RowMark(NamedTuple):
    """What is compared of a row: the place of its message, and with history its validity in µs."""

    broker: str
    queue: int
    offset: int
    begin_us: int | None = None
    end_us: int | None = None
    is_current: bool | None = None

    @property
    def place(self) -> MessagePlace:
        return self.broker, self.queue, self.offset

    def __str__(self) -> str:
        text = f"queue {self.queue} of {self.broker}, offset {self.offset}"
        if self.is_current is None:
            return text
        current = "current" if self.is_current else "not current"
        return f"{text}, valid from {_time(self.begin_us)} to {_time(self.end_us)}, {current}"


class HistoryVersion(NamedTuple):
    """A version of a key in the log of a broker."""

    place: MessagePlace
    store_ms: int
    gone: bool


class ExpectedHistory:
    """The versions of each key."""

    def __init__(self) -> None:
        self._logs: dict[Any, dict[str, dict[int, HistoryVersion]]] = {}

    def add(self, key: Any, physical_offset: int, version: HistoryVersion) -> None:
        """Add a version; one in the same message as another one must follow it."""
        log = self._logs.setdefault(key, {}).setdefault(version.place[0], {})
        log[physical_offset] = version

    def rows(self) -> Iterator[RowMark]:
        """Yield the rows with their validity, which ends when another version begins.

        The logs of brokers are merged by the time of each version, which never falls along a log.
        """
        for logs in self._logs.values():
            versions = list(merge(*(_timed(logs[broker]) for broker in logs)))
            ends = [1000 * ms for ms, _, _, _ in versions[1:]]
            for (ms, _, _, version), end in zip(versions, [*ends, None], strict=True):
                if not version.gone:
                    yield RowMark(*version.place, 1000 * ms, end, end is None)


def _timed(log: dict[int, HistoryVersion]) -> Iterator[tuple[int, str, int, HistoryVersion]]:
    """Yield the versions of a log with their times."""
    offsets = sorted(log)
    times = accumulate((log[offset].store_ms for offset in offsets), max)
    for offset, ms in zip(offsets, times, strict=True):
        yield ms, log[offset].place[0], offset, log[offset]


def _time(us: int | None) -> str:
    return "-" if us is None else (_EPOCH + timedelta(microseconds=us)).isoformat(" ")
