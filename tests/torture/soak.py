"""Mixed load for a long time, with retention at work: nothing piles up.

A single broker has a slow consumer as well. A master has a replica that is restarted again and
again, and catches up each time. Memory, descriptors and mappings are counted again and again; the
most of the last third of the time must not exceed the most of the second third by more than a fixed
room.
"""

import asyncio
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.crash.files_check import readable
from tests.crash.oracle import Violation
from tests.torture import process
from tests.torture.group.killed_pair import KilledPair, check_prefix, pair_scene
from tests.torture.scene import Scene, scene

from firetrail.client import PullConsumer
from firetrail.errors import FiretrailError
from firetrail.remoting.messages.bodies import MessageQueue

CONF = {
    "fileReservedTime": 0,
    "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
    "cleanResourceInterval": 200,
    "deleteCommitLogFilesInterval": 0,
    "destroyMapedFileIntervalForcibly": 500,
}
"""A file of the log is deleted as soon as the next one is begun."""
FILE_SIZE = int(process.CONF["mappedFileSizeCommitLog"])
RESTART_S = 60.0
"""How long a replica runs between two restarts, if there is enough time."""
RESTARTS = 6
"""How often it is restarted at least."""
EMPTIED = 3
"""Each third time it begins with an empty folder, while retention deletes files of the master."""
RSS_ROOM_MB = 24
"""Memory that allocators and caches may return late."""


class Sample(NamedTuple):
    """The resources of a process at a moment.

    The resident memory does not include files. Descriptors and mappings do not include files that
    are in the store: how many there are depends on how fast retention deletes them, and a busy
    machine may slow it down. Files that were deleted and are still open are counted.
    """

    rss_mb: float
    descriptors: int
    mappings: int


def sample(pid: int, store: Path) -> Sample:
    """Return the resources that the process which has opened a store uses now."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    anonymous = next(line for line in status if line.startswith("RssAnon"))
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return Sample(
        int(anonymous.split()[1]) / 1024,
        _not_in_store(_descriptors(pid), store),
        _not_in_store(maps, store),
    )


def _descriptors(pid: int) -> Iterator[str]:
    """Return what each descriptor of a process refers to."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # It was closed meanwhile.
            yield os.readlink(link)


def _not_in_store(entries: Iterable[str], store: Path) -> int:
    """Count the entries that are not existing files of a store."""
    return sum(str(store) not in entry or entry.endswith("(deleted)") for entry in entries)


async def soak(folder: Path, seed: int, seconds: float) -> Counter[str]:
    samples: list[Sample] = []
    async with scene(folder, seed, CONF) as stage:
        stage.load.nothing_expires = False
        slow = asyncio.ensure_future(_slow_consumer(stage))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(seconds / 60)
            stage.load.check()
            samples.append(sample(stage.broker.pid, stage.broker.store))
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


async def soak_pair(folder: Path, seed: int, seconds: float) -> Counter[str]:
    """Load a master for some seconds and restart its replica again and again; return figures."""
    samples: dict[str, list[Sample]] = {"master": [], "replica": []}
    behind_s: list[float] = []
    end = time.monotonic() + seconds
    async with pair_scene(folder, seed, "ASYNC_FLUSH", CONF) as pair:
        stage, replica = pair.scene, pair.replica
        stage.load.nothing_expires = False
        while time.monotonic() < end or len(behind_s) < RESTARTS:
            await _run_pair(pair, min(RESTART_S, seconds / RESTARTS), samples)
            await stage.until(lambda: _has_room(stage.broker.store), "the log begins a file")
            if await replica.stop() != 0:
                raise Violation(f"a stop that failed: {replica.said[-2000:]}")
            if len(behind_s) % EMPTIED == 0:
                shutil.rmtree(replica.store)
            await replica.start()
            started = time.monotonic()
            await stage.takes_messages()  # an OK needs the replica
            behind_s.append(time.monotonic() - started)
        for taken in samples.values():
            _level(taken)
        stage.load.gone()
        for broker in (stage.broker, replica):
            if await broker.stop() != 0:
                raise Violation(f"a stop that failed: {broker.said[-2000:]}")
            stage.ledger.check_files(broker.store)
        check_prefix(stage.broker.store, replica.store)
        figures = {
            "soaked seconds of a pair": int(seconds),
            "restarts of the replica": len(behind_s),
            "longest ms until it had caught up": int(max(behind_s) * 1000),
        }
        return Counter(figures) + stage.load.figures()


async def _run_pair(pair: KilledPair, seconds: float, samples: Mapping[str, list[Sample]]) -> None:
    """Let a pair run, and take a sample of each at the end, when the replica has the same age."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pair.scene.load.check()
        await asyncio.sleep(0.1)
    samples["master"].append(sample(pair.scene.broker.pid, pair.scene.broker.store))
    samples["replica"].append(sample(pair.replica.pid, pair.replica.store))


def _has_room(store: Path) -> bool:
    """Whether the newest file of a log will not be full soon.

    Otherwise retention could delete, while the replica is stopped, what it still needs.
    """
    newest = max((store / "commitlog").iterdir())
    last = readable(store / "commitlog")[-1]
    return last.offset >= int(newest.name) and last.offset % FILE_SIZE < FILE_SIZE // 2


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
