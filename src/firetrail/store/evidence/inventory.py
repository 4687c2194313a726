"""The list of a store's files, from which the next start knows which ones are missing.

A queue without files looks like one that never had a message: its numbers would begin at 0 again,
and its messages would never be found. ``firetrail.inventory`` says which files must exist::

    {"version": 2, "durable_offset": …, "log_begin": …,
     "queues": {topic: {queue id: [first byte, units]}},
     "index_files": {name: [bytes, physical offset of its last record]},
     "config": [names], "removed": {topic: log offset},
     "rebuilding": [[topic, queue id], …], "rebuilding_index": false, "retained_from": …,
     "sizes": [bytes of a queue file, slots and entries of an index file]}

It is written at a clean stop, at a start without a valid one, and, at most twice a minute, while
the store is open and has queues or index files that it does not list. New files of the broker are
listed within seconds. Everything that it lists is
on disk before it is written, so that a crash removes none of it. A listed queue only grows, except
that retention removes files at its beginning. ``removed`` names deleted topics, whose records
before that offset are not missed. While files are derived again, ``rebuilding`` says so; if that is
interrupted, the next start begins it again. Before retention deletes log files, ``retained_from``
says where the log will begin. ``sizes`` is for repairs of a store that lost all its queues.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from firetrail.format.names import (
    CONFIG,
    CONSUMER_OFFSETS,
    DELAY_OFFSETS,
    GROUPS_JSON,
    INDEX,
    INVENTORY,
    LMQ_OFFSETS,
    OFFSET_MAX,
    TOPICS_JSON,
    parse_index_name,
)
from firetrail.storage.segment_queue import SegmentQueue
from firetrail.store.index.index import Index
from firetrail.store.queues.queue_table import QueueExtent, QueueKey, QueueTable
from firetrail.store.root.watermark import Watermark
from firetrail.system import NO_SPACE, System

NOTE_INTERVAL_S = 30.0
"""The pause between two lists of new queues and index files; its cost grows with the queues."""
CONFIG_FILES = {
    TOPICS_JSON: "topics have default settings, and topics without messages are lost",
    GROUPS_JSON: "consumer groups have default settings",
    CONSUMER_OFFSETS: "every consumer group starts over, where its consumers choose",
    LMQ_OFFSETS: "consumer groups continue where consumerOffset.json says, or start over",
    DELAY_OFFSETS: "delayed messages that are still in the log are delivered again",
}
"""The broker's files whose loss is noticed, and the effect of starting a broker without them."""
_VERSION = 2
_NEVER = -1
_log = logging.getLogger(__name__)


class IndexExtent(NamedTuple):
    """Length of an index file, and the physical offset of the last record in it."""

    size: int
    end_offset: int


class FileSizes(NamedTuple):
    """The sizes that new files of a store have; 0 if unknown."""

    queue_file: int = 0
    index_slots: int = 0
    index_entries: int = 0


class ListedQueues(NamedTuple):
    """The queues of a store, as far as an inventory proves them."""

    keys: frozenset[QueueKey]
    """Queues that must exist."""
    complete_to: int
    """Every queue with messages in the log before this physical offset is listed."""
    removed: Mapping[str, int]
    """Deleted topics, and the physical offset after their last message."""


