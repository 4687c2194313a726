"""Sizes, times and counts as text for people."""

from __future__ import annotations

from datetime import UTC, datetime

NAMED_MAX = 5
"""Names that a line lists at most; the others are counted."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def human_size(size: int) -> str:
    """Format a number of bytes: ``1536`` as ``1.5 KiB``."""
    power = min((max(size, 1).bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"{size / 1024**power:.1f} {_UNITS[power]}" if power else f"{size} B"


def human_time(time_ms: int | None) -> str:
    """Format a time of the store in UTC, with milliseconds; ``-`` for None or 0."""
    if not time_ms or time_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{time_ms % 1000:03d}Z"


def counted(number: int, thing: str) -> str:
    """Format a count: ``1 file``, ``2 files``; ``1 entry``, ``2 entries``."""
    if number == 1:
        return f"1 {thing}"
    return f"{number} {thing[:-1]}ies" if thing.endswith("y") else f"{number} {thing}s"


def some_of(names: list[str]) -> str:
    """List the first names, and say how many more there are."""
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
