"""Zeros in queue and index files that hide messages.

A page that a disk or a file system has lost reads as zeros. At the end of a queue it looks as if
the queue ended earlier; in a slot or entry of an index file, as if a key had no more messages.
Readers of a closed store check here whether that is so. ``firetrail fsck`` finds all such gaps,
because it compares everything with the log.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing

from firetrail.format.files.index import entry_at, slot_at
from firetrail.format.files.unit import UNIT_SIZE
from firetrail.format.kernels.single import KeyQuestion
from firetrail.format.layout import INDEX_ENTRY, INDEX_SLOT
from firetrail.format.names import queue_folder
from firetrail.storage.segment_queue import SegmentQueue
from firetrail.store.evidence.inventory import read_inventory
from firetrail.store.index.index_file import IndexFile
from firetrail.store.inspect.view import StoreState, StoreView
from firetrail.store.problems import Problem, ProblemKind
from firetrail.store.queues.queue_table import QueueExtent, QueueKey
from firetrail.store.reads.reader import TIME_MAX
from firetrail.store.root.folder import last_held_by_java

SECTOR = 512
"""Minimum number of bytes that a disk loses together; one used slot in them shows that the others
are good."""
CHAIN_MAX = 1_000_000
"""Maximum number of entries of one chain that are read."""
_STEP = 1 << 20


# -- queues -----------------------------------------------------------------------------------


def queue_gaps(view: StoreView, topic: str, queue_ids: Iterable[int]) -> Iterator[Problem]:
    """Yield the evidence that queues of a topic have more messages than are found in them.

    A gap that is not at the end is visible anyway, as units without a message.
    """
    if view.state is StoreState.OPEN:  # its writer is ahead of this view
        return
    noted = _noted_extents(view)
    for queue_id in queue_ids:
        tail = view.tails.get((topic, queue_id))
        if tail is None:
            continue
        end, place = tail.max_offset, tail.max_offset * UNIT_SIZE
        extent = noted.get((topic, queue_id))
        if extent is not None and extent.end > end:
            detail = f"the queue ends at {end}, but had {extent.end} messages before"
            yield _queue_problem(view, topic, queue_id, place, detail)
        elif _has_data_after(view, topic, queue_id, place):
            detail = f"the queue ends at {end} with zeros, but more units follow them"
            yield _queue_problem(view, topic, queue_id, place, detail)


def _noted_extents(view: StoreView) -> Mapping[QueueKey, QueueExtent]:
    """Return the extents of queues that the last owner recorded, if that was Firetrail."""
    known = read_inventory(view.system, view.root)
    is_current = known.is_current(view.state is StoreState.CLOSED, view.watermark)
    return known.queues if is_current and not last_held_by_java(view.system, view.root) else {}


def _has_data_after(view: StoreView, topic: str, queue_id: int, place: int) -> bool:
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
    """Yield the evidence that the index has more messages with a key than it finds."""
    key_hash = KeyQuestion(topic, key, 0, TIME_MAX).key_hash
    for file in view.index.files:
        found = _empty_header(file) or _broken_chain(file, key_hash) or _empty_slot(file, key_hash)
        if found is not None:
            yield Problem(view.relative(file.segment.path), found[0], None, found[1], found[2])


Gap = tuple[int, ProblemKind, str]
"""Position in the file, kind and detail of a problem."""


def _empty_header(file: IndexFile) -> Gap | None:
    """Find entries that the header does not count."""
    if file.header.entry_count > 1:
        return None
    at = entry_at(file.slots, 1)
    written = any(file.segment.read(at, INDEX_ENTRY.size))
    if not written or file.header.entry_count > 1:  # a live store has counted them since
        return None
    return 0, ProblemKind.INDEX_HEADER, "the header counts no entries, but the file has some"


def _broken_chain(file: IndexFile, key_hash: int) -> Gap | None:
    """Find a link that does not lead to an entry of the chain."""
    slot, view = key_hash % file.slots, file.segment.view
    at = slot_at(slot)
    (number,) = INDEX_SLOT.struct.unpack_from(view, at)
    limit = file.header.next_entry + 1  # read after the slot, because a live store appends
    for _ in range(CHAIN_MAX):
        if number == 0:
            return None
        if not 0 < number < limit:
            detail = f"slot {slot} points to {number}, which is not an entry before {limit}"
            return at, ProblemKind.INDEX_CHAIN, detail
        at = entry_at(file.slots, number)
        entry = INDEX_ENTRY.struct.unpack_from(view, at)
        if entry[0] % file.slots != slot or not any(entry):
            detail = f"slot {slot} points to entry {number}, which is not one of its entries"
            return at, ProblemKind.INDEX_CHAIN, detail
        limit, number = number, entry[3]
    return None


def _empty_slot(file: IndexFile, key_hash: int) -> Gap | None:
    """Find an empty slot among zeros, if the header counts more used slots than the file has."""
    slot = key_hash % file.slots
    at = slot_at(slot)
    start = at - at % SECTOR
    if any(file.segment.view[start : start + SECTOR]):
        return None
    counted = file.header.slot_count
    used = _used_slots(file)
    if used >= counted:
        return None
    detail = f"slot {slot} is empty, and {counted - used} of {counted} used slots are missing"
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
