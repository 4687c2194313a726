"""RocketMQ's controller mode under the faults of ``make torture PART=cluster``.

``python -m interop.controller_cluster`` runs three Java brokers 5.3.3, their controller, a name
server and the client of :mod:`tests.torture.clients.witness`, each in a network namespace. The
settings are the safest that RocketMQ has: all members of the in-sync set acknowledge a message, and
there are at least two. Exit code 2: this user cannot create network namespaces.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random

from interop.servers import BROKER, CONTROLLER, Servers, jars
from tests.torture.group.bridge import Bridge, Node, NoNamespaces, check_namespaces
from tests.torture.group.cluster import (
    CLIENT,
    FLOW,
    HA_PORT,
    MEMBERS,
    NAMESRV,
    PORT,
    WitnessProcess,
)
from tests.torture.group.cluster import ETCD as ENGINE
from tests.torture.group.cluster_rounds import LOST, Row, table
from tests.torture.group.networks import run_in_namespace

from firetrail.client import Admin
from firetrail.errors import FiretrailError
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.admin.admin_bodies import HARuntimeInfo
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand

SETTINGS = """\
brokerClusterName=DefaultCluster
brokerName=broker-a
enableControllerMode=true
allAckInSyncStateSet=true
inSyncReplicas=2
minInSyncReplicas=2
mappedFileSizeCommitLog=16777216
mappedFileSizeConsumeQueue=60000
diskMaxUsedSpaceRatio=99
messageDelayLevel=1s 2s 1s 1s
"""
CONTROLLER_PORT = 9877
SPAN_S = (3.0, 16.0)
"""How long a fault lasts: the controller takes a member for lost after 10 s."""
HEAL_S = 90.0


class JavaServer:
    """A process of RocketMQ in a namespace."""

    def __init__(self, servers: Servers, node: Node, main: str, conf: Path) -> None:
        self._command = [*node.prefix, *servers.command(main, "-c", str(conf))]
        self._environment = servers.environment()
        self._said = conf.with_suffix(".out")
        self._process: subprocess.Popen[bytes] | None = None
        self.host = node.host

    async def start(self) -> None:
        """Start it, and wait until it serves."""
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=said, stderr=said
            )
        async with asyncio.timeout(HEAL_S):
            while b"boot success" not in self._said.read_bytes():
                assert self._process.poll() is None, self._said.read_text()[-2000:]
                await asyncio.sleep(0.1)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)


class JavaCluster:
    """All nodes."""

    def __init__(self, folder: Path, seed: int, stack: AsyncExitStack) -> None:
        self.random = Random(f"controller {seed}")
        self.bridge = Bridge(stack)
        self._stack = stack
        self._folder = folder
        self.nodes = {n: self.bridge.add(n) for n in (*MEMBERS, ENGINE, NAMESRV, CLIENT)}
        self._namesrv = f"{self.nodes[NAMESRV].host}:9876"
        self.engine_data = folder / "controller"
        engine = f"{self.nodes[ENGINE].host}:{CONTROLLER_PORT}"
        conf = (
            f"controllerDLegerGroup=g\ncontrollerDLegerPeers=n0-{engine}\nmappedFileSize=1048576\n"
            f"controllerDLegerSelfId=n0\ncontrollerStorePath={self.engine_data}\n"
        )
        self.engine = self._server(ENGINE, CONTROLLER, conf)
        self.members = [self._member(number, engine) for number in MEMBERS]
        ledger = folder / "ledger.jsonl"
        self.witness = WitnessProcess(ledger, self.nodes[CLIENT], self._namesrv, seed)

    def _server(self, number: int, main: str, settings: str) -> JavaServer:
        home = self._folder / f"node-{number}"
        home.mkdir()
        conf = home / "server.conf"
        conf.write_text(settings)
        return JavaServer(Servers("v5", home), self.nodes[number], main, conf)

    def _member(self, number: int, engine: str) -> JavaServer:
        host, store = self.nodes[number].host, self._folder / f"node-{number}" / "store"
        own = (
            f"brokerIP1={host}\nbrokerIP2={host}\nlistenPort={PORT}\nhaListenPort={HA_PORT}\n"
            f"storePathRootDir={store}\ncontrollerAddr={engine}\nnamesrvAddr={self._namesrv}\n"
        )
        return self._server(number, BROKER, SETTINGS + own)

    async def start(self) -> None:
        """Start everything."""
        host = self.nodes[NAMESRV].host
        command = [*self.nodes[NAMESRV].prefix, sys.executable, "-m", "firetrail", "namesrv"]
        quiet = subprocess.DEVNULL
        command += ["--host", host, "--port", "9876", "--insecure"]
        process = subprocess.Popen(command, stdout=quiet, stderr=quiet)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        for server in [self.engine, *self.members]:
            self._stack.push_async_callback(server.kill)
            await server.start()
        self._stack.push_async_callback(self.witness.close)
        await self.in_sync()
        await self.witness.start()
        await self.witness.ask("go")

    async def in_sync(self) -> None:
        """Wait until the master has two slaves in sync."""
        async with asyncio.timeout(HEAL_S):
            while not await self._has_all():
                await asyncio.sleep(0.2)

    async def settled(self) -> None:
        """Wait until messages are acknowledged, and all members are in sync."""
        async with asyncio.timeout(HEAL_S):
            await self.witness.acknowledged(FLOW)
        await self.in_sync()

    async def _has_all(self) -> bool:
        client = RemotingClient()
        with suppress(OSError, FiretrailError, IndexError):
            master = await self.master()
            request = RemotingCommand(RequestCode.GET_BROKER_HA_STATUS, {})
            answer = await client.ask(f"{master.host}:{PORT}", request)
            slaves = HARuntimeInfo.decode(answer.content).ha_connection_info
            await client.close()
            return sum(each.in_sync for each in slaves) == len(MEMBERS) - 1
        await client.close()
        return False

    async def master(self) -> JavaServer:
        """Return the member that is registered as the master."""
        async with Admin(self._namesrv) as admin:
            address = (await admin.masters())["broker-a"]
        (found,) = [each for each in self.members if address.startswith(f"{each.host}:")]
        return found

    async def span(self) -> None:
        """Wait for a time that is shorter or longer than the controller's patience."""
        await asyncio.sleep(self.random.uniform(*SPAN_S))


