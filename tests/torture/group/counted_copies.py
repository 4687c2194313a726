"""A replica that connects twice is one copy: ``python -m tests.torture.group.counted_copies``.

A master outside of groups waits for three copies (``inSyncReplicas=3``). One slave is paused. The
connection of the other one is cut off by a firewall, so the master does not notice its end; the
slave is restarted and connects again. Nothing may be acknowledged with these two copies, and the
master lists each slave once. Exit code 1: something was acknowledged; 2: this user cannot create
network namespaces.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random

from tests.crash.oracle import Violation
from tests.torture.group.bridge import PEERS, Bridge, Node, NoNamespaces, check_namespaces
from tests.torture.group.networks import run_in_namespace
from tests.torture.process import BrokerProcess

from firetrail.errors import FiretrailError
from firetrail.format.names import AUTO_CREATE_TOPIC
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.admin.admin_bodies import HAConnectionRuntimeInfo, HARuntimeInfo
from firetrail.remoting.messages.headers import SendHeaderV2
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand

MASTER, PAUSED, RESTARTED = 1, 2, 3
PORT, HA_PORT = 10911, 10912
HEAL_S = 120.0
"""Patience with slaves that follow again."""
SENDS = 5


class PlacedBroker(BrokerProcess):
    """A broker with a fixed role in a namespace."""

    serving_line = b"broker"

    def __init__(self, folder: Path, number: int, node: Node, master: str) -> None:
        folder.mkdir()
        is_master = number == MASTER
        conf = {
            "brokerRole": "SYNC_MASTER" if is_master else "SLAVE",
            "brokerId": 0 if is_master else number,
            "brokerIP1": node.host,
            "brokerIP2": node.host,
            "listenPort": PORT,
            "haListenPort": HA_PORT,
            "ha_allowed_peers": PEERS,
            "inSyncReplicas": 3,
            "syncFlushTimeout": 2000,
        }
        super().__init__(folder, conf if is_master else {**conf, "master_address": master})
        self.host = node.host
        self.address = f"{node.host}:{PORT}"
        self._prefix = node.prefix

    def _command(self) -> list[str]:
        arguments = ["broker", str(self.store), "-c", str(self.conf), "--host", self.host]
        return [*self._prefix, sys.executable, "-m", "firetrail", *arguments, "--insecure"]


class CountedCopies:
    """A master and two slaves, of which at most one can confirm."""

    def __init__(self, folder: Path, seed: int, stack: AsyncExitStack) -> None:
        self._random = Random(f"copies {seed}")
        self._bridge = Bridge(stack)
        nodes = {number: self._bridge.add(number) for number in (MASTER, PAUSED, RESTARTED)}
        address = f"{nodes[MASTER].host}:{PORT}"
        self._brokers = {
            number: PlacedBroker(folder / str(number), number, node, address)
            for number, node in nodes.items()
        }
        self._master = self._brokers[MASTER]
        self._client = RemotingClient()
        self._stack = stack
        self.figures = Counter[str]()

    async def run(self) -> None:
        """Try to get an acknowledgement with two copies of three."""
        self._stack.push_async_callback(self._client.close)
        for broker in self._brokers.values():
            self._stack.push_async_callback(broker.close)
            await broker.start()
        paused, restarted = self._brokers[PAUSED], self._brokers[RESTARTED]
        await self._until(lambda seen: len(seen) == 2, "two slaves are connected")
        await self._acknowledged()

        (before,) = [each.addr for each in await self._slaves() if _host(each) == restarted.host]
        port = int(before.rpartition(":")[2])
        for one, other in ((self._master, restarted), (restarted, self._master)):
            self._bridge.drop([one.host], [other.host], port)
        paused.signal(signal.SIGSTOP)
        await restarted.kill()
        await asyncio.sleep(self._random.uniform(0, 2))
        await restarted.start()
        await self._until(
            lambda seen: any(_host(s) == restarted.host and s.addr != before for s in seen),
            "the slave has connected again",
        )
        for _ in range(SENDS):
            # A connection that has reported nothing yet could be that of any slave.
            hosts = Counter(_host(s) for s in await self._slaves() if s.slave_ack_offset >= 0)
            if max(hosts.values(), default=0) > 1:
                raise Violation(f"the master lists a slave twice: {hosts}")
            if not await self._send():
                raise Violation("acknowledged with two copies, three are required")
            self.figures["not acknowledged"] += 1
            await asyncio.sleep(self._random.uniform(0, 1))
        paused.signal(signal.SIGCONT)
        self._bridge.heal()
        await self._acknowledged()

    async def _send(self) -> int:
        """Send a message; return the code of the answer."""
        header = SendHeaderV2(
            "copies", "Copies", AUTO_CREATE_TOPIC, 4, 0, 0, int(time.time() * 1000), 0
        )
        request = RemotingCommand(RequestCode.SEND_MESSAGE_V2, header.encode(), b"copied")
        return (await self._client.request(self._master.address, request, 30.0)).code

    async def _acknowledged(self) -> None:
        over_at = time.monotonic() + HEAL_S
        while code := await self._send():
            if time.monotonic() > over_at:
                raise Violation(f"nothing is acknowledged with three copies: code {code}")
            await asyncio.sleep(0.2)
        self.figures["acknowledged"] += 1

    async def _slaves(self) -> Sequence[HAConnectionRuntimeInfo]:
        with suppress(OSError, FiretrailError):
            request = RemotingCommand(RequestCode.GET_BROKER_HA_STATUS)
            answer = await self._client.ask(self._master.address, request)
            return HARuntimeInfo.decode(answer.content).ha_connection_info
        return []

    async def _until(
        self, holds: Callable[[Sequence[HAConnectionRuntimeInfo]], bool], what: str
    ) -> None:
        over_at = time.monotonic() + HEAL_S
        while not holds(found := await self._slaves()):
            if time.monotonic() > over_at:
                raise Violation(f"it did not happen that {what}: {found}")
            await asyncio.sleep(0.1)


def _host(slave: HAConnectionRuntimeInfo) -> str:
    return slave.addr.rpartition(":")[0].lstrip("/")


async def _count(folder: Path, seed: int) -> Counter[str]:
    async with AsyncExitStack() as stack:
        counted = CountedCopies(folder, seed, stack)
        await counted.run()
        return counted.figures


def count_copies(folder: Path, seed: int) -> Counter[str]:
    """Run the case once; raise NoNamespaces if that is not possible."""
    check_namespaces()
    folder.mkdir(exist_ok=True)
    return run_in_namespace(_count(folder, seed))


def main() -> int:
    parser = argparse.ArgumentParser(prog="counted_copies", description=__doc__)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for seed in range(args.seed, args.seed + args.runs):
        with tempfile.TemporaryDirectory(prefix="firetrail-copies-") as folder:
            try:
                print(f"seed {seed}: {dict(count_copies(Path(folder), seed))}", flush=True)
            except NoNamespaces as error:
                print(f"not run: {error}", file=sys.stderr)
                return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
