"""A short turn of each torment; ``make torture`` goes on for as long as it is given."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.torture import bending, failing, syncing
from tests.torture.faults import compiler
from tests.torture.killing import kill_loop
from tests.torture.soaking import soak
from tests.torture.spoiling import spoil

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(compiler() is None, reason="faults.c needs a C compiler"),
]
SEED = 1


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Clients complain a lot about brokers that are killed."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def run(part: Coroutine[Any, Any, Any]) -> None:
    print(f"seed {SEED}: {dict(asyncio.run(part))}")


def test_kills_async(tmp_path: Path) -> None:
    run(kill_loop(tmp_path, SEED, "ASYNC_FLUSH", count=4))


def test_kills_sync(tmp_path: Path) -> None:
    run(kill_loop(tmp_path, SEED, "SYNC_FLUSH", count=4))


def test_a_sync_fails(tmp_path: Path) -> None:
    run(syncing.sync_fails(tmp_path, SEED, "SYNC_FLUSH", "commitlog", skip=7))


def test_a_sync_is_slow(tmp_path: Path) -> None:
    run(syncing.sync_is_slow(tmp_path, SEED))


def test_the_disk_is_full(tmp_path: Path) -> None:
    run(failing.disk_is_full(tmp_path, SEED, "ASYNC_FLUSH", "", skip=5))


def test_a_start_fails(tmp_path: Path) -> None:
    run(failing.start_fails(tmp_path, SEED, errno.ENOSPC, first=2, starts=2))


def test_the_clock_is_set(tmp_path: Path) -> None:
    run(bending.clock_jumps(tmp_path, SEED, "SYNC_FLUSH", jumps=1))


def test_no_descriptors_for_a_while(tmp_path: Path) -> None:
    run(bending.few_files(tmp_path, SEED))


def test_bits_flip_and_files_end_early(tmp_path: Path) -> None:
    run(spoil(tmp_path, SEED, 60))


def test_nothing_piles_up(tmp_path: Path) -> None:
    run(soak(tmp_path, SEED, 5))
