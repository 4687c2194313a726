"""Many small reads of files in parallel, which a disk serves together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

THREADS = 8
"""Calls that run at the same time."""
SHARE = 32
"""Items that a thread takes at a time; fewer items are not worth a thread."""
A = TypeVar("A")
B = TypeVar("B")


def map_in_threads(function: Callable[[A], B], items: Sequence[A]) -> Iterable[B]:
    """Call ``function`` for each item, in several threads; return the results in order."""
    if len(items) <= SHARE:
        return map(function, items)
    shares = [items[at : at + SHARE] for at in range(0, len(items), SHARE)]
    with ThreadPoolExecutor(THREADS, "firetrail-map") as pool:
        results = pool.map(lambda share: [function(item) for item in share], shares)
        return chain.from_iterable(results)
