"""The rule that a record is the message of the queue unit that points to it.

A record contains its topic, its queue and its queue offset, which only the checksum of
``property_crc`` covers. If the queue unit through which a record is read says otherwise, one of the
two is damaged. The kernels compare them too (:func:`~firetrail.format.kernels.scan.is_message`);
this module decides about records that they refuse. A record names its light queues in a property;
its numbers in them may differ from those of their units.

Java can leave a queue in which the numbers of all records differ from those of their units by a
constant. Such a difference is not damage: it shows in the neighbours as well.
"""

from firetrail.format.light import is_in_light_queue, is_light
from firetrail.format.record import Record, decode_record
from firetrail.storage.segment_queue import SegmentQueue
from firetrail.store.integrity.damage_ledger import QueueUnit
from firetrail.store.log.log_records import record_at, record_offset
from firetrail.store.queues.consume_queue import ConsumeQueue
from firetrail.store.queues.queue_table import QueueTable


def compared_with(queue: ConsumeQueue) -> tuple[bytes, int]:
    """Return the topic and the queue id that the kernels compare; no topic for light queues."""
    return (b"" if is_light(queue.topic) else queue.encoded_topic), queue.queue_id


def contradiction(log: SegmentQueue, queue: ConsumeQueue, offset: int, record: memoryview) -> str:
    """Return the contradiction between a unit and its record; empty if they agree.

    Args:
        log: The log.
        queue: The queue through which the record is read.
        offset: The queue offset of the unit that points to it.
        record: The record, whose checksums are right.
    """
    if is_light(queue.topic):
        return "" if names_light_queue(record, queue.topic) else "it does not name this light queue"
    topic, queue_id, number = _named(record)
    if (topic, queue_id) != (queue.topic, queue.queue_id):
        return f"it says that it is a message of {topic}/{queue_id}"
    shift = number - offset
    if shift and shift not in (_shift(log, queue, offset - 1), _shift(log, queue, offset + 1)):
        return f"it says that it is message {number}"
    return ""


def names_light_queue(record: memoryview, name: str) -> bool:
    """Return whether a record, whose checksums are right, is a message of a light queue."""
    found = decode_record(record, check_crc=False)
    assert isinstance(found, Record)
    return is_in_light_queue(found.raw_properties, name)


def misplacement(
    log: SegmentQueue, queues: QueueTable, record: memoryview
) -> tuple[str, QueueUnit] | None:
    """Return the contradiction of a record that was found without its unit, and that unit.

    The unit is searched for by the position of the record. Without one, nothing is known: the topic
    may have been deleted since. Returns None then, and if they agree.

    Args:
        log: The log.
        queues: The consume queues.
        record: The record, whose checksums are right.
    """
    topic, queue_id, number = _named(record)
    place = record_offset(record)
    queue = queues.find(topic, queue_id)
    if queue is None or _points_to(queue, number, place):
        return None
    low, high = queue.min_offset(log.min_offset), queue.max_offset
    found = queue.first_where(low, high, lambda unit: unit.physical_offset >= place)
    said = contradiction(log, queue, found, record) if _points_to(queue, found, place) else ""
    if not said:
        return None
    return f"message {found} of {topic}/{queue_id}: {said}", (topic, queue_id, found)


def _points_to(queue: ConsumeQueue, offset: int, place: int) -> bool:
    unit = queue.unit(offset)
    return unit is not None and unit.is_written and unit.physical_offset == place


def _named(record: memoryview) -> tuple[str, int, int]:
    """Return the topic, the queue id and the queue offset in a record."""
    found = decode_record(record, check_crc=False)
    assert isinstance(found, Record)
    return found.topic, found.queue_id, found.queue_offset


def _shift(log: SegmentQueue, queue: ConsumeQueue, offset: int) -> int | None:
    """Return by how much the number in a record differs from that of its unit; None if unknown."""
    unit = queue.unit(offset)
    record = record_at(log, unit.physical_offset) if unit is not None else None
    if record is None:
        return None
    topic, queue_id, number = _named(record)
    is_of_queue = (topic, queue_id) == (queue.topic, queue.queue_id)
    return number - offset if is_of_queue else None
