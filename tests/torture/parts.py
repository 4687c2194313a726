"""The torments, by name: what each run of ``make torture`` draws from."""

from __future__ import annotations

import asyncio
import errno
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.torture.failing import (
    GROWING,
    SYNCED,
    can_mount,
    disk_is_full,
    small_disk,
    start_fails,
    sync_fails,
    sync_is_slow,
)
from tests.torture.killing import kill_loop

Part = Callable[[Path, int], Counter[str]]
"""Torments a broker in an empty folder, all chances drawn from a seed; gives figures."""
MODES = ("SYNC_FLUSH", "ASYNC_FLUSH")


def _drawn(seed: int) -> random.Random:
    """The choices of a part; those inside of it are drawn from the seed itself."""
    return random.Random(f"part {seed}")


def _kill(folder: Path, seed: int) -> Counter[str]:
    return asyncio.run(kill_loop(folder, seed, _drawn(seed).choice(MODES)))


def _failed_sync(folder: Path, seed: int) -> Counter[str]:
    drawn = _drawn(seed)
    return asyncio.run(sync_fails(folder, seed, drawn.choice(MODES), drawn.choice(SYNCED)))


def _slow_sync(folder: Path, seed: int) -> Counter[str]:
    return asyncio.run(sync_is_slow(folder, seed))


def _full_disk(folder: Path, seed: int) -> Counter[str]:
    drawn = _drawn(seed)
    return asyncio.run(disk_is_full(folder, seed, drawn.choice(MODES), drawn.choice(GROWING)))


def _small_disk(folder: Path, seed: int) -> Counter[str]:
    if not can_mount():
        return Counter({"left out: this user may not mount": 1})
    drawn = _drawn(seed)
    size_kib = drawn.randrange(6_000, 16_000)
    return asyncio.run(small_disk(folder, seed, drawn.choice(MODES), size_kib))


def _start(folder: Path, seed: int) -> Counter[str]:
    return asyncio.run(start_fails(folder, seed, _drawn(seed).choice((errno.ENOSPC, errno.EIO))))


PARTS: dict[str, Part] = {
    "kill": _kill,
    "failed sync": _failed_sync,
    "full disk": _full_disk,
    "failed start": _start,
    "slow sync": _slow_sync,
    "small disk": _small_disk,
}
