"""The expected content of a store after the puts of all sides, and its comparison with the store.

A history grows with every put that a side has reported. It can be compared with a store that
Firetrail has open, and with the answers of a Java store to :meth:`History.questions`.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from interop.messages import COMMIT, ROLLBACK, TRANSACTION, stored
from interop.peer import Json, Sizes
from interop.views import (
    QueueName,
    QueueView,
    described,
    java_queues,
    log_of,
    queues_of,
    without_crc,
)

from firetrail import Boundary, Store
from firetrail.format.values.hosts import parse_host
from firetrail.format.values.ids import encode_message_id

Key = tuple[str, str]
Moment = tuple[str, int, int]
"""A topic, a queue id and a time to look up."""
QUERY_MAX = 32
JAVA_BOUNDARIES = (Boundary.LOWER, Boundary.UPPER)


class History:
    """The records of a store in the order of the log."""

    def __init__(self, records: Iterable[Json] = (), *, repeats: bool = False) -> None:
        self.records = list(records)
        self.repeats = repeats
        """Whether Java has recovered the store from an unclean stop."""
        self.emptied: dict[QueueName, int] = {}
        """Queues whose messages have all expired, and the offsets at which they continue."""

    def copy(self) -> History:
        """Return an independent copy."""
        copy = History(self.records, repeats=self.repeats)
        copy.emptied = dict(self.emptied)
        return copy

    def since(self, first: int) -> History:
        """Return the history that is left when the log begins at ``first``."""
        left = (record for record in self.records if record["physical_offset"] >= first)
        history = History(left, repeats=self.repeats)
        kept = history.queues()
        for name, records in self.queues().items():
            if name not in kept:
                history.emptied[name] = records[-1]["queue_offset"] + 1
        return history

    def add(
        self, lines: Sequence[Json], results: Sequence[Json], writer: str, crc: bool = False
    ) -> None:
        """Note puts that ``writer`` (v4, v5 or firetrail) has acknowledged."""
        assert len(lines) == len(results)
        for line, result in zip(lines, results, strict=True):
            self.records += stored(line, result, writer, crc)

    def queues(self) -> dict[QueueName, list[Json]]:
        """Return the messages of each queue."""
        queues: dict[QueueName, list[Json]] = defaultdict(list)
        for record in self.records:
            if record["sys_flag"] & TRANSACTION in (0, COMMIT):
                queues[record["topic"], record["queue_id"]].append(record)
        return dict(queues)

    def by_key(self) -> dict[Key, list[Json]]:
        """Return the messages of each key of a topic, oldest first."""
        found: dict[Key, list[Json]] = defaultdict(list)
        for record in self.records:
            if record["sys_flag"] & TRANSACTION != ROLLBACK:
                for key in keys_of(record):
                    found[record["topic"], key].append(record)
        return dict(found)

    def ids(self) -> list[str]:
        """Return the offset message id of each record."""
        return [
            encode_message_id(parse_host(record["store_host"]), record["physical_offset"])
            for record in self.records
        ]

    def moments(self) -> list[Moment]:
        """Times in, between, before and after the messages of each queue."""
        moments = []
        for (topic, queue_id), records in self.queues().items():
            times = sorted({record["store_time"] for record in records})
            middles = [(a + b) // 2 for a, b in pairwise(times)]
            edges = [0, times[0] - 1, times[-1] + 1, times[-1] + 100_000]
            moments += [(topic, queue_id, at) for at in sorted({*times, *middles, *edges})]
        return moments

    # -- held against Firetrail ---------------------------------------------------------------

    def check_firetrail(self, store: Store, *, keys: bool = True) -> None:
        """Check that the store has exactly these messages, by log, queue, id, key and time."""
        store.wait_dispatched()
        assert without_crc(log_of(store)) == self.records
        seen = queues_of(store)
        self._check_queues(seen)
        for name, end in self.emptied.items():
            assert seen[name] == QueueView(end, end, []), name
        for record, message_id in zip(self.records, self.ids(), strict=True):
            found = store.by_id(message_id)
            assert found is not None and found.physical_offset == record["physical_offset"]
        for (topic, key), records in self.by_key().items() if keys else ():
            found_by_key = [described(record) for record in store.query(topic, key)]
            assert without_crc(found_by_key) == records[::-1][:QUERY_MAX], (topic, key)
        for topic, queue_id, at in self.moments():
            self._check_time(store, topic, queue_id, at)

    def _check_queues(self, seen: dict[QueueName, QueueView]) -> None:
        queues = self.queues()
        assert seen.keys() == queues.keys() | self.emptied.keys()
        for name, end in self.emptied.items():
            assert seen[name].max_offset == end, name
        for name, records in queues.items():
            first, last = records[0]["queue_offset"], records[-1]["queue_offset"]
            assert seen[name][:2] == (first, last + 1), name
            assert without_crc(seen[name].messages) == records, name
            assert [r["queue_offset"] for r in records] == list(range(first, last + 1)), name

    def _check_time(self, store: Store, topic: str, queue_id: int, at: int) -> None:
        for boundary in (Boundary.LOWER, Boundary.UPPER):
            found = store.offset_at(topic, queue_id, at, boundary)
            assert found == self.offset_at(topic, queue_id, at, boundary), (topic, at, boundary)
        nearest = store.offset_at(topic, queue_id, at, Boundary.NEAREST)
        records = self.queues()[topic, queue_id]
        assert self._distance(records, nearest, at) == min(
            abs(record["store_time"] - at) for record in records
        )

    @staticmethod
    def _distance(records: list[Json], offset: int, at: int) -> int:
        record = records[offset - records[0]["queue_offset"]]
        return abs(int(record["store_time"]) - at)

    def offset_at(self, topic: str, queue_id: int, at: int, boundary: Boundary) -> int:
        """Return the queue offset that 5.x gives for a time."""
        records = self.queues()[topic, queue_id]
        times = [record["store_time"] for record in records]
        first = int(records[0]["queue_offset"])
        if boundary is Boundary.LOWER:
            return first + bisect_left(times, at)
        return first + max(bisect_right(times, at) - 1, 0)

    # -- held against Java --------------------------------------------------------------------

    def questions(self, line: str, *, keys: bool = True) -> list[str]:
        """Commands of the peer whose answers :meth:`check_java` understands."""
        moments = [
            f"time --topic {topic} --queue {queue_id} --at {at}"
            f"{f' --boundary {boundary}' if boundary else ''}"
            for topic, queue_id, at in self.moments()
            for boundary in java_boundaries(line)
        ]
        by_key = [
            f"query --topic {topic} --key {key} --max {QUERY_MAX}"
            for topic, key in (self.by_key() if keys else ())
        ]
        by_id = [f"byid {message_id}" for message_id in self.ids()]
        return ["read --log", "read", *by_id, *by_key, *moments]

    def check_java(
        self, answers: list[list[Json]], line: str, sizes: Sizes, *, keys: bool = True
    ) -> None:
        """Do the same as :meth:`check_firetrail`, for answers of a Java store of ``line``."""
        left = iter(answers)
        assert without_crc(next(left)) == self.records
        self._check_queues(java_queues(next(left)))
        for record in self.records:
            assert without_crc(next(left)) == [record]
        for name, records in self.by_key().items() if keys else ():
            self._check_query(without_crc(next(left)), records, name)
        for moment in self.moments():
            found = [next(left)[0]["offset"] for _ in java_boundaries(line)]
            self.check_java_time(moment, found, line, sizes)
        assert not list(left)

    def check_java_time(self, moment: Moment, found: list[int], line: str, sizes: Sizes) -> None:
        """Check the offsets that Java gives for a time, one for each of its boundaries."""
        if line == "v5":
            assert found == [self.offset_at(*moment, each) for each in JAVA_BOUNDARIES], moment
        else:
            self._check_nearest_v4(*moment, found[0], sizes)

    def _check_query(self, found: list[Json], records: list[Json], name: Key) -> None:
        """Java answers oldest first. After an unclean stop it has some messages in the index twice:
        those that it indexes again because they are the last of a file."""
        once = [r for at, r in enumerate(found) if not at or found[at - 1] != r]
        twice = len(found) - len(once)
        assert twice == 0 or self.repeats, name
        assert once == records[len(records) - len(once) :], name
        assert len(found) == min(len(records) + twice, QUERY_MAX), name

    def _check_nearest_v4(
        self, topic: str, queue_id: int, at: int, found: int, sizes: Sizes
    ) -> None:
        """4.9 looks into one file only: the first that was changed at the time or later."""
        records = self.queues()[topic, queue_id]
        for file in _by_file(records, sizes):
            if file[-1]["store_time"] >= at or file[-1] is records[-1]:
                nearest = min(abs(record["store_time"] - at) for record in file)
                assert self._distance(records, found, at) == nearest, (topic, queue_id, at, found)
                return

    def date_queue_files(self, root: Path, sizes: Sizes) -> None:
        """Let every queue file have been changed when its last message was stored.

        4.9 looks times up by these dates, which the tests' copying and pace would blur.
        """
        for (topic, queue_id), records in self.queues().items():
            for file in _by_file(records, sizes):
                base = file[0]["queue_offset"] * 20 // sizes.queue * sizes.queue
                path = root / "consumequeue" / topic / str(queue_id) / f"{base:020d}"
                changed = file[-1]["store_time"] * 1_000_000
                os.utime(path, ns=(changed, changed))


def keys_of(record: Json) -> list[str]:
    """Return the keys by which the record is indexed, in order."""
    properties = record["properties"]
    unique = [properties["UNIQ_KEY"]] if "UNIQ_KEY" in properties else []
    return unique + [key for key in properties.get("KEYS", "").split(" ") if key]


def java_boundaries(line: str) -> tuple[str, ...]:
    """Return the boundaries that a line knows; 4.9 looks up the nearest message."""
    return tuple(each.value for each in JAVA_BOUNDARIES) if line == "v5" else ("",)


def _by_file(records: list[Json], sizes: Sizes) -> list[list[Json]]:
    """Return the messages of a queue by the file that their units are in."""
    files: dict[int, list[Json]] = defaultdict(list)
    for record in records:
        files[record["queue_offset"] * 20 // sizes.queue].append(record)
    return list(files.values())
