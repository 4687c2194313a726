"""Whole numbers: the limits of Java's types, and checks of arguments and of what users write."""

import re
from operator import index
from typing import SupportsIndex, cast

from firetrail.errors import ConfigError, WrongTypeError

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

_WRITTEN = re.compile(r"[+-]?[0-9]{1,99}")
PLAIN_MAX = 18
"""Maximum number of digits of numbers that always fit into 64 bits."""


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


def number_in(text: str | None, least: int = INT64_MIN, most: int = INT64_MAX) -> int | None:
    """Return the number that a peer or a user wrote; None for other text, or if it is out of range.

    It is written as for Java's ``Long.parseLong``: digits, after a sign or none. The digits are
    ASCII, at most 99, and there are no blanks and underscores, which Python's ``int`` would take.

    Args:
        text: The text; None is not a number.
        least: The least number in the range. Default: the least one of 64 bits.
        most: The largest number in the range. Default: the largest one of 64 bits.
    """
    if text is None:
        return None
    is_plain = len(text) <= PLAIN_MAX and text.isascii() and text.isdigit()
    if not is_plain and not _WRITTEN.fullmatch(text):
        return None
    number = int(text)
    return number if least <= number <= most else None


def parse_whole(text: str, least: int = 0, most: int = INT64_MAX) -> int:
    """Return the same; raise ValueError where there is no number from ``least`` to ``most``."""
    number = number_in(text, least, most)
    if number is None:
        raise ValueError(f"expected a whole number, at least {least}: {text[:100]!r}")
    return number
