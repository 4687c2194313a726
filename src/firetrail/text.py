"""Sizes, times, counts and lists of names as text for people."""

import difflib
import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

NAMED_MAX = 5
"""Maximum number of names in a line; the others are counted."""
TYPO_MAX, TYPO_LONG = 2, 8
"""Maximum number of wrong letters in a misspelt name, and minimum length of a name for it."""
SIMILAR_MIN = 0.75
"""The similarity from which on a name is suggested for a misspelt one, from 0 to 1 for equality."""
_VOWELS = "aeiou"
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
    """Format a count: ``1 file``, ``2 files``; ``1 entry``, ``2 entries``; ``2 days``."""
    if number == 1:
        return f"1 {thing}"
    ends_in_ies = thing.endswith("y") and thing[-2:-1] not in _VOWELS
    return f"{number} {thing[:-1]}ies" if ends_in_ies else f"{number} {thing}s"


def human_duration(seconds: int) -> str:
    """Format a duration in the largest unit that divides it: ``5400`` as ``90 minutes``."""
    for size, unit in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds and seconds % size == 0:
            return counted(seconds // size, unit)
    return counted(seconds, "second")


def os_reason(error: OSError) -> str:
    """Return why an operation failed: ``Connection refused``, without number and address."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)


def some_of(names: Sequence[object]) -> str:
    """List the first names or numbers, and say how many more there are."""
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(map(str, names[:NAMED_MAX])) + more


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return ``"; did you mean …?"`` with the name nearest to ``name``, or "" if none is near."""
    known = {other.lower(): other for other in names}
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=SIMILAR_MIN)
    return f"; did you mean {known[near[0]]}?" if near else ""


def typo_of(name: str, names: Iterable[str]) -> str:
    """Return the name of which ``name`` is a misspelling; empty if there is none.

    At most two letters are wrong, missing, added or swapped, and at most one in a short name.
    A name that is only similar may be intended; one that is this close is most likely a mistake.
    """
    most = TYPO_MAX if len(name) >= TYPO_LONG else 1
    near = [(edit_distance(name.lower(), other.lower(), most), other) for other in names]
    distance, found = min(near, default=(most + 1, ""))
    return found if distance <= most else ""


def edit_distance(one: str, other: str, most: int) -> int:
    """Return the number of letters to change, add, remove or swap with their neighbour.

    The result is ``most`` + 1 if there are more than ``most``.
    """
    if abs(len(one) - len(other)) > most:
        return most + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        before, row, last = row, [i], before
        for j, wanted in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
        if min(row) > most:
            return most + 1
    return min(row[-1], most + 1)


def printable(text: str, most: int | None = None) -> str:
    """Return text of a peer for a log line, at most ``most`` long.

    Invisible characters are escaped: controls, also those that change the direction of text, spaces
    other than the usual one, and characters that Unicode does not define.
    """
    if most is not None and len(text) > most:
        text = f"{text[:most]}…"
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escape(each) for each in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


def camel(name: str) -> str:
    """Return the name of a field in RocketMQ's JSON: ``queue_id`` becomes ``queueId``."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
