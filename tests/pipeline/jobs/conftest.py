"""Fixtures for the jobs: small stores, and messages to put into them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import Machine, small_config

from firetrail import Message, Store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def put(root: Path) -> Callable[..., None]:
    """Return a function that opens the store, puts messages and closes it.

    All messages are of one day: files of different days are not merged.
    """
    numbers = iter(range(1_000_000))
    machine = Machine()

    def put_some(count: int = 30, path: Path = root, **settings: Any) -> None:
        with Store.open(path, small_config(**settings), system=machine.system) as store:
            for number in _next(numbers, count):
                machine.clock.advance(1)
                topic = ("orders", "%RETRY%group", "123")[number % 3]
                body = b"message %d" % number
                store.put(Message(topic, body, tags="t", keys=[f"k{number}"], queue_id=number % 2))

    return put_some


def _next(numbers: Iterator[int], count: int) -> Iterator[int]:
    return (next(numbers) for _ in range(count))