async def _kill(cluster: JavaCluster) -> None:
    master = await cluster.master()
    await master.kill()
    await cluster.span()
    await master.start()


async def _pause(cluster: JavaCluster) -> None:
    master = await cluster.master()
    master.signal(signal.SIGSTOP)
    await cluster.span()
    master.signal(signal.SIGCONT)


async def _cut(cluster: JavaCluster, *others: int) -> None:
    host = (await cluster.master()).host
    there = [cluster.nodes[number].host for number in others]
    cluster.bridge.drop(there, [host])
    cluster.bridge.drop([host], there)
    await cluster.span()
    cluster.bridge.heal()


async def _cut_off(cluster: JavaCluster) -> None:
    await _cut(cluster, *cluster.nodes)


async def _cut_from_engine(cluster: JavaCluster) -> None:
    await _cut(cluster, ENGINE)


async def _empty(cluster: JavaCluster) -> None:
    await cluster.engine.kill()
    shutil.rmtree(cluster.engine_data)
    await cluster.engine.start()


async def _empty_without_master(cluster: JavaCluster) -> None:
    master = await cluster.master()
    await master.kill()
    await _empty(cluster)
    await cluster.span()
    await master.start()


FAULTS: dict[str, Callable[[JavaCluster], Awaitable[None]]] = {
    "the master is killed": _kill,
    "the master is paused": _pause,
    "the master is cut off from everything": _cut_off,
    "the master is cut off from the controller": _cut_from_engine,
    "the controller is emptied": _empty,
    "the controller is emptied, the master is down": _empty_without_master,
}


async def _suffer(folder: Path, seed: int, fault: str, row: Row) -> None:
    """Run one fault on a new cluster."""
    async with AsyncExitStack() as stack:
        cluster = JavaCluster(folder, seed, stack)
        await cluster.start()
        await cluster.settled()
        await asyncio.sleep(cluster.random.uniform(0.2, 2.0))
        try:
            await FAULTS[fault](cluster)
            await cluster.settled()
        except TimeoutError:
            print(f"  not healed after {HEAL_S:g} s", flush=True)
        answer = await cluster.witness.ask("check")
        row.add(answer, 0)
        lost = {kind: answer["wrong"][kind] for kind in LOST if kind in answer["wrong"]}
        others = Counter({kind: them[0] for kind, them in answer["wrong"].items()})
        print(f"  {fault}: {answer['figures']}, {lost or 'nothing lost'}, {others}", flush=True)


def main() -> int:
    """Run every fault on clusters of its own, and print the table."""
    parser = argparse.ArgumentParser(prog="controller_cluster", description=__doc__)
    parser.add_argument("--runs", type=int, default=1, help="of each fault")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", action="append", choices=FAULTS, help="only these")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin nothing after this time")
    args = parser.parse_args()
    try:
        check_namespaces()
    except NoNamespaces as error:
        print(f"not run: {error}", file=sys.stderr)
        return 2
    jars("v5")  # it is fetched now: a namespace has no network
    logging.disable()
    rows: dict[str, Row] = {}
    failures = 0
    over_at = time.monotonic() + 60 * args.minutes
    for seed in range(args.seed, args.seed + args.runs):
        for fault in args.fault or FAULTS:
            if time.monotonic() >= over_at:
                break
            print(f"seed {seed}", flush=True)
            with tempfile.TemporaryDirectory(prefix="firetrail-controller-") as folder:
                try:
                    row = rows.setdefault(fault, Row())
                    run_in_namespace(_suffer(Path(folder), seed, fault, row))
                except Exception:
                    traceback.print_exc()
                    failures += 1
    print(table(rows.items()))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
