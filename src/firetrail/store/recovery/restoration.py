"""The restoration of what is missing: queues that lack files or units, and the index.

Theory of operation. Recovery repairs the *end* of queues and index, because a crash only affects
data that was not synced. It cannot see that a folder was deleted, a file was lost in a copy, or a
Java broker has left a queue behind. Consumers would then skip messages in silence, so each opening
also asks whether everything that must exist does. It must not read the whole log to answer: a log
has hundreds of gigabytes, and nearly always nothing is missing. So evidence is used in the order of
its cost, and the log is only read if something cheaper has pointed to a loss:

1. *Names and lengths* (``find_lost``, before recovery). The inventory lists queues and index files.
   If it is current, all of them must exist; a queue must also begin no later than listed, unless
   retention has moved the beginning of the log. Queues without inventory must at least be without
   a hole. A loss found here is left out of recovery, which could not continue such a queue.
2. *Gaps* (``note_gap``, during recovery). A message is to be appended whose queue ends before it.
   Either its topic was deleted and created again, or the units between are lost.
3. *Evidence* (``find_more``, after recovery, only if the inventory is not current). Samples of the
   log whose records lack units; positions of groups and delay levels beyond the ends of queues.
   Only such a position makes it search the whole log, for the queues in question.

Lost parts are derived from the whole log in one run (``derive``). A crash may come at any point::

    check that the log can be followed -> note in the inventory what is being rebuilt -> discard
    -> derive -> remove former topics -> sync            (the next inventory forgets the note)

Before the note nothing has changed. After it, the note itself counts as a loss at the next opening,
so that a half-built queue is never taken for a whole one.

Two things that look like a loss are none. A *deleted topic* still has records in the log; the list
of topics and the inventory say so (``Catalog``), and its queues are removed again if a run has
derived them. A *new generation* of a topic, deleted and created again, begins with number 0 in the
middle of the log; :mod:`firetrail.store.queues.generations` tells the generations apart. A queue
whose messages have all expired has no unit left, but its next message must not be number 0: the
inventory keeps its number.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Container
from pathlib import Path
from typing import NamedTuple

from firetrail.errors import StoreDamagedError
from firetrail.format.columns import Check, Stop
from firetrail.format.files.unit import decode_unit
from firetrail.format.light import is_light
from firetrail.format.names import OFFSET_MAX, TOPICS_FILE, is_queue
from firetrail.format.values.delay import DelayLevels
from firetrail.storage.parallel import map_in_threads
from firetrail.store.dispatch.derivation import Derivation, DerivedRun, DerivePolicy, Deriver
from firetrail.store.evidence.catalog import Catalog
from firetrail.store.evidence.evidence import Evidence, positions
from firetrail.store.evidence.inventory import Inventory, InventoryFile, index_sizes
from firetrail.store.evidence.removals import find_removal
from firetrail.store.log.progress_log import ProgressLog
from firetrail.store.problems import LOG_REMEDY
from firetrail.store.queues.consume_queue import gap_detail
from firetrail.store.queues.generations import QueueGenerations
from firetrail.store.queues.queue_table import QueueExtent, QueueKey, QueueTable
from firetrail.store.recovery.recovery import RecoveryReport
from firetrail.store.root.store_parts import StoreParts
from firetrail.text import some_of

_log = logging.getLogger(__name__)


class LostParts(NamedTuple):
    """The lost files and units that have to be derived again."""

    queues: frozenset[QueueKey] = frozenset()
    whole_index: bool = False

    def and_also(self, more: LostParts) -> LostParts:
        """Return the union of both."""
        return LostParts(self.queues | more.queues, self.whole_index or more.whole_index)

    def without(self, topics: Container[str]) -> LostParts:
        """Return this without the queues of some topics."""
        return self._replace(queues=frozenset(key for key in self.queues if key[0] not in topics))


class RecoveredRuns:
    """Selects the units that recovery derives from the end of the log.

    Queues that are derived from the whole log anyway are excluded. After a ``clean`` stop the
    queues contain the end of the log, except for topics that were deleted since. Those stay
    deleted, unlike in the Java store, which derives their last messages again.
    """

    def __init__(self, catalog: Catalog, lost: frozenset[QueueKey], *, clean: bool) -> None:
        self._catalog = catalog
        self._lost = lost
        self._clean = clean
        self._deleted: Counter[str] = Counter()

    @property
    def may_leave_out(self) -> bool:
        """Whether some units may be excluded."""
        return self._clean or bool(self._lost or self._catalog.batches)

    def wants(self, run: DerivedRun) -> bool:
        """Return whether a run of units is derived."""
        if run.topic in self._catalog.batches or run[:2] in self._lost:
            return False
        if self._clean and self._catalog.is_deleted(run.topic, run.newest):
            self._deleted[run.topic] += run.length
            return False
        return True

    def finish(self, root: Path, queues: QueueTable, generations: QueueGenerations) -> None:
        """Remove queues of former topics that were derived, and log the excluded messages."""
        for key in generations.former(self._catalog):
            queues.remove_queue(*key)
        if self._deleted:
            _log.warning(
                "%s: %d messages at the end of the log were not derived again, because %s does not "
                "list their topics, which were deleted: %s",
                root,
                self._deleted.total(),
                TOPICS_FILE,
                some_of(sorted(self._deleted)),
            )


class Restoration:
    """Finds missing queues and index files, and derives them from the log."""

    def __init__(self, parts: StoreParts, inventory: InventoryFile, catalog: Catalog) -> None:
        self._system = parts.system
        self._root = parts.root
        self._log = parts.log.queue
        self._queues = parts.queues
        self._index = parts.index
        self._inventory = inventory
        self._catalog = catalog
        self._known = inventory.noted
        self._had_index = bool(index_sizes(parts.system, parts.root))
        self._had_queues = parts.queues.count > 0
        self._gaps: set[QueueKey] = set()

    # -- before recovery: what can be seen from names and lengths ------------------------------

    def find_lost(self, *, listed: bool) -> LostParts:
        """Return the queues that lack files or were being derived again, without opening one.

        If the inventory is valid (``listed``), everything that it names must exist.
        """
        known = self._known
        if not self._log.segments:
            return LostParts()
        queues, whole_index = set(known.rebuilding), known.rebuilding_index
        expected = self._expected(known) if listed else {}
        keys = list(dict.fromkeys((*self._queues.pairs(), *expected)))
        found = map_in_threads(
            self._queues.system.threads,
            lambda key: self._queues.is_complete(*key, expected.get(key)),
            keys,
        )
        queues.update(key for key, complete in zip(keys, found, strict=True) if not complete)
        whole_index |= listed and self._lacks_index_files(known)
        return LostParts(frozenset(queues), whole_index and self._index is not None)

    def _expected(self, known: Inventory) -> dict[QueueKey, QueueExtent]:
        """Return the content that queues must have, as far as retention cannot have removed it."""
        if self._log.min_offset == known.log_begin:
            return dict(known.queues)
        return {key: QueueExtent(OFFSET_MAX, extent.end) for key, extent in known.queues.items()}

    def _lacks_index_files(self, known: Inventory) -> bool:
        sizes = index_sizes(self._system, self._root)
        log_begin = self._log.min_offset
        return any(
            sizes.get(name) != extent.size
            for name, extent in known.index_files.items()
            if extent.end_offset >= log_begin or name in sizes
        )

    # -- during and after recovery: what the log shows -----------------------------------------

    def note_gap(self, run: DerivedRun) -> bool:
        """Return whether a queue lacks messages before those of ``run`` that it must have."""
        is_gap = self._is_missed(run.topic, decode_unit(run.units).physical_offset)
        if is_gap:
            self._gaps.add(run[:2])
        return is_gap

    def _is_missed(self, topic: str, offset: int) -> bool:
        """Return whether a record must be in a queue: its topic was not deleted since."""
        is_removed = offset < self._known.removed.get(topic, 0)
        return not is_removed and not self._catalog.is_deleted(topic, offset)

    def find_more(self, report: RecoveryReport, delays: DelayLevels) -> LostParts:
        """Return the other gaps in queues that were brought up to the end of the log."""
        if not self._log.segments:
            return LostParts()
        evidence = Evidence(self._log, report.end, self._queues, delays, self._is_missed)
        queues = self._gaps | evidence.incomplete()
        begin = self._log.min_offset
        if not self._had_queues and report.scanned_from > begin:
            _log.warning("%s: there are no queues; searching the log for some", self._root)
            queues |= evidence.confirmed(None)
        suspects = {key for key in self._overrun() - queues if self._catalog.may_have(key[0])}
        if suspects:
            _log.warning(
                "%s: a group or delay level is beyond the end of %s; searching the log for the "
                "messages",
                self._root,
                _named(suspects),
            )
            queues |= evidence.confirmed(suspects)
        lacks_index = not self._had_index and evidence.has_keys_before(report.scanned_from)
        return LostParts(frozenset(queues), lacks_index and self._index is not None)

    def _overrun(self) -> set[QueueKey]:
        """Return the queues that end before the position of a group or a delay level."""
        return {
            key
            for key, offset in positions(self._system, self._root).items()
            if is_queue(*key)
            and not is_light(key[0])
            and key not in self._queues.lost
            and not self._queues.reaches(*key, offset)
        }

    def warn_of_removal(self, *, clean: bool) -> None:
        """Warn if another program removed the first log files; the inventory must be valid."""

        def min_offset(key: QueueKey, begin: int) -> int | None:
            queue = self._queues.find(*key)
            return queue.min_offset(begin) if queue is not None else None

        if self._log.segments:
            begin = self._log.min_offset
            found = find_removal(
                self._system, self._root, self._known, begin, min_offset, clean=clean
            )
            if found is not None:
                _log.warning("%s: %s", self._root, found)

    # -- deriving ------------------------------------------------------------------------------

    def derive(self, lost: LostParts, policy: DerivePolicy, end: int) -> None:
        """Derive the lost parts from the whole log, up to ``end``, and sync them.

        Raises StoreDamagedError, before anything is changed, if the log cannot be followed.
        """
        if not lost.queues and not lost.whole_index:
            return
        self._announce(lost)
        self._check_log(lost, policy.delays, end)
        self._inventory.note_rebuilding(tuple(lost.queues), lost.whole_index)
        for key in lost.queues:
            self._queues.discard(*key)
        index = self._index if lost.whole_index else None
        if index is not None:
            index.clear()
        topics = {topic for topic, _ in lost.queues}  # their other queues do not change
        policy = DerivePolicy(
            policy.delays, policy.light, policy.tags, wants=lambda run: run.topic in topics
        )
        rebuild = Deriver(self._queues, index, policy)
        start = self._log.min_offset
        progress = ProgressLog(self._system.clock, "rebuilding queues or index", start, end)
        for step in rebuild.steps(list(self._log.segments), start, end, Check.NONE):
            progress.note(step.segment.base + step.position)
        former = set(rebuild.generations.former(self._catalog))
        for key in former:
            self._queues.remove_queue(*key)
        self._keep_numbers(lost.queues - former)
        self._queues.continue_numbering()
        self._queues.flush()
        if index is not None and index.files:
            index.flush()
        _log.warning("%s: the missing files were rebuilt from the log", self._root)

    def _keep_numbers(self, keys: frozenset[QueueKey]) -> None:
        """Let queues without any message left in the log continue with the number they had."""
        for key in keys:
            extent = self._known.queues.get(key)
            queue = self._queues.open(*key)
            if extent is not None and not queue.max_offset:
                queue.append(extent.end, memoryview(b""))
                self._queues.dirty.add(queue)

    def _check_log(self, lost: LostParts, delays: DelayLevels, end: int) -> None:
        """Raise StoreDamagedError unless the lost parts can be derived from the log up to
        ``end``."""
        policy = DerivePolicy(delays, wants=lambda run: run[:2] in lost.queues)
        derivation = Derivation(policy, keys=False)
        numbers: dict[QueueKey, int] = {}
        begin = self._log.min_offset
        for step in derivation.derive_all(list(self._log.segments), begin, end, Check.NONE):
            for run in step.runs:
                number = numbers.get(run[:2], run.offset)
                if run.offset > number:
                    raise self._damage(run.first, gap_detail(*run[:2], number, run.offset))
                numbers[run[:2]] = run.offset + run.length
            if step.stop is Stop.EMPTY or step.stop.is_damage:
                where = step.segment.base + step.position
                raise self._damage(where, f"the log cannot be read from here on ({step.stop.name})")

    def _damage(self, where: int, detail: str) -> StoreDamagedError:
        segment = self._log.find(where)
        assert segment is not None
        return StoreDamagedError(
            str(segment.path),
            where - segment.base,
            where,
            f"queues or index files are missing and cannot be rebuilt from the log: {detail}",
            LOG_REMEDY,
        )

    def _announce(self, lost: LostParts) -> None:
        if lost.queues:
            _log.warning(
                "%s: %s missing files or units and will be rebuilt from the log: %s",
                self._root,
                "1 queue is" if len(lost.queues) == 1 else f"{len(lost.queues)} queues are",
                _named(lost.queues),
            )
        if lost.whole_index:
            _log.warning(
                "%s: index files are missing or too short; rebuilding the index from the log",
                self._root,
            )


def _named(queues: Collection[QueueKey]) -> str:
    return some_of([f"{topic}/{queue_id}" for topic, queue_id in sorted(queues)])
