"""Properties as a mapping, and as text in their stored form.

Everything that decides by a property looks its exact name up in such a mapping. A search in the
text would also find names that only end like it, and values that only begin like its value.
"""

from __future__ import annotations

from collections.abc import Mapping

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

COMPILED = cython.compiled


def parse_properties(text: str) -> dict[str, str]:
    """Return all properties of the stored form, as the Java parser reads it. This never fails.

    An item without a name, a ``\\x01`` or a value is dropped. If a name occurs several times, the
    last one counts.
    """
    found: dict[str, str] = {}
    start: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t = len(text)
    end: cython.Py_ssize_t
    middle: cython.Py_ssize_t
    while start < size:
        end = text.find("\x02", start)
        if end < 0:
            end = size
        middle = text.find("\x01", start, end)
        if start < middle < end - 1:
            found[text[start:middle]] = text[middle + 1 : end]
        start = end + 1
    return found


def join_properties(properties: Mapping[str, str]) -> str:
    """Return the stored form, in the order of the mapping. Names and values are not checked."""
    parts: list[str] = []
    for name, value in properties.items():
        parts.append(name)
        parts.append("\x01")
        parts.append(value)
        parts.append("\x02")
    return "".join(parts)
