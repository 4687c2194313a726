"""Everything that a program needs of the client is exported from ``firetrail.client``."""

from __future__ import annotations

import builtins
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firetrail import client
from firetrail.client import Admin, Producer, PullConsumer, PushConsumer, SimpleConsumer

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "client.md"
EXPORTED = {getattr(client, name) for name in client.__all__}


def test_all_is_sorted_and_has_no_duplicates() -> None:
    assert client.__all__ == sorted(set(client.__all__), key=lambda name: (name.islower(), name))


def test_names_in_the_guide_are_exported() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:[a-z_]+=)?([A-Z][a-z]+\w*)\b", text))
    assert {"MessageModel", "ClientClosedError", "Producer"} <= named
    missing = {name for name in named if not hasattr(client, name) and not hasattr(builtins, name)}
    assert missing <= {"CancelledError", "TaskGroup"}  # asyncio's


def types_in(hint: Any) -> Iterator[type]:
    """Yield the classes in a type."""
    if isinstance(hint, type) and not typing.get_args(hint):
        yield hint
    for part in typing.get_args(hint):
        if isinstance(part, list):
            for each in part:
                yield from types_in(each)
        else:
            yield from types_in(part)


@pytest.mark.parametrize("kind", [Admin, Producer, PullConsumer, PushConsumer, SimpleConsumer])
def test_types_of_arguments_are_exported(kind: type) -> None:
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if name.startswith("_") and name != "__init__":
            continue
        hints = typing.get_type_hints(method)
        hints.pop("return", None)
        needed = {each for hint in hints.values() for each in types_in(hint)}
        ours = {each for each in needed if each.__module__.startswith("firetrail")}
        assert ours <= EXPORTED, f"{kind.__name__}.{name}"
