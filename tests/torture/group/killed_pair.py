"""A master under load and its replica, which are killed again and again: one of them, or both.

Producers count only what was acknowledged with OK, which needs both. Whenever a process was killed,
its files are read by code that shares nothing with the store: the log of the replica has every
acknowledged message and is a prefix of its master's log. In the end both logs are equal.
"""

import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType

from tests.crash.files_check import check_files, readable
from tests.crash.oracle import SCHEDULE, Violation
from tests.ports import free_port
from tests.torture.clients.load import Load
from tests.torture.faults import CHANGES, KILL, Faults
from tests.torture.process import SLOTS, BrokerProcess, Refused
from tests.torture.records.ledger import Ledger, serial_of
from tests.torture.scene import Scene

REPLICATION = {
    "brokerIP1": "127.0.0.1",
    "haSendHeartbeatInterval": "200",
    "slaveTimeout": "5000",
    "property_crc": "true",
}
TARGETS = ("master", "replica", "both")
WAYS = ("moment", "operation")


class ReplicaProcess(BrokerProcess):
    """A slave of another broker."""

    def __init__(
        self, folder: Path, mode: str, master: BrokerProcess, more: Mapping[str, object]
    ) -> None:
        conf = {
            **REPLICATION,
            **more,
            "brokerRole": "SLAVE",
            "brokerId": "1",
            "flushDiskType": mode,
            "namesrvAddr": master.namesrv,
            "master_address": f"127.0.0.1:{master._port}",
            "haListenPort": str(free_port()),
        }
        super().__init__(folder, conf)

    def _command(self) -> list[str]:
        arguments = ["broker", str(self.store), "-c", str(self.conf), "--port", str(self._port)]
        return [sys.executable, "-m", "firetrail", *arguments]


class KilledPair:
    """The deaths of a master and its replica."""

    def __init__(self, scene: Scene, replica: ReplicaProcess, replica_faults: Faults) -> None:
        self.scene = scene
        self._source = scene.source
        self.replica = replica
        self._brokers = {"master": scene.broker, "replica": replica}
        self._faults = {"master": scene.faults, "replica": replica_faults}
        self.kills = Counter[str]()

    async def run(self, count: int) -> None:
        """Kill this many times, and check after each kill, and everything at the end."""
        while self.kills.total() < count:
            await self.scene.takes_messages()
            await self._kill()
            await self._restart()
        await self.scene.takes_messages()
        await self._finish()

    async def _kill(self) -> None:
        target = self._source.choice(TARGETS)
        way = self._source.choice(WAYS)
        names = ["master", "replica"] if target == "both" else [target]
        self._source.shuffle(names)
        await asyncio.sleep(self._source.uniform(0.02, 0.5))
        if way == "operation":
            first = names[0]
            self._faults[first].add(CHANGES, KILL, skip=self._source.randrange(300))
            for _ in range(300):
                if not self._brokers[first].is_running:
                    break
                await asyncio.sleep(0.01)
        if "master" in names:
            self.scene.load.gone()
        for name in names:
            await self._brokers[name].kill()
        self.scene.load.check()
        for name in names:
            self._faults[name].heal()
        self.kills[f"{target}, {way}"] += 1
        if "master" in names:
            self.scene.look()
        if "replica" in names:
            self.check_replica()

    async def _restart(self) -> None:
        names = [name for name, broker in self._brokers.items() if not broker.is_running]
        self._source.shuffle(names)
        for name in names:
            try:
                await self._brokers[name].start()
            except Refused as refused:
                raise Violation(f"I1: the {name} refused to start: {refused}") from refused
        if "master" in names:
            self.scene.load.started()

    def check_replica(self) -> None:
        store = self.replica.store
        there = {
            serial_of(record.body)
            for record in readable(store / "commitlog")
            if record.topic.startswith(("T", SCHEDULE))
        }
        ledger = self.scene.ledger
        lost = [serial for serial in ledger.acknowledged if serial not in there]
        if lost:
            raise Violation(f"R2: {len(lost)} acknowledged messages are not on the replica: {lost}")
        ledger.check_files(store)
        check_prefix(self.scene.broker.store, store)

    async def _finish(self) -> None:
        """Stop the master when everything is consumed, and start it once more.

        A replica hides its last messages until the master has told that they are confirmed, which
        a master that stops may leave to its next start.
        """
        await self.scene.finish()
        await self.scene.broker.start()
        try:
            await self.scene.until(self._is_equal, "the replica has and shows everything")
        except Violation:
            check_files(self.replica.store, SLOTS)  # names the queue that differs, if one does
            raise
        for broker in (self.replica, self.scene.broker):
            if await broker.stop() != broker.clean_exit:
                raise Violation(f"a stop that failed: {broker.said[-2000:]}")
        self.check_replica()

    def _is_equal(self) -> bool:
        """Whether both logs end at the same offset and the queues of the replica fit its log."""
        if len({end_of(broker.store) for broker in self._brokers.values()}) > 1:
            return False
        try:
            check_files(self.replica.store, SLOTS)
        except Violation:
            return False
        return True


def end_of(store: Path) -> int:
    """Return where the last record of a log ends."""
    last = readable(store / "commitlog")[-1]
    return last.offset + last.size


def check_prefix(master: Path, replica: Path) -> None:
    """Raise a Violation unless all records of the replica are the master's, byte for byte.

    Files that retention has deleted at the master are not compared.
    """
    end = end_of(replica)
    first = min((path.name for path in (master / "commitlog").iterdir()), default="")
    for path in sorted((replica / "commitlog").iterdir()):
        if path.name < first:
            continue
        size = min(max(end - int(path.name), 0), path.stat().st_size)
        copied, original = path.read_bytes()[:size], master / "commitlog" / path.name
        if size and (not original.exists() or original.read_bytes()[:size] != copied):
            raise Violation(f"R1: {path} is not what {original} begins with")


@asynccontextmanager
async def pair_scene(
    folder: Path, seed: int, mode: str, more: Mapping[str, object] = MappingProxyType({})
) -> AsyncIterator[KilledPair]:
    """Run a master and its replica with clients; errors quote the last lines of both.

    ``more`` has further settings of both.
    """
    for name in ("master", "replica"):
        (folder / name).mkdir()
    conf = {
        **REPLICATION,
        **more,
        "brokerRole": "SYNC_MASTER",
        "inSyncReplicas": "2",
        "flushDiskType": mode,
        "haListenPort": str(free_port()),
    }
    master = BrokerProcess(folder / "master", conf)
    replica = ReplicaProcess(folder / "replica", mode, master, more)
    ledger, source = Ledger(seed), random.Random(seed)
    faults, replica_faults = master.with_faults(), replica.with_faults()
    try:
        await master.start()
        await replica.start()
        async with Load(master.namesrv, ledger, source) as load:
            load.started()
            yield KilledPair(Scene(master, faults, load, source), replica, replica_faults)
    except Exception as error:
        said = f"the master said:\n{master.said[-2000:]}\nthe replica said:\n{replica.said[-2000:]}"
        error.add_note(f"seed {seed}, {mode}; {said}")
        raise
    finally:
        await master.close()
        await replica.close()


async def kill_pair(folder: Path, seed: int, mode: str, count: int = 15) -> Counter[str]:
    """Kill a master or its replica ``count`` times; figures."""
    async with pair_scene(folder, seed, mode) as killing:
        await killing.run(count)
        figures = Counter({f"kills: {way}": number for way, number in killing.kills.items()})
        return figures + killing.scene.load.figures()
