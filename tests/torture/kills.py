"""A broker under load that is killed again and again: at random, in recovery, while it stops."""

import asyncio
import signal
from collections import Counter
from pathlib import Path

from tests.torture.clients.load import USES
from tests.torture.clients.timed_messages import Timing
from tests.torture.faults import CHANGES, KILL
from tests.torture.process import Refused
from tests.torture.scene import Scene, scene

WAYS = ("moment", "operation", "stopping")
"""When a broker is killed: after some time, before the n-th change of a file, while it stops."""
KILLED_USES = (*USES, Timing)
"""What clients do with brokers that are killed. Timer messages need seconds, so the other parts do
without them."""


class Killing:
    """The deaths of the processes that have a store open."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._source = scene.source
        self._broker = scene.broker
        self._faults = scene.faults
        self.kills = Counter[str]()

    async def run(self, count: int) -> None:
        """Kill this number of brokers, and check after each kill, and everything at the end."""
        while self.kills.total() < count:
            await self._kill()
            await self._restart(count)
            self._scene.load.started()
            if self.kills.total() % 5 == 0:
                await self._scene.check_reads()
        await self._scene.finish()

    async def _kill(self) -> None:
        way = self._source.choice(WAYS)
        if way == "operation":
            self._faults.add(CHANGES, KILL, skip=self._source.randrange(300))
            for _ in range(300):
                if not self._broker.is_running:
                    break
                await asyncio.sleep(0.01)
        else:
            await asyncio.sleep(self._source.uniform(0.02, 0.8))
        if way == "stopping":
            self._broker.signal(signal.SIGTERM)
            await asyncio.sleep(self._source.uniform(0, 0.08))
        await self._scene.kill()
        self._scene.load.check()
        self._faults.heal()
        self.kills[way] += 1

    async def _restart(self, count: int) -> None:
        """Start it, killed some more times before it serves."""
        while self.kills.total() < count and self._source.random() < 0.5:
            self._faults.forget()
            if self._source.random() < 0.5:
                self._faults.add(CHANGES, KILL, skip=self._source.randrange(40))
                await self._broker.begin()
                if await self._served():
                    self._faults.heal()
                    return
                self.kills["operation of a recovery"] += 1
            else:
                await self._broker.begin()
                while not self._faults.operations and self._broker.is_running:
                    await asyncio.sleep(0.001)
                await asyncio.sleep(self._source.uniform(0, self._broker.recovery_s))
                await self._broker.kill()
                self.kills["moment of a recovery"] += 1
            self._faults.heal()
            self._scene.look()
        await self._broker.begin()
        if not await self._served():
            await self._broker.start()

    async def _served(self) -> bool:
        """Return whether the broker serves.

        If it does not, it was killed, or it refused to start and its files were repaired.
        """
        try:
            await self._broker.ready()
        except Refused as refused:
            if not str(refused).startswith("exit code -9"):
                self._scene.ledger.violated("starts refused", self.kills.total(), str(refused))
                self._broker.mend()
            return False
        return True


async def kill_loop(folder: Path, seed: int, mode: str, count: int = 25) -> Counter[str]:
    """Kill ``count`` brokers with ``flushDiskType`` ``mode``; figures."""
    async with scene(folder, seed, {"flushDiskType": mode}, KILLED_USES) as stage:
        return await kills(stage, count)


async def kills(stage: Scene, count: int) -> Counter[str]:
    """Kill the broker ``count`` times; figures."""
    killing = Killing(stage)
    try:
        await killing.run(count)
    except Exception as error:
        error.add_note(f"killed so far: {dict(killing.kills)}")
        raise
    figures = Counter({f"kills: {way}": number for way, number in killing.kills.items()})
    return figures + stage.load.figures()
