"""Which files a store has, noted so that the next start misses those that are gone.

A queue without files looks like one that never had a message: its numbers would begin at 0 again,
and nobody would find the messages that it had. ``firetrail.inventory`` says what must be there::

    {"version": 2, "durable_offset": …, "log_begin": …,
     "queues": {topic: {queue id: [first byte, units]}},
     "index_files": {name: [bytes, physical offset of its last record]},
     "config": [names], "removed": {topic: log offset},
     "rebuilding": [[topic, queue id], …], "rebuilding_index": false}

It is written at a clean stop, at a start that finds none to go by, and, at most twice a minute,
while the store is open and has got queues or index files that it does not list. All that it lists
is on disk before it is written, so a crash takes none of it. A queue that it lists only grows, but
for files at its beginning that retention removes; ``removed`` names topics that were deleted, whose
records before that offset are not missed. While files are derived anew, ``rebuilding`` says
so, and the next start begins anew if this one is stopped.
"""

from __future__ import annotations

import json
import logging
import threading
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
    TOPICS_JSON,
    parse_index_name,
)
from firetrail.storage.queue import SegmentQueue
from firetrail.store.index.index import Index
from firetrail.store.lifecycle.watermark import Watermark
from firetrail.store.queues.table import Extent, QueueKey, QueueTable
from firetrail.system import NO_SPACE, System

NOTE_INTERVAL_S = 30.0
"""New queues and index files are noted this often: it costs as much as there are queues."""
CONFIG_FILES = {
    TOPICS_JSON: "topics have default settings, and those without messages are gone",
    GROUPS_JSON: "consumer groups have default settings",
    CONSUMER_OFFSETS: "every consumer group starts over, where its consumers say",
    LMQ_OFFSETS: "consumer groups go on where consumerOffset.json says, or start over",
    DELAY_OFFSETS: "delayed messages that are still in the log are delivered again",
}
"""The files of a broker that are missed, and what it means for a broker to start without one."""
_VERSION = 2
_NEVER = -1
_LOGGER = logging.getLogger(__name__)


class IndexExtent(NamedTuple):
    """Length of an index file, and the physical offset of the last record in it."""

    size: int
    end_offset: int


class Inventory(NamedTuple):
    """What must be there."""

    durable_offset: int = _NEVER
    """The log was on disk up to here, and what is listed follows from it."""
    log_begin: int = 0
    queues: Mapping[QueueKey, Extent] = {}
    index_files: Mapping[str, IndexExtent] = {}
    config: tuple[str, ...] = ()
    removed: Mapping[str, int] = {}
    rebuilding: tuple[QueueKey, ...] = ()
    rebuilding_index: bool = False

    def is_current(self, clean: bool, watermark: Watermark | None) -> bool:
        """Whether it is about this store as it was left, if Firetrail was the last to write it."""
        if watermark is None or self.durable_offset == _NEVER:
            return False
        if clean:
            return watermark.clean and watermark.durable_offset == self.durable_offset
        return self.durable_offset <= watermark.durable_offset

    def without(self, topic: str, log_end: int) -> Inventory:
        """The same but for a topic that is deleted when the log ends there."""
        queues = {key: extent for key, extent in self.queues.items() if key[0] != topic}
        return self._replace(queues=queues, removed={**self.removed, topic: log_end})


def take_stock(
    system: System, root: Path, log_begin: int, queues: QueueTable, index: Index | None
) -> Inventory:
    """What there is, as long as no topic is removed meanwhile."""
    files = index.files if index is not None else ()
    names = set(system.files.names(root / CONFIG))
    return Inventory(
        log_begin=log_begin,
        queues=queues.extents(),
        index_files={
            file.segment.path.name: IndexExtent(file.segment.size, file.end[1])
            for file in files
            if file.header.next_entry > 1  # a crash may take one without entries
        },
        config=tuple(name for name in CONFIG_FILES if name in names),
    )


