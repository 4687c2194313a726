"""A short run of each torment; ``make torture`` runs them for as long as requested."""

import errno
import logging
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.machine.etcd_program import MISSING, find_etcd
from tests.torture import bent_limits, disk_failures, syncs
from tests.torture.damage import spoil
from tests.torture.faults import compiler
from tests.torture.group.hand_over import hand_over
from tests.torture.group.killed_pair import kill_pair
from tests.torture.kills import kill_loop
from tests.torture.soak import soak

pytestmark = [
    pytest.mark.slow,
    pytest.mark.time_limit(600),
    pytest.mark.skipif(compiler() is None, reason="faults.c needs a C compiler"),
]
SEED = 1


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Clients complain a lot about brokers that are killed."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


async def run(part: Awaitable[Any]) -> None:
    print(f"seed {SEED}: {dict(await part)}")


async def test_kills_async(tmp_path: Path) -> None:
    await run(kill_loop(tmp_path, SEED, "ASYNC_FLUSH", count=2))


async def test_kills_sync(tmp_path: Path) -> None:
    await run(kill_loop(tmp_path, SEED, "SYNC_FLUSH", count=2))


async def test_kills_of_a_master_and_its_replica(tmp_path: Path) -> None:
    await run(kill_pair(tmp_path, SEED, "SYNC_FLUSH", count=2))


@pytest.mark.skipif(find_etcd() is None, reason=MISSING)
async def test_planned_changes_of_the_master_of_a_group(tmp_path: Path) -> None:
    await run(hand_over(tmp_path, SEED, changes=2))


async def test_a_sync_fails(tmp_path: Path) -> None:
    await run(syncs.sync_fails(tmp_path, SEED, "SYNC_FLUSH", "commitlog", skip=7))


async def test_a_sync_is_slow(tmp_path: Path) -> None:
    await run(syncs.sync_is_slow(tmp_path, SEED))


async def test_the_disk_is_full(tmp_path: Path) -> None:
    await run(disk_failures.disk_is_full(tmp_path, SEED, "ASYNC_FLUSH", "", skip=5))


async def test_a_start_fails(tmp_path: Path) -> None:
    await run(disk_failures.start_fails(tmp_path, SEED, errno.ENOSPC, first=2, starts=2))


async def test_the_clock_is_set(tmp_path: Path) -> None:
    await run(bent_limits.clock_jumps(tmp_path, SEED, "SYNC_FLUSH", jumps=1))


async def test_no_descriptors_for_a_while(tmp_path: Path) -> None:
    await run(bent_limits.few_files(tmp_path, SEED))


async def test_bits_flip_and_files_end_early(tmp_path: Path) -> None:
    await run(spoil(tmp_path, SEED, 30))


async def test_nothing_piles_up(tmp_path: Path) -> None:
    await run(soak(tmp_path, SEED, 4))
