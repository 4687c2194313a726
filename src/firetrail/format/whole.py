"""Whole numbers: the limits of Java's types, and a check of arguments."""

from __future__ import annotations

from operator import index
from typing import SupportsIndex, cast

from firetrail.errors import ConfigError, WrongTypeError

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def whole(name: str, value: object) -> int:
    """Return the argument ``name`` as an int, without rounding or truncating it.

    Raises:
        WrongTypeError: The value is a bool or not a whole number.
        ConfigError: The value does not fit into 64 bits.
    """
    if type(value) is int and INT64_MIN <= value <= INT64_MAX:
        return value
    try:
        number = index(cast(SupportsIndex, value))
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise WrongTypeError(name, value, "expected a whole number")
    if not INT64_MIN <= number <= INT64_MAX:
        raise ConfigError(name, value, "does not fit into 64 bits")
    return number
