"""Many small reads of files in parallel, which a disk serves together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TypeVar

from firetrail.system import Threads

THREADS = 8
"""Calls that run at the same time."""
SHARE = 32
"""Items that a thread takes at a time; fewer items are not worth a thread."""
A = TypeVar("A")
B = TypeVar("B")


def map_in_threads(threads: Threads, function: Callable[[A], B], items: Sequence[A]) -> Iterable[B]:
    """Call ``function`` for each item, in several threads; return the results in order."""
    if len(items) <= SHARE:
        return map(function, items)
    shares = [items[at : at + SHARE] for at in range(0, len(items), SHARE)]

    def call_each(share: Sequence[A]) -> list[B]:
        return [function(item) for item in share]

    return chain.from_iterable(list(threads.map("firetrail-map", THREADS, call_each, shares)))
