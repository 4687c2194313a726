"""The body of a client batch: a sequence of messages, before they become records.

::

    total size 4 | magic 4 | body crc 4 | flag 4 | body length 4 | body
    properties length 2 | properties

Clients leave magic and CRC at 0, and no reader uses them. A store writes each item as a separate
record. Page: ``docs/format/batch.md``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from firetrail.errors import FormatError
from firetrail.format.layout import BATCH_ITEM, MAX_PROPERTIES, Layout
from firetrail.format.properties import get_property
from firetrail.format.values.integers import INT32_MAX, INT32_MIN

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PROPERTIES_LENGTH = Layout(properties_length="h")
ITEM_SIZE_MIN = BATCH_ITEM.size + PROPERTIES_LENGTH.size


class BatchItem(NamedTuple):
    """One message of a batch; ``properties`` in their stored form."""

    flag: int
    body: bytes
    properties: bytes


def encode_batch(items: Iterable[BatchItem]) -> bytes:
    """Return the items in sequence."""
    return b"".join(_encode_item(number, item) for number, item in enumerate(items))


def decode_batch(buffer: ReadableBuffer) -> tuple[BatchItem, ...]:
    """Return all items; raise FormatError unless they fill ``buffer`` exactly."""
    data = bytes(buffer)
    items: list[BatchItem] = []
    at = 0
    while at < len(data):
        item, at = _decode_item(data, at, len(items))
        items.append(item)
    return tuple(items)


def has_property(buffer: ReadableBuffer, name: str) -> bool:
    """Return whether an item has a property; raise FormatError if that cannot be decided.

    Items are decoded only if the name occurs in the batch, which may also be in a body.
    """
    data = bytes(buffer)
    return name.encode() in data and any(
        get_property(item.properties, name) is not None for item in decode_batch(data)
    )


def _encode_item(number: int, item: BatchItem) -> bytes:
    flag, body, properties = item
    size = ITEM_SIZE_MIN + len(body) + len(properties)
    if not INT32_MIN <= flag <= INT32_MAX:
        raise _error(number, "flag", BATCH_ITEM.offsets["flag"], f"{flag} does not fit in 32 bits")
    if len(properties) > MAX_PROPERTIES:
        detail = f"{len(properties)} is more than {MAX_PROPERTIES}"
        raise _error(number, "properties length", BATCH_ITEM.size + len(body), detail)
    if size > INT32_MAX:
        raise _error(number, "total size", 0, f"{size} is more than {INT32_MAX}")
    head = BATCH_ITEM.struct.pack(size, 0, 0, flag, len(body))
    return b"".join((head, body, PROPERTIES_LENGTH.struct.pack(len(properties)), properties))


def _decode_item(data: bytes, at: int, number: int) -> tuple[BatchItem, int]:
    """Return the item at ``at``, and the position of the next one."""
    left = len(data) - at
    if left < ITEM_SIZE_MIN:
        raise _error(number, "", at, f"needs at least {ITEM_SIZE_MIN} bytes, {left} are left")
    total, _, _, flag, body_length = BATCH_ITEM.struct.unpack_from(data, at)
    if not ITEM_SIZE_MIN <= total <= left:
        raise _error(number, "total size", at, f"{total} is not in {ITEM_SIZE_MIN}..{left}")
    room = total - ITEM_SIZE_MIN
    if not 0 <= body_length <= room:
        where = at + BATCH_ITEM.offsets["body_length"]
        raise _error(number, "body length", where, f"{body_length} is not in 0..{room}")
    body_at = at + BATCH_ITEM.size
    body_end = body_at + body_length
    (properties_length,) = PROPERTIES_LENGTH.struct.unpack_from(data, body_end)
    if properties_length != room - body_length:
        detail = f"{properties_length} where the total size leaves {room - body_length}"
        raise _error(number, "properties length", body_end, detail)
    end = at + total
    properties = data[body_end + PROPERTIES_LENGTH.size : end]
    return BatchItem(flag, data[body_at:body_end], properties), end


def _error(number: int, field: str, at: int, detail: str) -> FormatError:
    """Return an error about an item; items are counted from 0."""
    return FormatError(f"batch item {number} {field}".rstrip(), at, detail)
