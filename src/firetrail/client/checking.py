"""Checks of the arguments of clients: an error says which one is wrong, and what is allowed."""

from __future__ import annotations

from typing import TypeVar

from firetrail.errors import ConfigError
from firetrail.format.names import GROUP_RULE, is_group

Number = TypeVar("Number", int, float)


def checked_group(name: str) -> str:
    """The name of a group. ConfigError if it cannot be one."""
    if not isinstance(name, str) or not is_group(name):
        raise ConfigError("group", name, GROUP_RULE)
    return name


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
