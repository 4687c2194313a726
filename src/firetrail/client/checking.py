"""Checks of the arguments of clients: an error says which one is wrong, and what is allowed."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from firetrail.errors import ConfigError
from firetrail.format.names import GROUP_RULE, is_group

Number = TypeVar("Number", int, float)
Choice = TypeVar("Choice", bound=StrEnum)


def checked_group(name: str) -> str:
    """The name of a group. ConfigError if it cannot be one."""
    if not isinstance(name, str) or not is_group(name):
        raise ConfigError("group", name, GROUP_RULE)
    return name


def one_of(kind: type[Choice], name: str, value: str) -> Choice:
    """A member of an enumeration, given as such or as its value, or ConfigError."""
    try:
        return kind(value)
    except ValueError:
        members = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
        raise ConfigError(name, value, f"expected one of {members}") from None


def at_least(least: int, name: str, value: Number) -> Number:
    """A number that is not too small, or ConfigError."""
    if not value >= least:  # NaN is refused, too
        raise ConfigError(name, value, f"has to be {least} or more")
    return value


def positive(name: str, value: float) -> float:
    """A time or the like, or ConfigError."""
    if not value > 0:
        raise ConfigError(name, value, "has to be more than 0")
    return value
