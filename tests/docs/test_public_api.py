"""Every public class, method and function documents its arguments.

Public is what a front door exports: the modules that users import from.
"""

import ast
import dataclasses
import enum
import importlib
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

FRONT_DOORS = (
    "firetrail",
    "firetrail.broker",
    "firetrail.client",
    "firetrail.pipeline",
    "firetrail.testing",
)
_ITEM = re.compile(r" {4}([*\w]+(?:, [*\w]+)*):")


def exported(door: str) -> dict[str, Any]:
    """Return the public objects of a front door: those of ``__all__``, or its own functions."""
    module = importlib.import_module(door)
    names = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if getattr(value, "__module__", "") == door
    ]
    return {name: getattr(module, name) for name in names}


def documented(text: str) -> set[str]:
    """Return the names in the sections ``Args:`` and ``Attributes:`` of a docstring."""
    names: set[str] = set()
    inside = False
    for line in text.splitlines():
        if line and not line.startswith(" "):
            inside = line in ("Args:", "Attributes:")
        elif inside and (item := _ITEM.match(line)):
            names.update(name.strip("* ") for name in item[1].split(","))
    return names


def arguments(function: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments of a function or class, without ``self``."""
    try:
        names = inspect.signature(function).parameters
    except ValueError:  # a class of a compiled kernel, whose instances are only read
        return []
    return [name for name in names if name not in ("self", "cls") and not name.startswith("_")]


def undocumented(function: Callable[..., Any], text: str) -> list[str]:
    """Return the arguments of a function that its docstring does not document.

    A function of one or two arguments may explain them in its sentence, in double backticks.
    """
    names = arguments(function)
    known = documented(text)
    if len(names) <= 2:
        known |= {name for name in names if f"``{name}``" in text}
    return [name for name in names if name not in known]


def gaps(name: str, value: Any) -> Iterator[str]:
    """Yield the missing arguments of a class, its public methods, or a function."""
    if not inspect.getdoc(value):
        yield f"{name} has no docstring"
    if inspect.isfunction(value):
        yield from (f"{name}({each})" for each in undocumented(value, inspect.getdoc(value) or ""))
    if not inspect.isclass(value):
        return
    if is_created_by_users(value):
        known = documented_fields(value)
        yield from (f"{name}({each})" for each in arguments(value) if each not in known)
    for method_name, method in vars(value).items():
        function = getattr(method, "__func__", method)
        if not method_name.startswith("_") and inspect.isfunction(function):
            yield from gaps(f"{name}.{method_name}", function)


def commented_fields(kind: type[Any]) -> set[str]:
    """Return the fields of a class that have a docstring below them."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError):  # built in, or compiled
        return set()
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id
        for field, text in itertools.pairwise(tree.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }


def is_created_by_users(kind: type[Any]) -> bool:
    """Return whether users call the class itself, instead of its class method ``open``."""
    if issubclass(kind, enum.Enum) or kind.__init__ is Exception.__init__:
        return False
    return not inspect.ismethod(getattr(kind, "open", None))


def documented_fields(kind: type[Any]) -> set[str]:
    """Return the arguments that a class, its bases, or its table of settings document."""
    known = documented(inspect.getdoc(kind.__init__) or "")
    for base in kind.__mro__[:-1]:
        known |= documented(inspect.getdoc(base) or "") | commented_fields(base)
    if dataclasses.is_dataclass(kind):
        known |= {field.name for field in dataclasses.fields(kind) if field.metadata.get("doc")}
    return known


CASES = {
    f"{door}.{name}": value
    for door in FRONT_DOORS
    for name, value in exported(door).items()
    if inspect.isclass(value) or inspect.isfunction(value)
}


@pytest.mark.parametrize("name", CASES)
def test_every_argument_is_documented(name: str) -> None:
    assert not list(gaps(name, CASES[name]))


def test_a_gap_is_found() -> None:
    class Sender:
        """Sends.

        Args:
            topic: The topic,
                name: not an argument.
        """

        def __init__(self, topic: str, name: str) -> None: ...

        def send(self, body: bytes) -> None:
            """Send ``body``."""

        def send_all(self, bodies: list[bytes], key: str, timeout_s: float) -> None:
            """Send ``bodies``.

            Args:
                key: The key.
            """

        def stop(self) -> None: ...

    assert list(gaps("Sender", Sender)) == [
        "Sender(name)",
        "Sender.send_all(bodies)",
        "Sender.send_all(timeout_s)",
        "Sender.stop has no docstring",
    ]


@pytest.mark.parametrize("door", FRONT_DOORS)
def test_interactive_shells_can_complete_every_public_name(door: str) -> None:
    """This includes names that are imported on first use."""
    assert set(exported(door)) <= set(dir(importlib.import_module(door)))
