"""Evidence from the log and the broker's files of units and entries that must exist.

This is for stores without a reliable list of their files: one that was never closed, one that a
Java broker has written, or one that got new queues just before it was killed. A start samples a
fixed number of records, for a log of any size, and reads the positions of consumer groups.
Only if a position lies beyond its queue does it read the whole log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from firetrail.errors import FormatError
from firetrail.format.columns import Check
from firetrail.format.files import config_json
from firetrail.format.files.unit import PRE_BLANK, UNIT_SIZE, decode_unit
from firetrail.format.light import is_light
from firetrail.format.names import (
    CONFIG,
    CONSUMER_OFFSETS,
    DELAY_OFFSETS,
    LMQ_OFFSETS,
    SCHEDULE_TOPIC,
    is_queue,
    parse_group_key,
)
from firetrail.format.values.delay import DelayLevels
from firetrail.storage.segment_queue import SegmentQueue
from firetrail.store.dispatch.derivation import Derivation, DerivedRun, DerivePolicy, Step
from firetrail.store.log.segment_scan import find_record
from firetrail.store.queues.queue_table import QueueKey, QueueTable
from firetrail.system import System

SAMPLED_FILES = 32
"""Number of newest files of the log whose first records are sampled."""
SAMPLED_ROWS = 16
"""Number of records that are sampled at the beginning of each file."""
SAMPLED_BYTES = 1 << 20
"""Maximum number of bytes that are sampled at the beginning and at the end of the log."""

_log = logging.getLogger(__name__)


class Evidence:
    """Compares queues with the log, after they were brought up to its end."""

    def __init__(
        self,
        log: SegmentQueue,
        end: int,
        queues: QueueTable,
        delays: DelayLevels,
        is_missed: Callable[[str, int], bool],
    ) -> None:
        """``is_missed`` returns whether a record of a topic at a physical offset must be in a
        queue."""
        self._log = log
        self._end = end
        self._queues = queues
        self._policy = DerivePolicy(delays)
        self._is_missed = is_missed
        self._sampled = list(self._samples())

    def incomplete(self) -> set[QueueKey]:
        """Return the queues that lack the unit of a sampled record."""
        return {run[:2] for step in self._sampled for run in step.runs if self._lacks(run)}

    def has_keys_before(self, offset: int) -> bool:
        """Return whether a sampled record before ``offset`` has keys."""
        derivation = Derivation(self._policy, rows=SAMPLED_ROWS)
        segments = self._log.segments
        for segment in (segments[0], *segments[-SAMPLED_FILES:]):
            limit = min(offset - segment.base, segment.size)
            if limit > 0 and derivation.derive(segment, 0, limit, Check.NONE).entries:
                return True
        return False

    def confirmed(self, suspects: set[QueueKey] | None) -> set[QueueKey]:
        """Read the whole log and return the suspects that lack a unit of any record.

        All queues are suspects if ``suspects`` is None.
        """
        found: set[QueueKey] = set()

        def wants(run: DerivedRun) -> bool:
            return run[:2] not in found and (suspects is None or run[:2] in suspects)

        derivation = Derivation(replace(self._policy, wants=wants), keys=False)
        begin = self._log.min_offset
        for step in derivation.derive_all(list(self._log.segments), begin, self._end, Check.NONE):
            found.update(run[:2] for run in step.runs if self._lacks(run))
            if suspects is not None and len(found) == len(suspects):
                break
        return found

    def _lacks(self, run: DerivedRun) -> bool:
        """Return whether a queue lacks the first or the last unit of a run.

        A unit of a later record counts as well: then the topic was deleted and created again.
        """
        if not is_queue(*run[:2]) or is_light(run.topic) or run[:2] in self._queues.lost:
            return False
        for at in {0, len(run.units) - UNIT_SIZE}:
            offset = decode_unit(run.units, at).physical_offset
            unit = self._queues.unit(*run[:2], run.offset + at // UNIT_SIZE)
            has_unit = unit is not None and unit != PRE_BLANK and unit.physical_offset >= offset
            if not has_unit and self._is_missed(run.topic, offset):
                return True
        return False

    def _samples(self) -> Iterator[Step]:
        """Yield the units and entries derived from the sampled records of the log."""
        few = Derivation(self._policy, rows=SAMPLED_ROWS)
        many = Derivation(self._policy)
        segments = self._log.segments
        for segment in segments[-SAMPLED_FILES:]:
            limit = min(self._end - segment.base, segment.size)
            if limit > 0:
                yield few.derive(segment, 0, limit, Check.NONE)
        limit = min(self._end - self._log.min_offset, SAMPLED_BYTES, self._log.segment_size)
        if limit > 0:
            yield many.derive(segments[0], 0, limit, Check.NONE)
        last = self._log.find(self._end - 1)
        if last is not None:
            limit = self._end - last.base
            at = find_record(last, max(limit - SAMPLED_BYTES, 0))
            if at is not None and at < limit:
                yield many.derive(last, at, limit, Check.NONE)


def positions(system: System, root: Path) -> dict[QueueKey, int]:
    """Return the furthest position of any consumer group or delay level for each queue."""
    found: dict[QueueKey, int] = {}
    for key, _, offset in group_positions(system, root):
        found[key] = max(offset, found.get(key, 0))
    try:
        delays = _table(system, root, DELAY_OFFSETS, "offsetTable") or {}
        for level, offset in delays.items():
            found[SCHEDULE_TOPIC, int(level) - 1] = int(offset)
    except (ValueError, TypeError, AttributeError):
        _log.debug("ignoring delay positions that cannot be parsed", exc_info=True)
    return found


def group_positions(system: System, root: Path) -> list[tuple[QueueKey, str, int]]:
    """Return the positions of consumer groups: queue, group and queue offset."""
    found: list[tuple[QueueKey, str, int]] = []
    try:
        for file in (CONSUMER_OFFSETS, LMQ_OFFSETS):
            for name, queues in (_table(system, root, file, "offsetTable") or {}).items():
                topic, group = parse_group_key(str(name))
                for queue_id, offset in queues.items():
                    found.append(((topic, int(queue_id)), group, int(offset)))
    except (ValueError, TypeError, AttributeError):
        _log.debug("ignoring consumer positions that cannot be parsed", exc_info=True)
    return found


def _table(system: System, root: Path, name: str, member: str) -> dict[Any, Any] | None:
    """Return a table in a file of the broker or in its backup; None if neither is readable."""
    for path in (root / CONFIG / name, root / CONFIG / f"{name}.bak"):
        try:
            table = config_json.loads(system.files.read(path))[member]
        except (FileNotFoundError, FormatError, KeyError, TypeError):
            continue
        if isinstance(table, dict):
            return table
    return None
