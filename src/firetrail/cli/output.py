"""Output for people: sizes, times, tables, colours and progress."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Self, TextIO

from firetrail.system import SYSTEM
from firetrail.text import counted, human_size, human_time

__all__ = [
    "OnProgress",
    "Progress",
    "colour",
    "counted",
    "human_size",
    "human_time",
    "nothing",
    "say",
    "shortened",
    "table",
]

_COLOURS = {"red": "31", "green": "32", "yellow": "33", "bold": "1", "dim": "2"}
_NAME_MAX = 40
_PROGRESS_EVERY_S = 0.2


def shortened(name: str) -> str:
    """Cut a name so that it fits into a table."""
    return name if len(name) <= _NAME_MAX else f"{name[:_NAME_MAX]}…"


def colour(text: str, name: str, stream: TextIO | None = None) -> str:
    """Colour ``text`` if ``stream`` (default: standard output) is a terminal with colours."""
    stream = stream or sys.stdout
    if not stream.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb":
        return text
    return f"\033[{_COLOURS[name]}m{text}\033[0m"


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines of an aligned table; a head that ends in ``>`` aligns its column right."""
    names = [head.removesuffix(">") for head in heads]
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    right = [head.endswith(">") for head in heads]

    def line(row: Sequence[str]) -> str:
        parts = (
            cell.rjust(width) if numeric else cell.ljust(width)
            for cell, width, numeric in zip(row, widths, right, strict=True)
        )
        return "  ".join(parts).rstrip()

    return [colour(line(names), "bold"), *map(line, cells)]


def say(text: str) -> None:
    """Print a remark to standard error, apart from the results."""
    print(f"firetrail: {text}", file=sys.stderr)


class Progress:
    """A progress line on standard error, if that is a terminal.

    ``total`` is in bytes unless ``shown`` formats it as something else.
    """

    def __init__(self, what: str, total: int, shown: Callable[[int], str] = human_size) -> None:
        self._what = what
        self._total_shown = shown(total)
        self._total = max(total, 1)
        self._shown = sys.stderr.isatty()
        self._next = SYSTEM.clock.monotonic() + _PROGRESS_EVERY_S
        self._drawn = False

    def __call__(self, done: int) -> None:
        """Report that ``done`` of the total are done."""
        if not self._shown or SYSTEM.clock.monotonic() < self._next:
            return
        self._next = SYSTEM.clock.monotonic() + _PROGRESS_EVERY_S
        self._drawn = True
        share = min(done / self._total, 1.0)
        print(
            f"\r{self._what} {share:4.0%} of {self._total_shown} ",
            end="",
            file=sys.stderr,
            flush=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        """Remove the line."""
        if self._drawn:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def nothing(done: int) -> None:
    """Ignore progress; the default of functions that report it."""


OnProgress = Callable[[int], None]
