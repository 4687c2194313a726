"""Whole numbers: the limits of Java's types, and checks of arguments and of what users write."""

from __future__ import annotations

import re
from operator import index
from typing import SupportsIndex, cast

from firetrail.errors import ConfigError, WrongTypeError

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

_WRITTEN = re.compile(r"[+-]?[0-9]{1,99}")


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


def whole_in(text: str) -> int | None:
    """Return the number that a user wrote in a file, an argument or an option; None for other text.

    Digits are ASCII, and there are no blanks and underscores, which Python's ``int`` would take.
    """
    return int(text) if _WRITTEN.fullmatch(text) else None


def parse_whole(text: str, least: int = 0, most: int = INT64_MAX) -> int:
    """Return the same; raise ValueError unless the number is from ``least`` to ``most``."""
    number = whole_in(text)
    if number is None or not least <= number <= most:
        raise ValueError(f"expected a whole number, at least {least}: {text!r}")
    return number