def index_sizes(system: System, root: Path) -> dict[str, int]:
    """The index files there are, and their lengths."""
    sizes = system.files.sizes(root / INDEX)
    return {name: size for name, size in sizes.items() if parse_index_name(name) is not None}


def read_inventory(system: System, root: Path) -> Inventory:
    """What was written last; an empty one if there is nothing that can be read."""
    path = root / INVENTORY
    try:
        return _decoded(system.files.read(path))
    except FileNotFoundError:
        return Inventory()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _LOGGER.warning(
            "%s cannot be read (%s) and is ignored; files that are missing are noticed only as far "
            "as the log shows it, 'firetrail fsck' finds them all",
            path,
            error.strerror if isinstance(error, OSError) else "it is damaged",
        )
        return Inventory()


def _decoded(content: bytes) -> Inventory:
    value = json.loads(content)
    if value.get("version") != _VERSION:
        return Inventory()  # of an earlier release, which listed less
    return Inventory(
        int(value["durable_offset"]),
        int(value["log_begin"]),
        {
            (topic, int(queue_id)): Extent(int(first), int(end))
            for topic, queues in value["queues"].items()
            for queue_id, (first, end) in queues.items()
        },
        {
            str(name): IndexExtent(int(size), int(end_offset))
            for name, (size, end_offset) in value["index_files"].items()
        },
        tuple(map(str, value["config"])),
        {str(topic): int(offset) for topic, offset in value["removed"].items()},
        tuple((str(topic), int(queue_id)) for topic, queue_id in value["rebuilding"]),
        bool(value["rebuilding_index"]),
    )


def write_inventory(system: System, root: Path, inventory: Inventory) -> None:
    """Replace the file, durably."""
    queues: dict[str, dict[int, Extent]] = {}
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
        """What the file says."""
        self._stock: Inventory | None = None  # what waits to be on disk before it is written
        self._guard = threading.Lock()  # over both, and the file
        self._counted: tuple[int, ...] = ()  # queues and files of each kind, when it was taken
        self._last_s = system.clock.monotonic()

    def write(self, inventory: Inventory) -> None:
        """Note durably what is there, all of which is on disk.

        On a full disk the list is given up: it is of use only if something is lost later.
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
            _LOGGER.warning("no space for %s: %s", self._root / INVENTORY, error)
            self._give_up()

    def _give_up(self) -> None:
        self.noted = Inventory()
        if (self._root / INVENTORY).exists():
            self._system.files.remove(self._root / INVENTORY)

    def distrust(self) -> None:
        """Go by nothing but what was being derived anew: a Java broker has written the store."""
        rebuilding, index = self.noted.rebuilding, self.noted.rebuilding_index
        self.noted = Inventory(rebuilding=rebuilding, rebuilding_index=index)

    def note_rebuilding(self, queues: tuple[QueueKey, ...], index: bool) -> None:
        """Note durably what is about to be derived anew; the list counts for nothing meanwhile."""
        with self._guard:
            self.noted = self.noted._replace(
                durable_offset=_NEVER, rebuilding=queues, rebuilding_index=index
            )
            write_inventory(self._system, self._root, self.noted)

    def note_new(
        self, queues: QueueTable, index: Index | None, log: SegmentQueue, settled: int
    ) -> None:
        """Note what is new, if anything is and it is time for it. No topic is removed meanwhile.

        What there is counts when ``settled``, up to where log, queues and index are on disk, has
        reached the end that the log has when it is looked at.
        """
        with self._guard:
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

    def forget_topic(self, topic: str, log_end: int) -> None:
        """Note durably that a topic is about to be deleted, when the log ends there."""
        with self._guard:
            self._write(self.noted.without(topic, log_end))


def missing_config(system: System, root: Path, inventory: Inventory) -> list[str]:
    """The files of the broker that are listed, and not there."""
    names = set(system.files.names(root / CONFIG))
    return [name for name in CONFIG_FILES if name in inventory.config and name not in names]
