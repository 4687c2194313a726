"""Light message queues (LMQ): queues that a record names in its properties.

A message of any topic can be in further queues as well. A producer names them in
``INNER_MULTI_DISPATCH``, and the broker adds the message's number in each of them as
``INNER_MULTI_QUEUE_OFFSET`` when it stores the record; both are lists with commas. The unit of
a light queue equals that of the record's own queue. The rules here are those of RocketMQ 5.x.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

from firetrail.format import columns as col
from firetrail.format import layout
from firetrail.format.columns import Columns
from firetrail.format.names import RETRY_PREFIX, SCHEDULE_TOPIC, SYSTEM_PREFIX, is_folder_name
from firetrail.format.properties import INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, get_property
from firetrail.format.values.integers import number_in
from firetrail.format.values.javahash import java_text

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

LIGHT_PREFIX = "%LMQ%"
LIGHT_QUEUE_ID = 0
"""The queue id of all light queues, which are distinguished by their names."""
LIGHT_QUEUES_MAX = 20_000
"""Maximum number of light queues that puts create (RocketMQ's ``maxLmqConsumeQueueNum``)."""
SEPARATOR = ","
_MARK = re.compile(re.escape(INNER_MULTI_QUEUE_OFFSET.encode() + b"\x01"))


def is_light(topic: str) -> bool:
    """Return whether a queue of this name is a light queue."""
    return topic.startswith(LIGHT_PREFIX)


def may_name_light_queues(topic: str) -> bool:
    """Return whether messages of a topic can be in light queues.

    Retries and delayed messages cannot, although they carry the properties of the message that
    they are copies of.
    """
    return topic != SCHEDULE_TOPIC and not topic.startswith((RETRY_PREFIX, SYSTEM_PREFIX))


def listed_names(names: str) -> list[str]:
    """Return the names that a value of INNER_MULTI_DISPATCH lists, each once."""
    return [name for name in dict.fromkeys(names.split(SEPARATOR)) if name]


def listed_queues(names: str) -> list[str]:
    """Return the light queues that a value of INNER_MULTI_DISPATCH lists, each once.

    Names that cannot be the name of a folder are left out.
    """
    return [name for name in listed_names(names) if is_light(name) and is_folder_name(name)]


def is_in_light_queue(properties: ReadableBuffer, name: str) -> bool:
    """Return whether the properties of a record name a light queue."""
    return name in listed_names(get_property(properties, INNER_MULTI_DISPATCH) or "")


def numbered_queues(properties: ReadableBuffer) -> list[tuple[str, int]]:
    """Return the light queues that a record is in, and its number in each."""
    names = get_property(properties, INNER_MULTI_DISPATCH)
    numbers = get_property(properties, INNER_MULTI_QUEUE_OFFSET)
    if names is None or numbers is None:
        return []
    # Java's split drops empty strings at the end.
    every_name = names.rstrip(SEPARATOR).split(SEPARATOR)
    every_number = numbers.rstrip(SEPARATOR).split(SEPARATOR)
    if len(every_name) != len(every_number):
        return []
    wanted = set(listed_queues(names))
    found: dict[str, int] = {}
    for name, number in zip(every_name, every_number, strict=True):
        offset = number_in(number, 0)
        if name in wanted and offset is not None:
            found.setdefault(name, offset)
    return list(found.items())


def light_units(
    view: memoryview, columns: Columns, rows: int
) -> Iterator[tuple[str, int, bytearray]]:
    """Yield the units of light queues that the first ``rows`` records of a scan of ``view`` imply.

    Each item is (queue, number of the first unit, units). Items of one queue are in the order of
    the log.
    """
    runs: dict[str, tuple[int, bytearray]] = {}
    for row, name, number in _rows_in_light_queues(view, columns, rows):
        cells = columns.table[row :: columns.capacity]
        unit = layout.UNIT.struct.pack(
            cells[col.PHYSICAL_OFFSET], cells[col.SIZE], cells[col.TAGS_HASH]
        )
        first, units = runs.get(name, (number, bytearray()))
        if number != first + len(units) // layout.UNIT.size:
            yield name, first, units
            first, units = number, bytearray()
        units += unit
        runs[name] = first, units
    for name, (first, units) in runs.items():
        yield name, first, units


def _rows_in_light_queues(
    view: memoryview, columns: Columns, rows: int
) -> Iterator[tuple[int, str, int]]:
    at = columns.column(col.PROPERTIES_AT)
    sizes = columns.column(col.PROPERTIES_SIZE)
    row = -1
    for mark in _MARK.finditer(view, at[0], at[rows - 1] + sizes[rows - 1]) if rows else ():
        found = bisect_right(at, mark.start(), 0, rows) - 1
        if found == row:
            continue
        row = found
        sys_flag = columns.column(col.SYS_FLAG)[row]
        start = columns.column(col.TOPIC_AT)[row]
        topic = java_text(bytes(view[start : start + columns.column(col.TOPIC_SIZE)[row]]))
        if layout.takes_queue_offset(sys_flag) and may_name_light_queues(topic):
            for name, number in numbered_queues(view[at[row] : at[row] + sizes[row]]):
                yield row, name, number
