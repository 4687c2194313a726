"""A clock that is set, and limits of descriptors and memory, under a broker that is used."""

import asyncio
import os
import resource
from collections import Counter
from pathlib import Path

from tests.crash.oracle import Violation
from tests.torture.process import Refused
from tests.torture.scene import Scene, scene

HOUR_S, YEAR_S = 3600, 365 * 86400
PATIENT_S = 5.0
"""No client waits longer for an answer."""
JUMPS_S = (1, -1, HOUR_S, -HOUR_S, 10 * YEAR_S, -10 * YEAR_S)


async def clock_jumps(folder: Path, seed: int, mode: str, jumps: int = 4) -> Counter[str]:
    """Set the clock, both while the broker runs and while it does not."""
    # Twenty-two years: no file expires, whatever the clock says.
    async with scene(folder, seed, {"flushDiskType": mode, "fileReservedTime": 200_000}) as stage:
        stage.load.times_hold = False
        for _ in range(jumps):
            stage.faults.set_clock(stage.source.choice(JUMPS_S))
            await stage.takes_messages()
            await asyncio.sleep(stage.source.uniform(0, 0.4))
            await stage.kill()
            if stage.source.random() < 0.5:
                stage.faults.set_clock(stage.source.choice(JUMPS_S))
            await stage.start()
            await stage.check_reads()
        await stage.finish()
        return Counter({"clock set": jumps}) + stage.load.figures()


async def few_files(folder: Path, seed: int) -> Counter[str]:
    """Let the broker run out of descriptors temporarily."""
    async with scene(folder, seed) as stage:
        await stage.takes_messages()
        used = len(os.listdir(f"/proc/{stage.broker.pid}/fd"))
        limit = used + stage.source.randrange(3)
        before = _limit(stage, resource.RLIMIT_NOFILE, limit)
        await _crowd(stage, 40)
        await asyncio.sleep(stage.source.uniform(0.2, 1.0))
        if not stage.broker.is_running:
            raise Violation("running out of descriptors ended the broker")
        resource.prlimit(stage.broker.pid, resource.RLIMIT_NOFILE, before)
        await stage.takes_messages()
        await stage.kill()
        await stage.start()
        await stage.takes_messages()
        await stage.finish()
        return Counter({"times without descriptors": 1}) + stage.load.figures()


async def few_from_the_start(folder: Path, seed: int, limit: int) -> Counter[str]:
    """Start a process that may open few files: it serves, or reports what it lacks."""
    refused = 0
    async with scene(folder, seed) as stage:
        await stage.takes_messages()
        await stage.kill()
        stage.broker.limits = {resource.RLIMIT_NOFILE: limit}
        try:
            await stage.broker.start()
        except Refused as why:
            refused = 1
            if "Traceback" in str(why) or "Too many open files" not in str(why):
                raise Violation(f"refused without a clear word: {why}") from why
        else:
            stage.load.started()
            await _crowd(stage, 2 * limit)
            await stage.takes_messages()
            await stage.check_reads()
            await stage.kill()
        stage.broker.limits = {}
        await stage.start()
        await stage.finish()
        return Counter({"starts with few descriptors": 1, "of them refused": refused})


async def little_memory(folder: Path, seed: int, mode: str) -> Counter[str]:
    """Let the broker run out of address space: requests are refused, and later accepted again.

    The broker may also end with an explanation; then the next one has everything.
    """
    async with scene(folder, seed, {"flushDiskType": mode}) as stage:
        await stage.takes_messages()
        pages = int(Path(f"/proc/{stage.broker.pid}/statm").read_text().split()[0])
        extra = stage.source.choice((0, 1 << 20, 4 << 20))
        size = pages * resource.getpagesize() + extra
        before = _limit(stage, resource.RLIMIT_AS, size)
        crowd = asyncio.ensure_future(_crowd(stage, stage.source.choice((0, 50, 200))))
        await asyncio.sleep(stage.source.uniform(0.5, 1.5))
        ended = not stage.broker.is_running
        if ended:
            await _ended_well(stage)
        else:
            resource.prlimit(stage.broker.pid, resource.RLIMIT_AS, before)
            await stage.takes_messages()
            await stage.check_reads()
            await asyncio.sleep(PATIENT_S)
        await crowd
        unanswered = stage.load.errors["TimeoutError"]
        refused = sum(stage.load.errors[code] for code in ("code 1", "code 14"))
        if unanswered:
            raise Violation(f"{unanswered} requests got no answer: {dict(stage.load.remarks)}")
        await stage.kill()
        await stage.start()
        await stage.takes_messages()
        await stage.finish()
        figures = {"times without memory": 1, "of them fatal": int(ended), "refused": refused}
        return Counter(figures) + stage.load.figures()


async def _ended_well(stage: Scene) -> None:
    """Check that a broker that cannot continue reports the reason in a sentence."""
    code, said = await stage.broker.ended(), stage.broker.said
    if code == 0 or not said or "Traceback" in said:
        raise Violation(f"running out of memory ended the broker with exit code {code}")


def _limit(stage: Scene, kind: int, value: int) -> tuple[int, int]:
    """Limit the running broker and return its previous limits."""
    return resource.prlimit(stage.broker.pid, kind, (value, resource.prlimit(0, kind)[1]))


async def _crowd(stage: Scene, count: int) -> None:
    """Let many clients connect and disconnect again."""
    host, _, port = stage.broker.namesrv.partition(":")
    opening = (asyncio.open_connection(host, int(port)) for _ in range(count))
    opened = await asyncio.gather(*opening, return_exceptions=True)
    for connection in opened:
        if not isinstance(connection, BaseException):
            connection[1].close()