class Inventory(NamedTuple):
    """The files that must exist, and the extent of their content."""

    durable_offset: int = _NEVER
    """The end of the log on disk when the list was written, from which the listed files follow."""
    log_begin: int = 0
    queues: Mapping[QueueKey, QueueExtent] = {}
    index_files: Mapping[str, IndexExtent] = {}
    config: tuple[str, ...] = ()
    removed: Mapping[str, int] = {}
    rebuilding: tuple[QueueKey, ...] = ()
    rebuilding_index: bool = False
    retained_from: int = 0
    """The start of the log after the last deletion by retention."""
    sizes: FileSizes = FileSizes()

    @property
    def is_rebuilding(self) -> bool:
        """Whether files were being derived again when the store was left."""
        return bool(self.rebuilding) or self.rebuilding_index

    def is_current(self, clean: bool, watermark: Watermark | None) -> bool:
        """Return whether this describes the store as it was left, if Firetrail wrote it last."""
        if watermark is None or self.durable_offset == _NEVER:
            return False
        if clean:
            return watermark.clean and watermark.durable_offset == self.durable_offset
        return self.durable_offset <= watermark.durable_offset

    def listed_queues(self, *, listed: bool, closed: bool) -> ListedQueues:
        """Return the queues that this proves.

        Args:
            listed: Whether the inventory describes the store as it was left.
            closed: Whether the store was closed since; then the inventory is complete.
        """
        # An interrupted rebuild leaves an inventory that is not valid but lists what must exist.
        keys = frozenset(self.queues if listed or self.is_rebuilding else ())
        return ListedQueues(keys, self.durable_offset if listed and closed else 0, self.removed)

    def without(self, topic: str, end: int) -> Inventory:
        """Return the inventory after a topic is deleted whose messages are before ``end``."""
        queues = {key: extent for key, extent in self.queues.items() if key[0] != topic}
        return self._replace(queues=queues, removed={**self.removed, topic: end})


def take_stock(
    system: System, root: Path, log_begin: int, queues: QueueTable, index: Index | None
) -> Inventory:
    """Return the inventory of the files that exist; no topic may be removed during the call."""
    files = index.files if index is not None else ()
    names = set(system.files.names(root / CONFIG))
    return Inventory(
        log_begin=log_begin,
        queues=queues.extents(),
        index_files={
            file.segment.path.name: IndexExtent(file.segment.size, file.end[1])
            for file in files
            if file.header.next_entry > 1  # a crash may remove a file without entries
        },
        config=tuple(name for name in CONFIG_FILES if name in names),
        sizes=FileSizes(queues.file_size, *(index.geometry if index is not None else ())),
    )


def index_sizes(system: System, root: Path) -> dict[str, int]:
    """Return the existing index files and their lengths."""
    sizes = system.files.sizes(root / INDEX)
    return {name: size for name, size in sizes.items() if parse_index_name(name) is not None}


def read_inventory(system: System, root: Path) -> Inventory:
    """Return the inventory that was written last; an empty one if it cannot be read."""
    path = root / INVENTORY
    try:
        return _decoded(system.files.read(path))
    except FileNotFoundError:
        return Inventory()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _log.warning(
            "%s cannot be read (%s) and is ignored; missing files are noticed only as far "
            "as the log shows them, but 'firetrail fsck' finds them all",
            path,
            error.strerror if isinstance(error, OSError) else "it is damaged",
        )
        return Inventory()


def _decoded(content: bytes) -> Inventory:
    value = json.loads(content)
    if value.get("version") != _VERSION:
        return Inventory()  # of an earlier release, which recorded less
    return Inventory(
        durable_offset=int(value["durable_offset"]),
        log_begin=int(value["log_begin"]),
        queues={
            (topic, int(queue_id)): QueueExtent(int(first), int(end))
            for topic, queues in value["queues"].items()
            for queue_id, (first, end) in queues.items()
        },
        index_files={
            str(name): IndexExtent(int(size), int(end_offset))
            for name, (size, end_offset) in value["index_files"].items()
        },
        config=tuple(map(str, value["config"])),
        removed={str(topic): int(offset) for topic, offset in value["removed"].items()},
        rebuilding=tuple((str(topic), int(queue_id)) for topic, queue_id in value["rebuilding"]),
        rebuilding_index=bool(value["rebuilding_index"]),
        retained_from=int(
            value.get("retained_from", OFFSET_MAX)
        ),  # earlier releases did not record it
        sizes=FileSizes(*map(int, value.get("sizes", ()))),
    )


def write_inventory(system: System, root: Path, inventory: Inventory) -> None:
    """Replace the file durably."""
    queues: dict[str, dict[int, QueueExtent]] = {}
    for (topic, queue_id), extent in inventory.queues.items():
        queues.setdefault(topic, {})[queue_id] = extent
    content = {"version": _VERSION} | inventory._asdict() | {"queues": queues}
    system.files.replace(root / INVENTORY, json.dumps(content).encode())


