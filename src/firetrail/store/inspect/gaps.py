"""Zeros in queue and index files where something was written, so that too little is found.

A page that a disk or a file system has lost reads as zeros. At the end of a queue it looks as if
the queue ended earlier, in a slot or entry of an index file as if a key had no more messages. Who
reads a closed store looks here whether that is so. ``firetrail fsck`` finds all of it, because it
compares everything with the log.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing

from firetrail.format.index import entry_at, slot_at
from firetrail.format.kernels.single import KeyQuestion
from firetrail.format.layout import INDEX_ENTRY, INDEX_SLOT
from firetrail.format.names import queue_folder
from firetrail.format.unit import UNIT_SIZE
from firetrail.storage.queue import SegmentQueue
from firetrail.store.index.file import IndexFile
from firetrail.store.inspect.problems import Problem, ProblemKind
from firetrail.store.inspect.view import StoreState, StoreView
from firetrail.store.lifecycle.folder import last_held_by_java
from firetrail.store.lifecycle.inventory import read_inventory
from firetrail.store.queues.table import Extent, QueueKey
from firetrail.store.reader import TIME_MAX

SECTOR = 512
"""What a disk loses is at least as long; a slot in it that is in use speaks for the others."""
CHAIN_MAX = 1_000_000
"""Entries of one chain that are looked at."""
_STEP = 1 << 20


# -- queues -----------------------------------------------------------------------------------


def queue_gaps(view: StoreView, topic: str, queue_ids: Iterable[int]) -> Iterator[Problem]:
    """What says that queues of a topic have more messages than are found in them.

    A gap that is not at the end shows by itself, as units without a message.
    """
    if view.state is StoreState.OPEN:  # who writes it is ahead of us
        return
    noted = _noted_extents(view)
    for queue_id in queue_ids:
        tail = view.tails.get((topic, queue_id))
        if tail is None:
            continue
        there, place = tail.max_offset, tail.max_offset * UNIT_SIZE
        extent = noted.get((topic, queue_id))
        if extent is not None and extent.end > there:
            detail = f"the queue ends at {there}, but had {extent.end} messages before"
            yield _queue_problem(view, topic, queue_id, place, detail)
        elif _has_data_behind(view, topic, queue_id, place):
            detail = f"the queue ends at {there} with zeros, but more units follow them"
            yield _queue_problem(view, topic, queue_id, place, detail)


def _noted_extents(view: StoreView) -> Mapping[QueueKey, Extent]:
    """What the last owner has noted about queues, if that was Firetrail."""
    known = read_inventory(view.system, view.root)
    is_current = known.is_current(view.state is StoreState.CLOSED, view.watermark)
    return known.queues if is_current and not last_held_by_java(view.system, view.root) else {}


def _has_data_behind(view: StoreView, topic: str, queue_id: int, place: int) -> bool:
    with closing(_files_of(view, topic, queue_id)) as files:
        files.load()
        return any(
            segment.data_size(max(place - segment.base, 0)) > 0
            for segment in files.segments
            if segment.end > place
        )


def _files_of(view: StoreView, topic: str, queue_id: int) -> SegmentQueue:
    folder = view.root / queue_folder(topic, queue_id)
    return SegmentQueue(view.system, folder, view.queue_file_size, writable=False)


def _queue_problem(view: StoreView, topic: str, queue_id: int, place: int, detail: str) -> Problem:
    offset = place % view.queue_file_size
    path = _files_of(view, topic, queue_id).path_of(place - offset)
    return Problem(view.relative(path), offset, None, ProblemKind.UNIT_MISSING, detail)


# -- index files ------------------------------------------------------------------------------


def key_gaps(view: StoreView, topic: str, key: str) -> Iterator[Problem]:
    """What says that the index has more messages with a key than are found through it."""
    key_hash = KeyQuestion(topic, key, 0, TIME_MAX).key_hash
    for file in view.index.files:
        found = _empty_header(file) or _broken_chain(file, key_hash) or _empty_slot(file, key_hash)
        if found is not None:
            yield Problem(view.relative(file.segment.path), found[0], None, found[1], found[2])


Gap = tuple[int, ProblemKind, str]
"""Position in the file, kind and detail of a problem."""


def _empty_header(file: IndexFile) -> Gap | None:
    """Entries that the header does not count."""
    if file.header.entry_count > 1:
        return None
    at = entry_at(file.slots, 1)
    written = any(file.segment.read(at, INDEX_ENTRY.size))
    if not written or file.header.entry_count > 1:  # since, by who has the store open
        return None
    return 0, ProblemKind.INDEX_HEADER, "the header counts no entries, but there are some"


def _broken_chain(file: IndexFile, key_hash: int) -> Gap | None:
    """A link that leads to something which is no entry of the chain."""
    slot, view = key_hash % file.slots, file.segment.view
    at = slot_at(slot)
    (number,) = INDEX_SLOT.struct.unpack_from(view, at)
    limit = file.header.next_entry + 1  # after the slot: who has the store open goes on
    for _ in range(CHAIN_MAX):
        if number == 0:
            return None
        if not 0 < number < limit:
            detail = f"slot {slot} leads to {number}, which is no number of an entry before {limit}"
            return at, ProblemKind.INDEX_CHAIN, detail
        at = entry_at(file.slots, number)
        entry = INDEX_ENTRY.struct.unpack_from(view, at)
        if entry[0] % file.slots != slot or not any(entry):
            detail = f"slot {slot} leads to entry {number}, which is not one of its entries"
            return at, ProblemKind.INDEX_CHAIN, detail
        limit, number = number, entry[3]
    return None


def _empty_slot(file: IndexFile, key_hash: int) -> Gap | None:
    """A slot among zeros in a file whose header counts more slots in use than there are."""
    slot = key_hash % file.slots
    at = slot_at(slot)
    start = at - at % SECTOR
    if any(file.segment.view[start : start + SECTOR]):
        return None
    counted = file.header.slot_count
    used = _used_slots(file)
    if used >= counted:
        return None
    detail = f"slot {slot} is empty, and {counted - used} of {counted} slots in use are missing"
    return at, ProblemKind.INDEX_SLOT, detail


def _used_slots(file: IndexFile) -> int:
    segment = file.segment
    first, last = slot_at(0), slot_at(file.slots)
    used = 0
    for start, end in segment.system.files.data_ranges(segment.descriptor, first, last):
        for at in range(start, end, _STEP):
            slots = array("i")
            slots.frombytes(segment.read(at, min(_STEP, end - at)))
            used += len(slots) - slots.count(0)
    return used
