"""Which queue and index files a clean stop has left, so that the next start misses them.

A queue without files looks like one that never had a message: its numbers would begin at 0 again,
and nobody would find the messages that it had. ``firetrail.inventory`` says what must be there::

    {"durable_offset": …, "queues": {topic: {queue id: [first byte, units]}},
     "index_files": [names], "rebuilding": [[topic, queue id], …], "rebuilding_index": false}

It counts if the watermark says that the store was closed at that offset. A start compares names
and reads 20 bytes of each queue. Whatever is missing is derived from the log again; while that goes
on, the file says so, and the next start begins anew if this one is stopped.

A store that Java has closed has no such list, or an old one: Java may have deleted topics and
expired files since it was written. There, records at the beginnings of the log's newest files and
at its end say what their queues must have.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from firetrail.errors import FormatError, StoreDamagedError
from firetrail.format import columns as col
from firetrail.format import config_json, layout
from firetrail.format.columns import Check, Columns, Stop
from firetrail.format.javahash import java_text
from firetrail.format.kernels.scan import scan
from firetrail.format.names import CONFIG, INDEX, INVENTORY, TOPICS_JSON, is_queue, parse_index_name
from firetrail.storage.queue import SegmentQueue
from firetrail.storage.segment import Segment
from firetrail.storage.system import NO_SPACE, System
from firetrail.store.deriving import Deriver
from firetrail.store.indexes import Index
from firetrail.store.logscan import find_record
from firetrail.store.problems import LOG_REMEDY
from firetrail.store.progress import Progress
from firetrail.store.queues import Extent, QueueKey, QueueTable
from firetrail.store.watermark import Watermark

_LOGGER = logging.getLogger(__name__)
SAMPLED_FILES = 32
"""Files of the log, the newest ones, whose first record is looked at."""
SAMPLED_BYTES = 1 << 20
SAMPLED_RECORDS = 4096
"""No more than this of the end of the log is looked at."""
NAMED_QUEUES = 5
"""So many queues are named in a line of the log; the others are counted."""
_NEVER = -1
_WITH_UNITS = (layout.TRANSACTION_NONE, layout.TRANSACTION_COMMIT)


class Inventory(NamedTuple):
    """What must be there."""

    durable_offset: int = _NEVER
    queues: Mapping[QueueKey, Extent] = {}
    index_files: tuple[str, ...] = ()
    rebuilding: tuple[QueueKey, ...] = ()
    rebuilding_index: bool = False


def read_inventory(system: System, root: Path) -> Inventory:
    """What was written last; an empty one if there is nothing that can be read."""
    path = root / INVENTORY
    try:
        content = json.loads(system.files.read(path))
        return Inventory(
            int(content["durable_offset"]),
            {
                (topic, int(queue_id)): Extent(int(first), int(end))
                for topic, queues in content["queues"].items()
                for queue_id, (first, end) in queues.items()
            },
            tuple(map(str, content["index_files"])),
            tuple((str(topic), int(queue_id)) for topic, queue_id in content["rebuilding"]),
            bool(content["rebuilding_index"]),
        )
    except FileNotFoundError:
        return Inventory()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _LOGGER.warning("%s cannot be read and is ignored: %r", path, error)
        return Inventory()


def _write_inventory(system: System, root: Path, inventory: Inventory) -> None:
    queues: dict[str, dict[int, Extent]] = {}
    for (topic, queue_id), extent in inventory.queues.items():
        queues.setdefault(topic, {})[queue_id] = extent
    content = inventory._asdict() | {"queues": queues}
    system.files.replace(root / INVENTORY, json.dumps(content).encode())


def note_inventory(system: System, root: Path, durable_offset: int, queues: QueueTable) -> None:
    """Note durably what is there when a store is closed with its log ending at the offset.

    On a full disk the list is given up: it is of use only if something is lost later.
    """
    found = Inventory(durable_offset, queues.extents(), _index_names(system, root))
    if found == read_inventory(system, root):
        return
    try:
        _write_inventory(system, root, found)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        _LOGGER.warning("no space for %s: %s", root / INVENTORY, error)
        if (root / INVENTORY).exists():
            system.files.remove(root / INVENTORY)


def _index_names(system: System, root: Path) -> tuple[str, ...]:
    names = system.files.names(root / INDEX)
    return tuple(name for name in names if parse_index_name(name) is not None)


class Lost(NamedTuple):
    """What is to be derived anew."""

    queues: frozenset[QueueKey]
    whole_index: bool

    def lacks(self, key: QueueKey) -> bool:
        """Whether a queue is not among them."""
        return key not in self.queues

    def without(self, topics: Container[str]) -> Lost:
        """The same but for the queues of some topics."""
        return self._replace(queues=frozenset(key for key in self.queues if key[0] not in topics))


class Restoration:
    """Finds queues and index files that are missing, and derives them from the log."""

    def __init__(
        self,
        system: System,
        root: Path,
        log: SegmentQueue,
        queues: QueueTable,
        index: Index | None,
    ) -> None:
        self._system = system
        self._root = root
        self._log = log
        self._queues = queues
        self._index = index

    def find_lost(self, clean: bool, watermark: Watermark | None, *, closed_by_java: bool) -> Lost:
        """What is missing in a store that was closed, and what was being derived anew."""
        known = read_inventory(self._system, self._root)
        queues, index = set(known.rebuilding), known.rebuilding_index
        if clean and self._log.segments and self._queues.pairs():
            if (
                not closed_by_java
                and watermark is not None
                and watermark.clean
                and watermark.durable_offset == known.durable_offset
            ):
                expected = self._queues.told = known.queues
                index |= not set(known.index_files) <= set(_index_names(self._system, self._root))
            else:
                expected = self._sampled()
            queues.update(
                k for k, extent in expected.items() if not self._queues.covers(*k, extent)
            )
        return Lost(frozenset(queues), index and self._index is not None)

    def _sampled(self) -> dict[QueueKey, Extent]:
        """What some records of the log say about their queues, if the broker knows their topic."""
        topics = _known_topics(self._system, self._root)
        found: dict[QueueKey, Extent] = {}
        for segment, columns, rows in _samples(self._log):
            for row in range(rows):
                cells = columns.table[row :: columns.capacity]
                start = cells[col.TOPIC_AT]
                topic = java_text(bytes(segment.view[start : start + cells[col.TOPIC_SIZE]]))
                counted = cells[col.SYS_FLAG] & layout.TRANSACTION_MASK in _WITH_UNITS
                key, number = (topic, cells[col.QUEUE_ID]), cells[col.QUEUE_OFFSET]
                if counted and is_queue(*key) and (topics is None or topic in topics):
                    first, end = found.get(key, (number * layout.UNIT.size, 0))
                    found[key] = Extent(first, max(end, number + 1))
        return found

    def derive(self, lost: Lost, deriver: Deriver, end: int) -> None:
        """Derive what is lost from the whole log, up to ``end``; it is on disk then.

        Raises StoreDamagedError if the log cannot be followed, and has changed nothing then.
        """
        if not lost.queues and not lost.whole_index:
            return
        self._announce(lost)
        self._check_log(end)
        note = Inventory(rebuilding=tuple(lost.queues), rebuilding_index=lost.whole_index)
        _write_inventory(self._system, self._root, note)
        for key in lost.queues:
            self._queues.discard(*key)
        index = self._index if lost.whole_index else None
        if index is not None:
            index.clear()
        anew = Deriver(self._queues, index, deriver.delays, tags=deriver.tags, light=deriver.light)
        anew.wants, anew.anew = lost.queues.__contains__, True
        start = self._log.min_offset
        progress = Progress(self._system.clock, "deriving queues or index anew", start, end)
        for step in anew.steps(list(self._log.segments), start, end, Check.NONE):
            progress.note(step.segment.base + step.position)
        self._queues.number_on()
        self._queues.flush()
        if index is not None and index.files:
            index.flush()
        _write_inventory(self._system, self._root, Inventory())
        _LOGGER.warning("what was missing has been derived from the log")

    def _check_log(self, end: int) -> None:
        """StoreDamagedError unless one record follows the other up to ``end``."""
        columns = Columns(SAMPLED_RECORDS)
        for segment in self._log.segments:
            at, limit, stop = 0, min(end - segment.base, segment.size), Stop.FULL
            while stop is Stop.FULL and at < limit:
                _, at, code = scan(segment.view, at, limit, segment.base, columns.table, Check.NONE)
                stop = Stop(code)
            if at < limit and stop is not Stop.BLANK:
                raise StoreDamagedError(
                    str(segment.path),
                    at,
                    segment.base + at,
                    f"queues or index files are missing, and the log cannot be followed beyond "
                    f"this place ({stop.name}) to derive them again",
                    LOG_REMEDY,
                )

    def _announce(self, lost: Lost) -> None:
        if lost.queues:
            named = [f"{topic}/{queue_id}" for topic, queue_id in sorted(lost.queues)]
            more = f" and {len(named) - NAMED_QUEUES} more" if len(named) > NAMED_QUEUES else ""
            _LOGGER.warning(
                "%s: files of %d queues are missing that were there or follow from the log, and "
                "are derived again from the whole log: %s%s",
                self._root,
                len(named),
                ", ".join(named[:NAMED_QUEUES]),
                more,
            )
        if lost.whole_index:
            _LOGGER.warning(
                "%s: index files are missing; the index is derived again from the whole log",
                self._root,
            )


def _samples(log: SegmentQueue) -> Iterator[tuple[Segment, Columns, int]]:
    """Some records of the log, as rows of columns."""
    one, many = Columns(1), Columns(SAMPLED_RECORDS)
    for segment in log.segments[-SAMPLED_FILES:]:
        yield segment, one, _scan(segment, 0, one)
    last = next((segment for segment in reversed(log.segments) if segment.data_end), None)
    if last is not None:
        at = find_record(last, max(last.data_end - SAMPLED_BYTES, 0))
        if at is not None:
            yield last, many, _scan(last, at, many)


def _scan(segment: Segment, at: int, columns: Columns) -> int:
    limit = max(segment.data_end, at)
    return scan(segment.view, at, limit, segment.base, columns.table, Check.NONE)[0]


def _known_topics(system: System, root: Path) -> frozenset[str] | None:
    """The topics in the broker's ``topics.json``; None if there is none to go by."""
    try:
        content = config_json.loads(system.files.read(root / CONFIG / TOPICS_JSON))
        return frozenset(map(str, content["topicConfigTable"]))
    except (FileNotFoundError, FormatError, KeyError, TypeError):
        return None