class InventoryFile:
    """The inventory of a store that is open for writing."""

    def __init__(self, system: System, root: Path) -> None:
        self._system = system
        self._root = root
        self.noted = read_inventory(system, root)
        """The content of the file."""
        self._stock: Inventory | None = None  # to be written once everything in it is on disk
        self._guard = system.threads.lock()  # protects both, and the file
        self._counted: tuple[int, ...] = ()  # queues and files of each kind when _stock was taken
        self._last_s = system.clock.monotonic()

    def write(self, inventory: Inventory) -> None:
        """Record durably which files exist; all of them are on disk.

        On a full disk the list is removed: it matters only if something is lost later.
        """
        with self._guard:
            self._write(inventory)

    def _write(self, inventory: Inventory) -> None:
        self._stock = None
        removed = {
            topic: offset
            for topic, offset in (*self.noted.removed.items(), *inventory.removed.items())
            if offset > inventory.log_begin
        }
        inventory = inventory._replace(removed=removed)
        if inventory == self.noted:
            return
        try:
            write_inventory(self._system, self._root, inventory)
            self.noted = inventory
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            _log.warning("no space for %s, which is removed: %s", self._root / INVENTORY, error)
            self._give_up()

    def _amend(self, inventory: Inventory) -> None:
        """Record other marks and names for the same queues and index files, if these are known."""
        stock = self._stock
        if self.noted.durable_offset != _NEVER:
            self._write(inventory)
        self._stock = stock and stock._replace(
            retained_from=inventory.retained_from, config=inventory.config
        )

    def _note_config(self) -> None:
        """Record files of the broker that are new, at once: there are only a few."""
        names = set(self._system.files.names(self._root / CONFIG))
        names.update(self.noted.config)
        config = tuple(name for name in CONFIG_FILES if name in names)
        if config != self.noted.config:
            self._amend(self.noted._replace(config=config))

    def _give_up(self) -> None:
        self.noted = Inventory()
        self._counted = ()
        if (self._root / INVENTORY).exists():
            self._system.files.remove(self._root / INVENTORY)

    def distrust(self) -> None:
        """Ignore all entries but those about a rebuild, because a Java broker has written the
        store."""
        rebuilding, index = self.noted.rebuilding, self.noted.rebuilding_index
        self.noted = Inventory(rebuilding=rebuilding, rebuilding_index=index)

    def note_rebuilding(self, queues: tuple[QueueKey, ...], index: bool) -> None:
        """Record durably which files will be derived again; until then the list is not valid."""
        with self._guard:
            self.noted = self.noted._replace(
                durable_offset=_NEVER, rebuilding=queues, rebuilding_index=index
            )
            write_inventory(self._system, self._root, self.noted)

    def note_new(
        self, queues: QueueTable, index: Index | None, log: SegmentQueue, settled: int
    ) -> None:
        """Record new files if there are any and it is time. No topic may be removed in between.

        The list is written once ``settled``, the position up to which log, queues and index are on
        disk, has reached the end of the log at the time when the list was made.
        """
        with self._guard:
            self._note_config()
            if self._stock is None:
                now = self._system.clock.monotonic()
                if now - self._last_s < NOTE_INTERVAL_S:
                    return
                self._last_s = now
                counted = (
                    queues.count,
                    len(index.files) if index is not None else 0,
                    len(self._system.files.names(self._root / CONFIG)),
                )
                if counted == self._counted:
                    return
                self._counted = counted
                stock = take_stock(self._system, self._root, log.min_offset, queues, index)
                self._stock = stock._replace(durable_offset=log.wrote_offset)
            if settled >= self._stock.durable_offset:
                self._write(self._stock)

    def note_retention(self, log_begin: int) -> None:
        """Record durably that retention is about to delete the log files before ``log_begin``."""
        with self._guard:
            self._amend(self.noted._replace(retained_from=log_begin))

    def forget_topic(self, topic: str, end: int) -> None:
        """Record durably that a topic is about to be deleted; its messages are before ``end``."""
        with self._guard:
            self._write(self.noted.without(topic, end))


def missing_config(system: System, root: Path, inventory: Inventory) -> list[str]:
    """Return the broker's files that are listed but do not exist."""
    names = set(system.files.names(root / CONFIG))
    return [name for name in CONFIG_FILES if name in inventory.config and name not in names]
