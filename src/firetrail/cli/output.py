"""What people read: sizes, times, tables, colours and progress."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TextIO

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_COLOURS = {"red": "31", "green": "32", "yellow": "33", "bold": "1", "dim": "2"}
_NAME_MAX = 40
_PROGRESS_EVERY_S = 0.2


def human_size(size: int) -> str:
    """``1536`` as ``1.5 KiB``."""
    power = min((max(size, 1).bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"{size / 1024**power:.1f} {_UNITS[power]}" if power else f"{size} B"


def human_time(time_ms: int | None) -> str:
    """A time of the store, UTC to the ms; ``-`` for none."""
    if not time_ms or time_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{time_ms % 1000:03d}Z"


def counted(number: int, thing: str) -> str:
    """``1 file``, ``2 files``; ``1 entry``, ``2 entries``."""
    if number == 1:
        return f"1 {thing}"
    return f"{number} {thing[:-1]}ies" if thing.endswith("y") else f"{number} {thing}s"


def shortened(name: str) -> str:
    """A name that fits into a table."""
    return name if len(name) <= _NAME_MAX else f"{name[:_NAME_MAX]}…"


def colour(text: str, name: str, stream: TextIO | None = None) -> str:
    """``text`` in a colour if ``stream`` (standard output) is a terminal that wants colours."""
    stream = stream or sys.stdout
    if not stream.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb":
        return text
    return f"\033[{_COLOURS[name]}m{text}\033[0m"


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines of an aligned table; heads that end in ``>`` are columns of numbers, aligned right."""
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
    """A remark beside the results: to standard error."""
    print(f"firetrail: {text}", file=sys.stderr)


class Progress:
    """How far long work has come, on standard error if that is a terminal.

    The total is bytes unless ``shown`` makes another text of it.
    """

    def __init__(self, what: str, total: int, shown: Callable[[int], str] = human_size) -> None:
        self._what = what
        self._total_shown = shown(total)
        self._total = max(total, 1)
        self._shown = sys.stderr.isatty()
        self._next = time.monotonic() + _PROGRESS_EVERY_S
        self._drawn = False

    def __call__(self, done: int) -> None:
        """``done`` of the total are done."""
        if not self._shown or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _PROGRESS_EVERY_S
        self._drawn = True
        share = min(done / self._total, 1.0)
        print(
            f"\r{self._what} {share:4.0%} of {self._total_shown} ",
            end="",
            file=sys.stderr,
            flush=True,
        )

    def clear(self) -> None:
        """Take the line away again."""
        if self._drawn:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def nothing(done: int) -> None:
    """Progress that nobody looks at."""


OnProgress = Callable[[int], None]
