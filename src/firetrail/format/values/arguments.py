"""Checks of the arguments of public functions, because types are not enforced at run time.

Each check returns the argument if it is valid. Otherwise it raises WrongTypeError for a wrong type
and ConfigError for a wrong value. The error names the argument, the given value and what is
expected.
"""

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import TypeVar

from firetrail.errors import ConfigError, WrongTypeError
from firetrail.format.values.integers import INT64_MAX, whole

SECONDS_MAX = 1 << 31
"""The longest time that a program can ask for, 68 years; in milliseconds it fits into int64."""
MS = 0.001

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
F = TypeVar("F", bound=Callable[..., object])


def number(name: str, value: object, least: int = 0, most: int = INT64_MAX) -> int:
    """Return ``value`` if it is a whole number from ``least`` to ``most``."""
    found = whole(name, value)
    if not least <= found <= most:
        limits = f"{least} or more" if most == INT64_MAX else f"{least} to {most}"
        raise ConfigError(name, value, f"expected {limits}")
    return found


def seconds(name: str, value: object, least: float = 0.0) -> float:
    """Return ``value`` if it is a finite number of seconds, at least ``least``."""
    allowed = f"expected a number of seconds from {least:g} to {SECONDS_MAX}"
    if not isinstance(value, Real) or isinstance(value, bool):
        raise WrongTypeError(name, value, allowed)
    found = float(value)
    if not least <= found <= SECONDS_MAX:
        raise ConfigError(name, value, allowed)
    return found


def text(name: str, value: object) -> str:
    """Return ``value`` if it is a str and not empty."""
    if not isinstance(value, str):
        raise WrongTypeError(name, value, "expected a str")
    if not value:
        raise ConfigError(name, value, "is empty")
    return value


def truth(name: str, value: object) -> bool:
    """Return ``value`` if it is True or False; other truthy or falsy values are errors."""
    if not isinstance(value, bool):
        raise WrongTypeError(name, value, "expected True or False")
    return value


def function(name: str, value: F, example: str) -> F:
    """Return ``value`` if it is callable; the error quotes ``example``."""
    if not callable(value):
        raise WrongTypeError(name, value, f"expected a function, such as {example}")
    return value


def instance(name: str, value: object, kind: type[T]) -> T:
    """Return ``value`` if it is an instance of ``kind``."""
    if not isinstance(value, kind):
        raise WrongTypeError(name, value, f"expected a {kind.__name__}")
    return value


def mapping(name: str, value: Mapping[K, V]) -> Mapping[K, V]:
    """Return ``value`` if it is a mapping, such as a dict."""
    if not isinstance(value, Mapping):
        raise WrongTypeError(name, value, "expected a dict")
    return value


def several(name: str, values: Sequence[T], kind: type[T]) -> Sequence[T]:
    """Return ``values`` if it is a sequence of instances of ``kind``."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise WrongTypeError(name, values, f"expected a list of {kind.__name__} objects")
    for position, value in enumerate(values):
        instance(f"{name}[{position}]", value, kind)
    return values
