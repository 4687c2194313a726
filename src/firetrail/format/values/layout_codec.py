"""The codec of a :class:`~firetrail.format.layout.Layout`; its errors name the field."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from struct import error as StructError
from typing import TYPE_CHECKING, Any

from firetrail.errors import FormatError
from firetrail.format.layout import Layout

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def unpack_fields(layout: Layout, what: str, buffer: ReadableBuffer, at: int) -> tuple[Any, ...]:
    """Return the values of ``layout`` at ``at``.

    If the structure is cut off, the error calls it ``what``.
    """
    require(layout.size, what, buffer, at)
    return layout.struct.unpack_from(buffer, at)


def pack_fields(layout: Layout, what: str, values: Sequence[int]) -> bytes:
    """Return ``values`` as the bytes of ``layout``, which must have only signed integers."""
    try:
        return layout.struct.pack(*values)
    except StructError:
        ends = (*layout.offsets.values(), layout.size)
        for field, (at, end), value in zip(layout.offsets, pairwise(ends), values, strict=True):
            bits = 8 * (end - at)
            if not -(1 << bits - 1) <= value < 1 << bits - 1:
                detail = f"{value} does not fit in {bits} bits"
                raise FormatError(_name(what, field), at, detail) from None
        raise


def size_of(buffer: ReadableBuffer) -> int:
    """Return the number of bytes in ``buffer``.

    The function keeps no view, so that a mapping can be closed while an error is handled.
    """
    return memoryview(buffer).nbytes


def require(size: int, what: str, buffer: ReadableBuffer, at: int) -> None:
    """Raise FormatError unless ``buffer`` has ``size`` bytes from ``at`` on."""
    left = size_of(buffer) - at
    if at < 0 or left < size:
        raise FormatError(what, at, f"needs {size} bytes, {max(left, 0)} are left")


def not_negative(
    layout: Layout, what: str, at: int, values: Sequence[int], fields: Sequence[str]
) -> None:
    """Raise FormatError if one of ``fields`` is negative, which no writer stores there."""
    for (field, offset), value in zip(layout.offsets.items(), values, strict=True):
        if value < 0 and field in fields:
            raise FormatError(_name(what, field), at + offset, f"{value} is negative")


def _name(what: str, field: str) -> str:
    return f"{what} {field.replace('_', ' ')}"
