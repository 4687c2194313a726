"""Arguments that are whole numbers."""

from __future__ import annotations

from operator import index
from typing import SupportsIndex, cast

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def whole(name: str, value: object) -> int:
    """The number in an argument; TypeError, with the argument's name, if it is not a whole one.

    Nothing is rounded or cut. ValueError if it has more than the 64 bits that a store has for it.
    """
    if type(value) is int and INT64_MIN <= value <= INT64_MAX:
        return value
    try:
        number = index(cast(SupportsIndex, value))
    except TypeError:
        raise TypeError(f"{name}: a whole number is needed, not {value!r:.40}") from None
    if not INT64_MIN <= number <= INT64_MAX:
        raise ValueError(f"{name}: {number:.3e} does not fit into 64 bits")
    return number
