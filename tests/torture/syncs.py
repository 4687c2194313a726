"""Syncs that fail or take long, under a broker that is used."""

import asyncio
import errno
import time
from collections import Counter
from pathlib import Path

from tests.crash.oracle import Violation
from tests.torture.faults import Operation, Rule
from tests.torture.scene import Scene, scene

from firetrail.client import Producer, PullConsumer

MODES = ("SYNC_FLUSH", "ASYNC_FLUSH")
STORED = ("commitlog", "consumequeue", "index", "firetrail.watermark", "checkpoint")
"""Parts of paths: the files after whose failed sync the store stops writing."""
SITES = {
    "commitlog": 30,
    "consumequeue": 30,
    "index": 1,
    "firetrail.watermark": 6,
    "checkpoint": 3,
    "consumerOffset.json": 6,
    "topics.json": 6,
    "subscriptionGroup.json": 6,
    "delayOffset.json": 4,
    "": 60,
}
"""Parts of paths (empty: any), and how many of their syncs are tried as the one that fails."""
WALK = [(site, n, mode) for mode in MODES for site, count in SITES.items() for n in range(count)]
"""All combinations of these; consecutive seeds try one after the other."""
REFUSALS = ("code 1", "code 14")


async def sync_fails(folder: Path, seed: int, mode: str, site: str, skip: int) -> Counter[str]:
    """Let one sync fail.

    After that nothing is acknowledged any more, but reads continue. A restart finds everything.
    """
    async with scene(folder, seed, {"flushDiskType": mode}) as stage:
        figures = await check_failed_sync(stage, mode, site, skip)
        await stage.kill()
        stage.faults.heal()
        await stage.start()
        await stage.takes_messages()
        await stage.finish()
        return figures + stage.load.figures()


async def check_failed_sync(stage: Scene, mode: str, site: str, skip: int) -> Counter[str]:
    """Check the effects of a failed sync while the broker runs; return figures."""
    failed = stage.faults.add(Operation.SYNC, errno.EIO, match=site, skip=skip, times=1)
    await stage.until(failed, f"sync {skip} of {site or 'anything'} failed")
    where = _site_of(failed.path, stage.broker.store)
    figures = Counter({"syncs failed": 1, f"of {where}": 1})
    if where in STORED:
        await _refuses(stage)
        figures += _after(stage, failed, mode, where)
        if not stage.broker.is_running or not await stage.check_reads(may_lag=True):
            raise Violation("nothing can be read after a failed sync")
    elif where.endswith(".json"):
        await _saves_again(stage, where)
        await stage.takes_messages()
    stage.load.check()
    return figures


def _site_of(path: str, store: Path) -> str:
    """Return what was synced: a part of the store, a file of the configuration, or a folder."""
    inside = Path(path).relative_to(store)
    name = inside.name.removesuffix(".tmp").removesuffix(".bak")
    if inside.parts[:1] == ("config",):
        return name
    return inside.parts[0] if inside.parts else "the store's folder"


async def _refuses(stage: Scene) -> None:
    """Check that the broker refuses everything that needs the disk, and gives the reason."""
    errors = stage.load.errors
    await stage.until(lambda: any(errors[code] for code in REFUSALS), "the broker refuses messages")
    await asyncio.sleep(0.1)  # requests that were under way may still succeed
    since = time.monotonic()
    await asyncio.sleep(0.3)
    late = [kind for kind, begun in stage.load.oks.items() if begun > since]
    if late:
        raise Violation(f"I1: OK after a failed sync: {late}")
    if not any("Input/output error" in remark for remark in stage.load.remarks):
        raise Violation(f"refused without a reason: {dict(stage.load.remarks)}")


def _after(stage: Scene, failed: Rule, mode: str, where: str) -> Counter[str]:
    """Requests that were begun after the sync had failed, and got an OK."""
    late = {kind: begun for kind, begun in stage.load.oks.items() if begun > failed.hit_at}
    if late and mode == "SYNC_FLUSH" and where == "commitlog":
        raise Violation(f"I1: an OK without a sync: {late}, the sync failed at {failed.hit_at}")
    last = max(late.values(), default=0.0) - failed.hit_at
    return Counter({within("last OK begun after it", last) if late else "no OK after it": 1})


async def _saves_again(stage: Scene, name: str) -> None:
    """Check that a file of the configuration is written again after a failed sync."""
    saved = stage.faults.add(Operation.NAME, match=f"config/{name}")
    await stage.until(saved, f"{name} is saved")


def within(what: str, seconds: float) -> str:
    """Return the class of a time, so that times can be counted."""
    limits = (limit for limit in (10, 100, 1000) if seconds * 1000 < limit)
    limit = next(limits, None)
    return f"{what}: in {limit} ms" if limit else f"{what}: later than 1 s"


async def sync_is_slow(folder: Path, seed: int) -> Counter[str]:
    """Puts are answered with a timeout, never OK; all else is answered while the disk is busy."""
    conf = {"flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": 300}
    async with scene(folder, seed, conf) as stage:
        await stage.takes_messages()
        slow = stage.faults.add(Operation.SYNC, match="commitlog", delay_ms=2000)
        times_s = await _asked_beside(stage, 100)
        await stage.until(lambda: stage.load.errors["FLUSH_DISK_TIMEOUT"], "puts time out")
        stage.faults.heal()
        await stage.takes_messages()
        await stage.kill()
        await stage.start()
        await stage.finish()
        figures = Counter({"slow syncs": slow()})
        for what, times in times_s.items():
            figures[within(f"p99 of {what}", sorted(times)[int(len(times) * 0.99)])] += 1
        return figures + stage.load.figures()


async def _asked_beside(stage: Scene, count: int) -> dict[str, list[float]]:
    """Return how long pulls, offsets and heartbeats take while a sync is under way."""
    times: dict[str, list[float]] = {"pulls": [], "offsets": [], "heartbeats": []}
    namesrv = stage.broker.namesrv
    async with PullConsumer(namesrv, "beside") as consumer, Producer(namesrv, "beside") as producer:
        queue = (await consumer.queues("T-single"))[0]
        await producer.queues("T-single")
        asks = {
            "pulls": lambda: consumer.pull(queue, 0),
            "offsets": lambda: consumer.committed(queue),
            "heartbeats": producer._session.beat_now,
        }
        while min(map(len, times.values())) < count:
            for what, ask in asks.items():
                busy, began = stage.faults.waiting, time.monotonic()
                await ask()
                if busy and stage.faults.waiting:
                    times[what].append(time.monotonic() - began)
            await asyncio.sleep(0.002)
    return times
