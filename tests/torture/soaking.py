"""Mixed load for a long time, with a slow consumer and retention at work: nothing piles up.

Memory, descriptors and mappings are counted again and again; the most of the last third of the time
must not exceed the most of the second third by more than a fixed room.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.crash.oracle import Violation
from tests.torture.scene import Scene, scene

from firetrail.client import PullConsumer
from firetrail.errors import FiretrailError
from firetrail.remoting.bodies import MessageQueue

CONF = {
    "fileReservedTime": 0,
    "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
    "cleanResourceInterval": 200,
    "deleteCommitLogFilesInterval": 0,
    "destroyMapedFileIntervalForcibly": 500,
}
"""A file of the log is deleted as soon as the next one is begun."""
RSS_ROOM_MB = 24
"""Memory that allocators and caches may return late."""


class Sample(NamedTuple):
    """The resources of a process at a moment; the resident memory does not include files."""

    rss_mb: float
    descriptors: int
    mappings: int


def sample(pid: int) -> Sample:
    """Return the resources that a process uses now."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    anonymous = next(line for line in status if line.startswith("RssAnon"))
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return Sample(int(anonymous.split()[1]) / 1024, len(os.listdir(f"/proc/{pid}/fd")), len(maps))


async def soak(folder: Path, seed: int, seconds: float) -> Counter[str]:
    """Load for some seconds; figures."""
    samples: list[Sample] = []
    async with scene(folder, seed, CONF) as stage:
        stage.load.nothing_expires = False
        slow = asyncio.ensure_future(_slow_consumer(stage))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(seconds / 60)
            stage.load.check()
            samples.append(sample(stage.broker.pid))
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        _level(samples)
        stage.load.gone()
        deleted = min(int(path.name) for path in (stage.broker.store / "commitlog").iterdir())
        if await stage.broker.stop() != 0:
            raise Violation(f"a stop that failed: {stage.broker.said[-2000:]}")
        stage.ledger.check_files(stage.broker.store)
        figures = {"soaked seconds": int(seconds), "bytes expired": deleted}
        return Counter(figures) + stage.load.figures()


async def _slow_consumer(stage: Scene) -> None:
    """Takes a message now and then, and is overtaken by retention."""
    position: dict[MessageQueue, int] = {}
    async with PullConsumer(stage.broker.namesrv, "slow") as consumer:
        while True:
            for queue in await consumer.queues("T-single"):
                try:
                    pulled = await consumer.pull(queue, position.get(queue, 0), count=1)
                    position[queue] = pulled.next_offset
                    await consumer.commit(queue, pulled.next_offset)
                except (OSError, TimeoutError, FiretrailError) as error:
                    stage.load.note(error)
            await asyncio.sleep(0.2)


def _level(samples: list[Sample]) -> None:
    third = len(samples) // 3
    middle, last = samples[third : 2 * third], samples[2 * third :]
    room = Sample(RSS_ROOM_MB, 32, 32)
    for number, name in enumerate(Sample._fields):
        most = max(taken[number] for taken in last)
        before = max(taken[number] for taken in middle)
        if most > before + room[number]:
            raise Violation(f"{name} has grown from {before} to {most}: {samples[::5]}")
