"""A disk that is full, and one that fails at the start, under a broker that is used."""

import asyncio
import errno
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.crash.oracle import Violation
from tests.torture.faults import CHANGES, SPACE
from tests.torture.process import Refused
from tests.torture.scene import Scene, scene
from tests.torture.syncs import MODES, REFUSALS

GROWING = {"commitlog": 4, "consumequeue": 30, "index": 2, "config": 30, "": 60}
"""Parts of paths (empty: any) that need more space while a broker runs; everything else is
allocated at the start. For a value of n there is a round that runs out of space after 0 such
operations, one after 1, and so on up to n - 1."""
FULL_WALK = [
    (mode, place, n) for mode in MODES for place, count in GROWING.items() for n in range(count)
]
"""All combinations of these; consecutive seeds try one after the other."""
START_WALK = [(code, n) for n in range(0, 60, 6) for code in (errno.ENOSPC, errno.EIO)]
"""The same for operations of a start, six per round."""


async def disk_is_full(folder: Path, seed: int, mode: str, place: str, skip: int) -> Counter[str]:
    """Let the disk be full after this number of allocations, and have space again later."""
    async with scene(folder, seed, {"flushDiskType": mode}) as stage:
        hits = stage.faults.add(SPACE, errno.ENOSPC, match=place, skip=skip)
        await stage.until(hits, f"there is no space for {place or 'anything'}")
        await asyncio.sleep(stage.source.uniform(0.2, 1.5))
        if stage.source.random() < 0.3:
            await stage.kill()
            stage.faults.heal()
            await stage.start()
        else:
            await _goes_on(stage)
        count = hits()
        await stage.takes_messages()
        await stage.finish()
        return _figures(stage, f"writes without space: {place or 'anywhere'}", count)


async def _goes_on(stage: Scene) -> None:
    """Reads are served while the disk is full, and messages are taken when it no longer is."""
    if not stage.broker.is_running:
        raise Violation("a full disk ended the broker")
    if not await stage.check_reads(may_lag=True):
        raise Violation("nothing can be read while the disk is full")
    # A topic or group that could not be created does not exist (codes 17 and 26).
    for code in stage.load.errors:
        if code not in (*REFUSALS, "code 17", "code 26"):
            raise Violation(f"a full disk is answered with {dict(stage.load.remarks)}")
    stage.faults.heal()


async def start_fails(
    folder: Path, seed: int, code: int, first: int, starts: int = 6
) -> Counter[str]:
    """Let a change of a file fail while a killed store is opened: the first, then the next one.

    The broker either serves, or refuses with a message that names the failure. In the end no
    message is missing.
    """
    refused = reached = 0
    async with scene(folder, seed) as stage:
        await stage.takes_messages()
        await stage.kill()
        operations = SPACE if code == errno.ENOSPC else CHANGES
        for number in range(first, first + starts):
            failed = stage.faults.add(operations, code, skip=number)
            try:
                await stage.broker.start()
            except Refused as why:
                refused += 1
                reason = os.strerror(code) in str(why) or "no space" in str(why)
                if "Traceback" in str(why) or str(stage.broker.store) not in str(why) or not reason:
                    raise Violation(f"refused without a clear word: {why}") from why
            else:
                reached += bool(failed())
                await stage.broker.kill()
            stage.faults.heal()
            stage.look()
        await stage.start()
        await stage.finish()
        return Counter({"starts refused": refused, "served all the same": reached}) + (
            stage.load.figures()
        )


async def small_disk(folder: Path, seed: int, mode: str, size_kib: int) -> Counter[str]:
    """Let a file system in memory really fill up, and then give it more space."""
    with small_file_system(folder / "disk", size_kib) as grow:
        # Ratios that the test's disk reaches: the broker meets the end of the space itself.
        conf = {"flushDiskType": mode, "cleanFileForciblyEnable": "false"}
        async with scene(folder / "disk", seed, conf) as stage:
            refused = stage.load.errors
            await stage.until(lambda: any(refused[code] for code in REFUSALS), "the disk is full")
            await asyncio.sleep(0.5)
            await stage.check_reads(may_lag=True)
            if not stage.broker.is_running:
                raise Violation("a full disk ended the broker")
            if stage.source.random() < 0.5:
                await stage.kill()
                stage.load.gone()
            grow()
            if not stage.broker.is_running:
                await stage.start()
            await stage.takes_messages()
            await stage.finish()
            return _figures(stage, "disks filled", 1)


@contextmanager
def small_file_system(folder: Path, size_kib: int) -> Iterator[Callable[[], None]]:
    """Mount a file system in memory on a new folder; yield a function that gives it more space."""
    folder.mkdir()
    mounted = ["-t", "tmpfs", "-o", f"size={size_kib}k", "firetrail", str(folder)]
    subprocess.run(["mount", *mounted], check=True)

    def grow() -> None:
        subprocess.run(["mount", "-o", "remount,size=200m", str(folder)], check=True)

    try:
        yield grow
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def can_mount() -> bool:
    """Return whether this process may mount file systems."""
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "probe", "/mnt"]
    return subprocess.run(probe, capture_output=True).returncode == 0


def _figures(stage: Scene, what: str, count: int) -> Counter[str]:
    return Counter({what: count}) + stage.load.figures()
