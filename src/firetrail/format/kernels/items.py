"""Checks of the items of a client batch, and the sizes of their records."""

from __future__ import annotations

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

from firetrail.errors import FormatError

if cython.compiled:
    import cython.cimports.firetrail.format.kernels._constants as k
    from cython.cimports.firetrail.format.kernels._bigendian import load_i32, load_u16
else:
    from firetrail.format.kernels import _constants as k
    from firetrail.format.kernels._bigendian import load_i32, load_u16

COMPILED = cython.compiled


def item_properties_size(
    batch: cython.pointer(cython.const[cython.uchar]),
    own_at: cython.Py_ssize_t,
    own: cython.Py_ssize_t,
    shared_size: cython.Py_ssize_t,
    property_crc: cython.bint,
) -> cython.Py_ssize_t:
    """Return the size of an item's properties, followed by those of the batch and the CRC."""
    size: cython.Py_ssize_t = own + shared_size
    if own and (shared_size or property_crc) and batch[own_at + own - 1] != 2:
        size += 1
    return size + k.CRC_SIZE if property_crc else size


def measure(
    batch: cython.pointer(cython.const[cython.uchar]),
    end: cython.Py_ssize_t,
    fixed: cython.Py_ssize_t,
    shared_size: cython.Py_ssize_t,
    property_crc: cython.bint,
) -> tuple[int, int, int]:
    """Return (items, bytes of all records, bytes of the largest) of a batch of ``end`` bytes.

    ``fixed`` is the size of a record without body and properties. Raises FormatError if the batch
    is not a sequence of whole items.
    """
    at: cython.Py_ssize_t = 0
    items: cython.Py_ssize_t = 0
    total: cython.Py_ssize_t = 0
    largest: cython.Py_ssize_t = 0
    size: cython.longlong
    body: cython.longlong
    own_at: cython.Py_ssize_t
    properties: cython.Py_ssize_t
    record: cython.Py_ssize_t
    while at < end:
        size = load_i32(batch, at) if end - at >= k.ITEM_HEAD + 2 else -1
        if size < k.ITEM_HEAD + 2 or size > end - at:
            raise FormatError(
                f"total size of batch item {items}", at, f"{size} of {end - at} bytes left"
            )
        body = load_i32(batch, at + k.ITEM_BODY_LENGTH)
        if body < 0 or body > size - k.ITEM_HEAD - 2:
            raise FormatError(
                f"body length of batch item {items}",
                at + k.ITEM_BODY_LENGTH,
                f"{body} in an item of {size} bytes",
            )
        own_at = at + k.ITEM_HEAD + body + 2
        if load_u16(batch, own_at - 2) != at + size - own_at:
            raise FormatError(
                f"properties length of batch item {items}",
                own_at - 2,
                f"does not end at the item's size of {size} bytes",
            )
        properties = item_properties_size(
            batch, own_at, at + size - own_at, shared_size, property_crc
        )
        if properties > k.PROPERTIES_MAX:
            raise FormatError(
                f"properties of batch item {items}", at, f"{properties} bytes, at most 32767"
            )
        record = fixed + body + properties
        total += record
        largest = max(largest, record)
        items += 1
        at += size
    return items, total, largest
