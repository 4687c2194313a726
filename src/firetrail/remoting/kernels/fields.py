"""The decoder of typed headers from the text fields of a command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from firetrail.format.values.integers import INT32_MAX, INT32_MIN, INT64_MIN, PLAIN_MAX, parse_whole
from firetrail.format.values.truths import is_true_field

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

if cython.compiled:
    from cython.cimports.cpython.object import PyObject_GenericSetAttr as set_attribute
else:
    set_attribute = object.__setattr__

COMPILED = cython.compiled

TEXT = 0
INT32 = 1
INT64 = 2
BOOL = 3

_INT32 = cython.declare(cython.int, INT32)
_INT64 = cython.declare(cython.int, INT64)
_BOOL = cython.declare(cython.int, BOOL)
_INT32_MAX = cython.declare(cython.longlong, INT32_MAX)
_INT32_MIN = cython.declare(cython.longlong, INT32_MIN)
_PLAIN_MAX = cython.declare(cython.Py_ssize_t, PLAIN_MAX)


def fill_header(
    header: object, plan: Sequence[tuple[str, str, int, bool, Any]], wire: Mapping[str, str]
) -> bool:
    """Set the attributes of a header, frozen or not, from the fields of a command.

    For each attribute the plan contains its name, its name on the wire, its kind, whether it is
    required, and its default. Return False if a field is missing or invalid; the header is then
    incomplete and must not be used.
    """
    try:
        return _fill(header, plan, wire.get)
    except (ValueError, OverflowError):
        return False


@cython.cfunc
def _number(text: str) -> Any:
    """Return what ``parse_whole`` does, without a call for plain digits, which nearly all are."""
    if len(text) <= _PLAIN_MAX and text.isascii() and text.isdigit():
        return int(text)
    return parse_whole(text, INT64_MIN)


@cython.cfunc
def _fill(header: object, plan: Sequence[tuple[str, str, int, bool, Any]], get: Any) -> bool:
    kind: cython.int
    number: cython.longlong
    for name, wire_name, kind, required, default in plan:
        text = get(wire_name)
        if text is None:
            if required:
                return False
            set_attribute(header, name, default)
        elif kind == _INT32:
            number = _number(text)
            if not _INT32_MIN <= number <= _INT32_MAX:
                return False
            set_attribute(header, name, number)
        elif kind == _INT64:
            set_attribute(header, name, _number(text))
        elif kind == _BOOL:
            set_attribute(header, name, is_true_field(text))
        else:
            set_attribute(header, name, text)
    return True
