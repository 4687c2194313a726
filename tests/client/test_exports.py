"""Everything that a program needs is exported from ``firetrail.client``, and documented."""

import builtins
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firetrail import client
from firetrail.client import Admin, Producer, PullConsumer, PushConsumer, SimpleConsumer, sync

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "client.md"
EXPORTED = {getattr(client, name) for name in client.__all__}
CLIENTS = (Admin, Producer, PullConsumer, PushConsumer, SimpleConsumer)


def test_all_is_sorted_and_has_no_duplicates() -> None:
    assert client.__all__ == sorted(set(client.__all__), key=lambda name: (name.islower(), name))


def test_names_in_the_guide_are_exported() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:[a-z_]+=)?([A-Z][a-z]+\w*)\b", text))
    assert {"MessageModel", "ClientClosedError", "Producer"} <= named
    homes = (client, sync, builtins)
    missing = {name for name in named if not any(hasattr(home, name) for home in homes)}
    assert missing <= {"CancelledError", "TaskGroup"}  # asyncio's


def types_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and not typing.get_args(hint):
        yield hint
    for part in typing.get_args(hint):
        if isinstance(part, list):
            for each in part:
                yield from types_in(each)
        else:
            yield from types_in(part)


@pytest.mark.parametrize("kind", CLIENTS)
def test_types_of_arguments_are_exported(kind: type) -> None:
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if name.startswith("_") and name != "__init__":
            continue
        hints = typing.get_type_hints(method)
        hints.pop("return", None)
        needed = {each for hint in hints.values() for each in types_in(hint)}
        ours = {each for each in needed if each.__module__.startswith("firetrail")}
        assert ours <= EXPORTED, f"{kind.__name__}.{name}"


def documented_functions() -> Iterator[Any]:
    """Yield the clients, their public methods, and the exported functions."""
    for name in client.__all__:
        exported = getattr(client, name)
        if inspect.isfunction(exported) or exported in CLIENTS:
            yield pytest.param(exported, id=name)
        if exported in CLIENTS:
            for method, function in inspect.getmembers(exported, inspect.isfunction):
                if not method.startswith("_"):
                    yield pytest.param(function, id=f"{name}.{method}")


@pytest.mark.parametrize("function", list(documented_functions()))
def test_every_argument_is_documented(function: Any) -> None:
    text = inspect.getdoc(function) or ""
    names = set(inspect.signature(function).parameters) - {"self"}
    assert not {name for name in names if not re.search(rf"^ +{name}: ", text, re.M)}
