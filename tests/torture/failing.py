"""Syncs that fail or take long, and a disk that is full, under a broker that is used."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from collections import Counter
from pathlib import Path

from tests.crash.oracle import Violation
from tests.torture.faults import CHANGES, SPACE, Operation
from tests.torture.process import Refused
from tests.torture.scene import Scene, scene

from firetrail.client import PullConsumer

STORED = ("commitlog", "consumequeue", "index", "firetrail.watermark")
"""Parts of paths: where the store gives up writing after a failed sync."""
SYNCED = (*STORED, "config", "")
"""Where syncs fail; empty: anywhere."""
GROWING = ("commitlog", "consumequeue", "index", "config", "")
"""Where space is needed while a broker runs; all else has what it needs from the beginning."""
REFUSALS = ("code 1", "code 14")


async def sync_fails(folder: Path, seed: int, mode: str, place: str) -> Counter[str]:
    """One sync fails. Then nothing is acknowledged any more, reads go on, a restart has all."""
    async with scene(folder, seed, {"flushDiskType": mode}) as stage:
        skip = stage.source.randrange(20) if place != "index" else 0
        hits = stage.faults.add(Operation.SYNC, errno.EIO, match=place, skip=skip, times=1)
        await stage.until(hits, f"a sync of {place or 'anything'} failed")
        if place in STORED:
            await _refuses(stage)
            if not stage.broker.is_running or not await stage.check_reads(behind=True):
                raise Violation("nothing can be read after a failed sync")
        elif place == "config":
            await stage.takes_messages()
        stage.load.check()
        await stage.kill()
        stage.faults.heal()
        await stage.start()
        await stage.takes_messages()
        await stage.finish()
        return _figures(stage, "syncs failed", hits())


async def _refuses(stage: Scene) -> None:
    """The broker takes no messages, and says why."""
    errors = stage.load.errors
    await stage.until(lambda: any(errors[code] for code in REFUSALS), "the broker refuses messages")
    await asyncio.sleep(0.1)  # what was under way before
    first = len(stage.ledger.sent)
    await asyncio.sleep(0.3)
    taken = [sent for sent in stage.ledger.sent[first:] if sent.acknowledged]
    if taken:
        raise Violation(f"I1: acknowledged after a failed sync: {taken[:3]}")
    if not any("Input/output error" in remark for remark in stage.load.remarks):
        raise Violation(f"refused without a reason: {dict(stage.load.remarks)}")


async def sync_is_slow(folder: Path, seed: int) -> Counter[str]:
    """Puts are answered with a timeout, never OK; pulls are answered while the disk is busy."""
    conf = {"flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": 300}
    async with scene(folder, seed, conf) as stage:
        await stage.takes_messages()
        hits = stage.faults.add(Operation.SYNC, match="commitlog", delay_ms=2000)
        async with PullConsumer(stage.broker.namesrv, "beside") as consumer:
            queue = (await consumer.queues("T-single"))[0]
            pulled = 0
            while pulled < 20:
                busy = stage.faults.waiting
                await consumer.pull(queue, 0)
                await consumer.committed(queue)
                pulled += 1 if busy and stage.faults.waiting else 0
                await asyncio.sleep(0.005)
        await stage.until(lambda: stage.load.errors["FLUSH_DISK_TIMEOUT"], "puts time out")
        stage.faults.heal()
        await stage.takes_messages()
        await stage.kill()
        await stage.start()
        await stage.finish()
        return _figures(stage, "slow syncs", hits())


async def disk_is_full(folder: Path, seed: int, mode: str, place: str) -> Counter[str]:
    """From some allocation on there is no space; later there is again."""
    async with scene(folder, seed, {"flushDiskType": mode}) as stage:
        skip = stage.source.randrange(30) if place in ("", "config") else 0
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
        return _figures(stage, "writes without space", count)


async def _goes_on(stage: Scene) -> None:
    """Reads are served while the disk is full, and messages are taken when it no longer is."""
    if not stage.broker.is_running:
        raise Violation("a full disk ended the broker")
    if not await stage.check_reads(behind=True):
        raise Violation("nothing can be read while the disk is full")
    for code in stage.load.errors:
        if code not in (*REFUSALS, "code 17"):
            raise Violation(f"a full disk is answered with {dict(stage.load.remarks)}")
    stage.faults.heal()


async def start_fails(folder: Path, seed: int, code: int, starts: int = 6) -> Counter[str]:
    """The n-th change of a file fails while a killed store is opened, and at every start again.

    The broker serves or refuses in a sentence that says what failed; in the end all is there.
    """
    refused = 0
    async with scene(folder, seed) as stage:
        await stage.takes_messages()
        await stage.kill()
        operations = SPACE if code == errno.ENOSPC else CHANGES
        for number in sorted(stage.source.sample(range(30), starts)):
            stage.faults.add(operations, code, skip=number)
            try:
                await stage.broker.start()
            except Refused as why:
                refused += 1
                reason = os.strerror(code) in str(why) or "no space" in str(why)
                if "Traceback" in str(why) or str(stage.broker.store) not in str(why) or not reason:
                    raise Violation(f"refused without a clear word: {why}") from why
            else:
                await stage.broker.kill()
            stage.faults.heal()
            stage.look()
        await stage.start()
        await stage.finish()
        return _figures(stage, "starts refused", refused)


async def small_disk(folder: Path, seed: int, mode: str, size_kib: int) -> Counter[str]:
    """A file system in memory that fills up for real, and then is given more space."""
    disk = folder / "disk"
    disk.mkdir()
    mounted = ["-t", "tmpfs", "-o", f"size={size_kib}k", "firetrail", str(disk)]
    subprocess.run(["mount", *mounted], check=True)
    try:
        # Ratios that the test's disk reaches: the broker meets the end of the space itself.
        conf = {"flushDiskType": mode, "cleanFileForciblyEnable": "false"}
        async with scene(disk, seed, conf) as stage:
            refused = stage.load.errors
            await stage.until(lambda: any(refused[code] for code in REFUSALS), "the disk is full")
            await asyncio.sleep(0.5)
            await stage.check_reads(behind=True)
            if not stage.broker.is_running:
                raise Violation("a full disk ended the broker")
            if stage.source.random() < 0.5:
                await stage.kill()
                stage.load.gone()
            subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
            if not stage.broker.is_running:
                await stage.start()
            await stage.takes_messages()
            await stage.finish()
            return _figures(stage, "disks filled", 1)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def can_mount() -> bool:
    """Whether this process may mount file systems."""
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "probe", "/mnt"]
    return subprocess.run(probe, capture_output=True).returncode == 0


def _figures(stage: Scene, what: str, count: int) -> Counter[str]:
    return Counter({what: count}) + stage.load.figures()
