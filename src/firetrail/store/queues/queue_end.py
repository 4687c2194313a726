"""The end of a consume queue: the first unit that was never written.

Units are written consecutively, so a file is bisected, not read. The end can be found without
opening the queue, which takes several times as long and a descriptor.
"""

from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from firetrail.format import layout
from firetrail.format.files.unit import UNIT_SIZE, ConsumeQueueUnit, decode_unit
from firetrail.format.names import parse_segment_name, segment_name
from firetrail.storage.growth import PAGE_SIZE, QUEUE_GROWTH
from firetrail.system import Files

WINDOW = PAGE_SIZE // UNIT_SIZE * UNIT_SIZE
"""Number of bytes of units that are read at a time."""
_UNPACK = layout.UNIT.struct.unpack_from


class WrittenUnits(NamedTuple):
    """The units of a file, as far as they were read."""

    number: int
    """The number of units in the file."""
    start: int
    """The number of the first unit that was read."""
    units: bytes
    """The units from there on."""


class QueueEnd(NamedTuple):
    """The range of a queue, and its last unit."""

    first: int
    """The first byte of its files."""
    max_offset: int
    """Queue offset after the last unit."""
    last_unit: ConsumeQueueUnit


def units_written(read: Callable[[int, int], bytes | memoryview], data_end: int) -> WrittenUnits:
    """Return the units of a file with nothing but a hole after ``data_end``.

    The last page of the search is read at once; in a sparse file that page is everything. It is
    read, not mapped: the first access to a mapping may bring megabytes of a hole into memory.

    Args:
        read: Returns bytes of the file, given their position and number.
        data_end: The position after which the file is a hole.
    """
    low, high = 0, -(-data_end // UNIT_SIZE)
    while (high - low) * UNIT_SIZE > WINDOW + UNIT_SIZE:
        middle = (low + high) // 2
        if _is_written(read(middle * UNIT_SIZE, UNIT_SIZE)):
            low = middle + 1
        else:
            high = middle
    size = min(high * UNIT_SIZE, data_end) - low * UNIT_SIZE  # without the hole that follows
    units = bytes(read(low * UNIT_SIZE, size)).ljust((high - low) * UNIT_SIZE, b"\0")
    count = bisect_left(
        range(high - low), True, key=lambda number: not _is_written(units, number * UNIT_SIZE)
    )
    return WrittenUnits(low + count, low, units[: count * UNIT_SIZE])


def _is_written(units: bytes | memoryview, at: int = 0) -> bool:
    return ConsumeQueueUnit._make(_UNPACK(units, at)).is_written


def find_end(files: Files, folder: Path, file_size: int) -> QueueEnd | None:
    """Return the end of a queue that is complete and has nothing but zeros after its last unit.

    Returns None for any other queue. It has to be opened, which reports or repairs the fault.
    """
    found = {
        base: size
        for name, size in files.sizes(folder).items()
        if (base := parse_segment_name(name)) is not None
    }
    bases = list(found)
    if not bases or any(size != file_size for size in found.values()):
        return None
    if any(later - base != file_size for base, later in pairwise(bases)):
        return None
    descriptor = files.open(folder / segment_name(bases[-1]), writable=False)
    try:
        ranges = files.data_ranges(descriptor, 0, file_size)
        data_end = max((end for _, end in ranges), default=0)
        count, start, units = units_written(
            lambda at, size: files.read_at(descriptor, at, size), data_end
        )
        end = count * UNIT_SIZE
        if count == start or data_end - end > 2 * QUEUE_GROWTH.largest:
            return None
        if any(files.read_at(descriptor, end, max(data_end - end, 0))):
            return None
    finally:
        files.close(descriptor)
    last = decode_unit(units, len(units) - UNIT_SIZE)
    return QueueEnd(bases[0], bases[-1] // UNIT_SIZE + count, last)
