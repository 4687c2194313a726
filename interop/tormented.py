"""RocketMQ's broker where the torments expect Firetrail's: same load, same deaths, same ledger.

``python -m interop.tormented --kills 20`` runs for longer than the tests.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

from interop.servers import BROKER, LINES, Servers, our_name_server
from tests.ports import free_port
from tests.torture.__main__ import listed
from tests.torture.clients.load import TOPICS
from tests.torture.kills import kills
from tests.torture.process import CONF, BrokerProcess, Refused
from tests.torture.records.ledger import Ledger
from tests.torture.scene import scene_of

from firetrail.client.cluster.session import Session
from firetrail.format.names import AUTO_CREATE_TOPIC
from firetrail.remoting.messages.headers import CreateTopicHeader
from firetrail.remoting.wire.codes import RequestCode

SIDES = {"firetrail": "Firetrail", "v4": "RocketMQ 4.9.7", "v5": "RocketMQ 5.3.3"}


class JavaBroker(BrokerProcess):
    """RocketMQ's broker on the same files; the name server is apart, and is not killed."""

    clean_exit = 143
    serving_line = b"boot success"
    recovery_s = 1.5

    def __init__(self, line: str, folder: Path, namesrv: str, conf: Mapping[str, object]) -> None:
        self._servers = Servers(line, folder)
        port = free_port()
        own = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "listenPort": port,
            "haListenPort": port + 1,
            "storePathRootDir": folder / "store",
            "diskMaxUsedSpaceRatio": 99,
        }
        super().__init__(folder, {**own, **conf})
        self.namesrv = namesrv
        self.address = f"127.0.0.1:{port}"
        self._lives = 0

    def _command(self) -> list[str]:
        return self._servers.command(BROKER, "-n", self.namesrv, "-c", str(self.conf))

    def mend(self) -> None:
        """Remove new files that have not got their length: 4.9 does not start with one."""
        sizes = {
            "commitlog": "mappedFileSizeCommitLog",
            "consumequeue": "mappedFileSizeConsumeQueue",
        }
        for folder, setting in sizes.items():
            for path in (self.store / folder).rglob("0*"):
                if path.is_file() and path.stat().st_size != int(CONF[setting]):
                    assert not any(path.read_bytes()), path
                    path.unlink()

    async def ready(self) -> None:
        """Have it registered as well: 5.x does so when a topic changes, or after ten seconds."""
        await super().ready()
        self._lives += 1
        try:
            await self._register()
        except OSError as error:
            raise Refused(f"exit code {await self.ended()}: {error}") from error

    async def _register(self) -> None:
        session = await Session(self.namesrv).open()
        try:
            for topic in TOPICS:
                change = self._lives << 2  # a flag without a meaning
                header = CreateTopicHeader(topic, AUTO_CREATE_TOPIC, 4, 4, 6, "SINGLE_TAG", change)
                await session.ask(self.address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        finally:
            await session.close()

    def _environment(self) -> dict[str, str]:
        return self._servers.environment()


async def compared(
    folder: Path, seed: int, side: str, mode: str, count: int
) -> tuple[Counter[str], Counter[str]]:
    """Kill ``count`` brokers of a side; figures, and what the ledger has against it."""
    ledger = Ledger(seed, lenient=True)
    conf = {"flushDiskType": mode}
    with our_name_server() if side in LINES else nullcontext("") as namesrv:
        broker = (
            JavaBroker(side, folder, namesrv, conf)
            if side in LINES
            else BrokerProcess(folder, conf)
        )
        async with scene_of(broker, ledger, (side, mode)) as stage:
            figures = await kills(stage, count)
    return figures, Counter({kind: len(found) for kind, found in ledger.wrong.items() if found})


def main() -> None:
    """Kill brokers of all sides in both modes; a row for each."""
    parser = argparse.ArgumentParser(prog="python -m interop.tormented", description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="of each side in each mode")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    parser.add_argument("--side", choices=SIDES, action="append", help="this one (repeatable)")
    args = parser.parse_args()
    logging.disable()  # clients complain a lot about brokers that are killed
    for side in args.side or SIDES:
        for mode in ("SYNC_FLUSH", "ASYNC_FLUSH"):
            with tempfile.TemporaryDirectory(prefix="firetrail-torture-") as folder:
                part = compared(Path(folder), args.seed, side, mode, args.kills)
                figures, wrong = asyncio.run(part)
            found = f"{listed(figures)}; wrong: {listed(wrong) or 'nothing'}"
            print(f"seed {args.seed}: {SIDES[side]}, {mode}: {found}", flush=True)


if __name__ == "__main__":
    main()
