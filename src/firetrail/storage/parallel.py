"""Many small looks at files, several at a time: a disk answers them together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

THREADS = 8
"""Looks at a time."""
SHARE = 32
"""Items that a thread takes at a time; fewer are not worth a thread."""
A = TypeVar("A")
B = TypeVar("B")


def each(look: Callable[[A], B], items: Sequence[A]) -> Iterable[B]:
    """What ``look`` gives for each item, in their order. It is called in several threads."""
    if len(items) <= SHARE:
        return map(look, items)
    shares = [items[at : at + SHARE] for at in range(0, len(items), SHARE)]
    with ThreadPoolExecutor(THREADS, "firetrail-look") as pool:
        return chain.from_iterable(pool.map(lambda share: [look(item) for item in share], shares))
