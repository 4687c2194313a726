"""A broker under load in a folder of its own: every torment begins and ends with it."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.crash.files_check import check_files
from tests.crash.oracle import Violation
from tests.torture.clients.load import USES, Load
from tests.torture.clients.use import Use
from tests.torture.faults import Faults
from tests.torture.process import SLOTS, BrokerProcess
from tests.torture.records.ledger import Ledger

PATIENCE_S = 60.0
"""The time limit of things that take a second or two."""


@dataclass
class Scene:
    """The broker, its faults, its clients, and the ledger of what must not be missing."""

    broker: BrokerProcess
    faults: Faults
    load: Load
    source: random.Random

    @property
    def ledger(self) -> Ledger:
        return self.load.ledger

    async def until(self, holds: Callable[[], object], what: str) -> None:
        """Wait for something to come true."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while not holds():
            self.load.check()
            if asyncio.get_running_loop().time() > deadline:
                raise Violation(f"in {PATIENCE_S:g} s it did not come true that {what}")
            await asyncio.sleep(0.01)

    async def takes_messages(self) -> None:
        """Wait until a message is acknowledged that was sent after this call."""
        first = len(self.ledger.sent)
        await self.until(
            lambda: any(sent.acknowledged for sent in self.ledger.sent[first:]),
            f"the broker takes messages; {self.load.remarks.most_common(3)}",
        )

    async def check_reads(self, *, may_lag: bool = False) -> int:
        """Check that the running broker serves everything that it has acknowledged."""
        namesrv, topics = self.broker.namesrv, self.load.topics
        return await self.ledger.check_queues(namesrv, topics, may_lag=may_lag)

    async def kill(self) -> None:
        """Kill the broker, and look at what it has left."""
        self.load.gone()
        await self.broker.kill()
        self.look()

    def look(self) -> None:
        self.load.look(self.broker.store, self.ledger.check_log(self.broker.store))
        self.ledger.check_files(self.broker.store)

    async def start(self) -> None:
        await self.broker.start()
        self.load.started()

    async def finish(self) -> None:
        """Check that consumers get everything, the broker stops cleanly, and all files agree."""
        await self.load.drain()
        await self.check_reads()
        self.load.gone()
        if await self.broker.stop() != self.broker.clean_exit:
            raise Violation(f"a stop that failed: {self.broker.said[-2000:]}")
        self.look()
        self.ledger.check_keys(self.broker.store)
        if not self.ledger.first:
            try:
                check_files(self.broker.store, SLOTS)
            except Violation as violation:
                self.ledger.violated("files disagree", str(violation), str(violation))


@asynccontextmanager
async def scene(
    folder: Path,
    seed: int,
    conf: Mapping[str, object] | None = None,
    uses: Sequence[type[Use]] = USES,
) -> AsyncIterator[Scene]:
    broker, ledger = BrokerProcess(folder, conf), Ledger(seed)
    async with scene_of(broker, ledger, dict(conf or {}), uses) as stage:
        yield stage


@asynccontextmanager
async def scene_of(
    broker: BrokerProcess, ledger: Ledger, what: object, uses: Sequence[type[Use]] = ()
) -> AsyncIterator[Scene]:
    """Run a broker that has begun to take messages; errors quote its last lines of output."""
    source = random.Random(ledger.seed)
    faults = broker.with_faults()
    try:
        await broker.start()
        async with Load(broker.namesrv, ledger, source, uses) as load:
            load.started()
            await asyncio.sleep(source.uniform(0.1, 0.4))
            yield Scene(broker, faults, load, source)
    except Exception as error:
        error.add_note(f"seed {ledger.seed}, {what}; the broker said:\n{broker.said[-3000:]}")
        raise
    finally:
        await broker.close()
