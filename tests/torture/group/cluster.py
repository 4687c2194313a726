"""A group of three members, etcd, a name server and a client, each in a network namespace.

The client is a :mod:`witness <tests.torture.clients.witness>`, which shares nothing with the
members. :mod:`tests.torture.group.cluster_faults` lists what happens to them.
"""

import asyncio
import json
import shutil
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any

from tests.crash.files_check import check_files, readable
from tests.crash.oracle import Violation
from tests.replication.etcd_server import etcd_server
from tests.torture.clients.witness import PLACES
from tests.torture.group.bridge import PEERS, Bridge, Node
from tests.torture.process import SLOTS, BrokerProcess
from tests.torture.records.witness_ledger import Found, Ledger

from firetrail.errors import NotReachedError
from firetrail.replication.group.etcd import EtcdCoordinator
from firetrail.replication.group.etcd_gateway import EtcdAccess, EtcdGateway
from firetrail.replication.group.group_view import GroupView
from firetrail.system import SYSTEM

MEMBERS = (1, 2, 3)
TWIN, ETCD, NAMESRV, CLIENT = 4, 10, 20, 30
"""Ends of addresses; those of members are their numbers."""
PORT, HA_PORT = 10911, 10912
PREFIX = "/firetrail/DefaultCluster/broker-a"
LEASE_S = 5
"""The default of ``ha_lease_s``: all times are the defaults."""
DISK_MIB = 256
"""The size of the disk of each member, a tmpfs."""
CALM_S = 180.0
"""Patience with a group to which nothing happens any more."""
FLOW = 20
"""Acknowledged messages that show that the group works."""
SHOWN_S = 2.0
"""After this time replicas know that the end of the log is confirmed, and show it."""
ANSWER_S = 300.0
"""Patience with the client."""


class Unhealed(Exception):
    """The group did not recover without an operator."""


class Member(BrokerProcess):
    """A member, with the default times."""

    serving_line = b"broker"

    def __init__(self, folder: Path, number: int, node: Node) -> None:
        founder = number == MEMBERS[0]
        conf = {
            "brokerRole": "SYNC_MASTER" if founder else "SLAVE",
            "brokerId": 0 if founder else number,
            "brokerIP1": node.host,
            "brokerIP2": node.host,
            "listenPort": PORT,
            "haListenPort": HA_PORT,
            "ha_allowed_peers": PEERS,
            "ha_member": number,
            "etcd_endpoints": f"{PEERS.rpartition('.')[0]}.{ETCD}:2379",
            "namesrvAddr": f"{PEERS.rpartition('.')[0]}.{NAMESRV}:9876",
            "messageDelayLevel": "1s 2s 1s 1s",
            "cleanFileForciblyEnable": "false",  # a full disk deletes nothing
        }
        super().__init__(folder, conf)
        self.number = number
        self.host = node.host
        self.address = f"{node.host}:{PORT}"
        self._node = node

    def _command(self) -> list[str]:
        arguments = ["broker", str(self.store), "-c", str(self.conf), "--host", self._node.host]
        return [*self._node.prefix, sys.executable, "-m", "firetrail", *arguments, "--insecure"]


class Coordinator:
    """etcd, which can be lost, emptied, and restored from a backup."""

    def __init__(self, folder: Path, node: Node) -> None:
        self._folder, self._node = folder, node
        self._running = ExitStack()
        self.host = node.host
        self.address = f"{node.host}:2379"

    async def start(self) -> None:
        node = self._node
        server = etcd_server(self._folder, node.host, node.prefix, (2379, 2380))
        await asyncio.to_thread(self._running.enter_context, server)

    async def kill(self) -> None:
        """Kill it."""
        await asyncio.to_thread(self._running.close)

    async def backed_up(self) -> Path:
        await self.kill()
        copy = self._folder / "backup"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self._folder / "etcd", copy)
        await self.start()
        return copy

    def replace(self, data: Path | None) -> None:
        """Replace its data while it does not run: by those of a backup, or by nothing."""
        shutil.rmtree(self._folder / "etcd")
        if data is not None:
            shutil.copytree(data, self._folder / "etcd")


class WitnessProcess:
    """The client in its namespace."""

    def __init__(self, ledger: Path, node: Node, namesrv: str, seed: int) -> None:
        program = [sys.executable, "-m", "tests.torture.clients.witness", namesrv, str(ledger)]
        self._command = [*node.prefix, *program, "--seed", str(seed)]
        self._process: asyncio.subprocess.Process | None = None
        self.ledger = ledger

    async def start(self) -> None:
        """Start it and wait until its topics exist."""
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, limit=1 << 24
        )
        await self._answer()

    async def ask(self, command: str) -> dict[str, Any]:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())
        return await self._answer()

    async def _answer(self) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        async with asyncio.timeout(ANSWER_S):
            answer: dict[str, Any] = json.loads(await self._process.stdout.readline())
            return answer

    async def acknowledged(self, count: int) -> None:
        """Wait until ``count`` more messages were acknowledged."""
        wanted = (await self.ask("count"))["acknowledged"] + count
        over_at = time.monotonic() + CALM_S
        while (await self.ask("count"))["acknowledged"] < wanted:
            if time.monotonic() > over_at:
                raise Unhealed(f"nothing was acknowledged for {CALM_S:g} s")
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


class Cluster:
    """All nodes."""

    def __init__(self, folder: Path, seed: int, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.random = Random(f"cluster {seed}")
        self.bridge = Bridge(stack)
        self._stack = stack
        self.nodes = {n: self.bridge.add(n) for n in (*MEMBERS, TWIN, ETCD, NAMESRV, CLIENT)}
        self.etcd = Coordinator(folder, self.nodes[ETCD])
        self.members = [self.new_member(number, number) for number in MEMBERS]
        self._namesrv = f"{self.nodes[NAMESRV].host}:9876"
        ledger = folder / "ledger.jsonl"
        self.witness = WitnessProcess(ledger, self.nodes[CLIENT], self._namesrv, seed)
        access = EtcdAccess((self.etcd.address,))
        self._engine = EtcdCoordinator(access, PREFIX, LEASE_S, SYSTEM.clock)
        self._gateway = EtcdGateway(access, SYSTEM.clock)
        self._twins: dict[int, Member] = {}
        self.decisions = 0
        """How often an operator had to decide."""

    def new_member(self, number: int, place: int) -> Member:
        folder = self.folder / f"member-{place}"
        folder.mkdir()
        size = f"size={DISK_MIB}m"
        mount = ["mount", "-t", "tmpfs", "-o", size, "firetrail-torture", str(folder)]
        subprocess.run(mount, check=True)
        self._stack.callback(subprocess.run, ["umount", "-l", str(folder)], check=True)
        return Member(folder, number, self.nodes[place])

    async def start(self) -> None:
        self._stack.push_async_callback(self.close)
        await self.etcd.start()
        host = self.nodes[NAMESRV].host
        command = [*self.nodes[NAMESRV].prefix, sys.executable, "-m", "firetrail", "namesrv"]
        process = subprocess.Popen(
            [*command, "--host", host, "--port", "9876", "--insecure"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        for member in self.members:
            await member.start()
        await self.healthy()
        await self.witness.start()
        await self.witness.ask("go")

    async def close(self) -> None:
        await self.witness.close()
        for member in [*self.members, *self._twins.values()]:
            await member.close()
        await self.etcd.kill()

    # -- timing -------------------------------------------------------------------------------

    def span(self) -> float:
        """Return for how long something lasts: shorter or longer than a lease."""
        return LEASE_S * self.random.uniform(0.3, 2.2)

    async def moment(self, longest_s: float = 2.0) -> None:
        await asyncio.sleep(self.random.uniform(0, longest_s))

    # -- the state of the group ---------------------------------------------------------------

    async def view(self) -> GroupView | None:
        """Return what etcd says; None if it does not answer."""
        with suppress(NotReachedError):
            return await asyncio.to_thread(self._engine.watch, 0, 0.0)
        return None

    async def version(self) -> int:
        view = await self.view()
        return view.in_sync.lineage.version if view and view.in_sync else 0

    async def is_healthy(self) -> bool:
        """Whether there is a master, and all members are in sync."""
        view = await self.view()
        return bool(view and view.holder and view.in_sync and view.in_sync.members == {*MEMBERS})

    async def healthy(self, within_s: float = CALM_S) -> None:
        """Wait until there is a master, and all members are in sync; Unhealed if it takes long."""
        over_at = time.monotonic() + within_s
        while True:
            if await self.is_healthy():
                return
            if time.monotonic() > over_at:
                view, status = await self.view(), await self.status()
                raise Unhealed(f"after {within_s:g} s: {view}\n{status}")
            await asyncio.sleep(0.1)

    async def settled(self) -> None:
        """Wait until messages are acknowledged, and all members are in sync.

        Right after a kill, etcd still has the former master.
        """
        await self.witness.acknowledged(FLOW)
        await self.healthy()
        await self.witness.acknowledged(FLOW)

    async def read(self) -> None:
        """Let the client read everything that it has ever sent, and go on."""
        answer = await self.witness.ask("check")
        if answer["wrong"]:
            raise Violation(f"read: {answer['wrong']}")
        await self.witness.ask("go")

    async def left(self, number: int) -> None:
        async with asyncio.timeout(CALM_S):
            while (
                not (view := await self.view())
                or not view.in_sync
                or number in view.in_sync.members
            ):
                await asyncio.sleep(0.05)

    async def master(self) -> Member:
        async with asyncio.timeout(CALM_S):
            while not (view := await self.view()) or not view.holder:
                await asyncio.sleep(0.02)
        return self.members[view.holder.member - 1]

    async def replica(self) -> Member:
        master = await self.master()
        return self.random.choice([member for member in self.members if member is not master])

    async def status(self) -> str:
        """Return what the command says about the members."""
        return (await self._firetrail("cluster", "status", *self.addresses))[1]

    async def decide(self, without: Member | None = None) -> None:
        """Be the operator who lets the group continue with its most advanced log.

        Args:
            without: A member that is not asked. Default: None, all are.
        """
        asked = [member.address for member in self.members if member is not without]
        left_out = ("--without", str(without.number)) if without is not None else ()
        over_at = time.monotonic() + CALM_S
        while True:
            arguments = ("replica", "recover-group", *asked, *left_out, "--yes")
            code, said = await self._firetrail(*arguments)
            if not code:
                self.decisions += 1
                return
            if time.monotonic() > over_at:
                raise Unhealed(f"the group cannot be recovered: {said}\n{await self.status()}")
            await asyncio.sleep(1)

    async def replace(self, member: Member) -> None:
        """Be the operator who gives a member an empty store."""
        if member.is_running:
            await member.kill()
        arguments = ("replica", "replace", str(member.store), "-c", str(member.conf))
        code, said = await self._firetrail(*arguments)
        if code:
            raise Unhealed(f"member {member.number} is not replaced: {said}")
        self.decisions += 1
        await member.start()

    async def write(self, key: str, value: dict[str, Any]) -> None:
        """Write an entry of the group in etcd, as etcdctl does."""
        entry = {"key": _text64(f"{PREFIX}/{key}"), "value": _text64(json.dumps(value))}
        await asyncio.to_thread(self._gateway.call, "kv/put", entry)

    async def write_in_sync(self, member: int) -> None:
        """Edit the in-sync set so that it has one member."""
        key = {"key": _text64(f"{PREFIX}/in-sync")}
        found = await asyncio.to_thread(self._gateway.call, "kv/range", key)
        value = json.loads(b64decode(found["kvs"][0]["value"]))
        await self.write("in-sync", value | {"members": [member]})

    async def promote(self, member: Member) -> None:
        if await self.master() is member:
            return
        code, said = await self._firetrail("replica", "promote", member.address)
        if code:
            raise Unhealed(f"member {member.number} was not promoted: {said}")

    def twin(self, number: int) -> Member:
        if number not in self._twins:
            folder = self.folder / f"twin-{number}"
            folder.mkdir()
            self._twins[number] = Member(folder, number, self.nodes[TWIN])
        return self._twins[number]

    @property
    def addresses(self) -> list[str]:
        return [member.address for member in self.members]

    async def _firetrail(self, *arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "firetrail", *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        return process.returncode or 0, said.decode()

    # -- the end ------------------------------------------------------------------------------

    async def finish(self) -> dict[str, list[str]]:
        """Stop everything, and return what is wrong in the logs of the members.

        They are read without code of the store, and compared with the ledger.
        """
        await self.healthy()
        await self.witness.ask("check")  # nothing is sent any more
        async with asyncio.timeout(CALM_S):
            while len({_end(member) for member in self.members}) > 1:
                await asyncio.sleep(0.1)
        await asyncio.sleep(SHOWN_S)
        master = await self.master()
        for member in sorted(self.members, key=lambda each: each is master):
            assert await member.stop() == 0, member.said[-2000:]
        with self.witness.ledger.open() as lines:
            ledger = Ledger.parsed(lines)
        wrong: dict[str, list[str]] = {}
        for member in self.members:
            check_files(member.store, SLOTS)
            for kind, examples in _judged(ledger, member.store).items():
                wrong.setdefault(kind, []).extend(f"member {member.number}: {e}" for e in examples)
        return wrong


def _text64(text: str) -> str:
    return b64encode(text.encode()).decode()


def _end(member: Member) -> int:
    last = readable(member.store / "commitlog")[-1]
    return last.offset + last.size


def _judged(ledger: Ledger, store: Path) -> dict[str, list[str]]:
    log = readable(store / "commitlog")
    found = {
        place: [
            Found(record.queue_offset, record.body, record.store_time)
            for record in log
            if (record.topic, record.queue_id) == place
        ]
        for place in PLACES
    }
    return ledger.judged(found).wrong
