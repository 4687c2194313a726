"""A group of brokers and etcd in processes of their own, whose master is tormented under load.

The members reach etcd, and each other, through proxies of this process, which cut them off. The
result is checked without any knowledge of who was the master when: every acknowledged message is in
the final log of every member, at the offset that its producer was told, and a message that was sent
after another one was acknowledged has a larger offset. Two masters that both acknowledge cannot
produce such a history.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.crash.files_check import check_files, readable
from tests.replication.etcd_server import etcd_server
from tests.torture.process import SLOTS, BrokerProcess, free_ports

from firetrail.errors import FiretrailError, NotReachedError
from firetrail.remoting.client import RemotingClient
from firetrail.remoting.codes import RequestCode, ResponseCode
from firetrail.remoting.command import RemotingCommand
from firetrail.replication.etcd import EtcdCoordinator
from firetrail.replication.etcd_gateway import EtcdAccess
from firetrail.store.inspect.view import StoreView
from firetrail.system import SYSTEM

MEMBERS = (1, 2, 3)
TOPIC = "Failover"
PREFIX = "/firetrail/DefaultCluster/broker-a"
LEASE_S = 3
LAG_S = 2
REQUEST_S = 2.0
PRODUCERS = 4
CALM_S = 120.0
"""Patience with a group to which nothing happens any more."""
KINDS = ("kill", "stop", "etcd", "replicas", "alone", "clock")
"""What happens to the master: it is killed, stopped for longer than its lease, cut off from etcd,
cut off from the replicas, cut off from both, or its wall clock is set."""
JUMPS_S = (-3600.0, -5.0, 5.0, 86_400.0)


class Proxy:
    """Forwards connections to another port, until it is cut."""

    def __init__(self, host: str, port: int, target: int) -> None:
        self._host, self._port, self._target = host, port, target
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        """Accept connections."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, self._host, self._port)
            self._port = self._server.sockets[0].getsockname()[1]

    @property
    def address(self) -> str:
        """``host:port`` of this side."""
        return f"{self._host}:{self._port}"

    async def cut(self) -> None:
        """End all connections, and accept no new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            there = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            self._writers.discard(writer)
            return
        self._writers.add(there[1])
        await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))
        self._writers -= {writer, there[1]}


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while content := await reader.read(1 << 16):
            writer.write(content)
            await writer.drain()
    writer.transport.abort()


class Member(BrokerProcess):
    """A member of the group; others see it at 127.0.1.NUMBER."""

    serving_line = b"broker"

    def __init__(self, folder: Path, number: int, etcd: Proxy) -> None:
        port, ha_port = free_ports(2)
        host = f"127.0.1.{number}"
        folder.mkdir()
        founder = number == MEMBERS[0]
        super().__init__(
            folder,
            {
                "brokerRole": "SYNC_MASTER" if founder else "SLAVE",
                "brokerId": 0 if founder else number,
                "brokerIP1": host,
                "listenPort": port,
                "haListenPort": ha_port,
                "haSendHeartbeatInterval": 200,
                "haMaxTimeSlaveNotCatchup": LAG_S * 1000,
                "slaveTimeout": 1000,
                "etcd_endpoints": etcd.address,
                "ha_member": number,
                "ha_lease_s": LEASE_S,
                "sync_interval_ms": 300,
                "fileReservedTime": 200_000,  # twenty-two years: no file expires by a wrong clock
            },
        )
        self.clock = self.with_faults()
        self.number = number
        self.address = f"127.0.0.1:{port}"
        self.etcd = etcd
        self.links = [Proxy(host, each, each) for each in (port, ha_port)]

    def _command(self) -> list[str]:
        return [*super()._command()[:3], "broker", str(self.store), "-c", str(self.conf)]


class Ack(NamedTuple):
    """A message that a producer was told to be stored."""

    body: bytes
    offset: int
    sent_at: float
    told_at: float
    member: int


class Group:
    """The members, their producers, and what these were told."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self.random = Random(f"failover {seed}")
        self.members: list[Member] = []
        self.acks: list[Ack] = []
        self._numbers = itertools.count()
        self._client = RemotingClient()

    async def in_sync(self) -> None:
        """Wait until all members are in the in-sync set, so that each of them could win."""
        async with asyncio.timeout(CALM_S):
            while True:
                with suppress(NotReachedError):
                    found = (await asyncio.to_thread(self._engine.watch, 0, 0.0)).in_sync
                    if found is not None and found.members == {*MEMBERS}:
                        return
                await asyncio.sleep(0.1)

    async def start(self, etcd: str) -> None:
        """Start all members."""
        self._engine = EtcdCoordinator(EtcdAccess((etcd,)), PREFIX, LEASE_S, SYSTEM.clock)
        for number in MEMBERS:
            proxy = Proxy("127.0.0.1", 0, int(etcd.rpartition(":")[2]))
            await proxy.open()
            member = Member(self._folder / str(number), number, proxy)
            self.members.append(member)
            await self.heal(member)
            await member.start()

    async def heal(self, member: Member) -> None:
        """Connect a member with everybody."""
        for proxy in (member.etcd, *member.links):
            await proxy.open()

    async def close(self) -> None:
        """End everything."""
        await self._client.close()
        for member in self.members:
            member.signal(signal.SIGCONT)
            await member.close()
            for proxy in (member.etcd, *member.links):
                await proxy.cut()

    # -- producers ----------------------------------------------------------------------------

    async def produce(self, stop: asyncio.Event) -> None:
        """Send messages one after the other, to whichever member takes them."""
        at = 0
        while not stop.is_set():
            if not await self.send(self.members[at]):
                at = (at + 1) % len(self.members)
                await asyncio.sleep(0.02)

    async def send(self, member: Member) -> bool:
        """Send one message; note it if it is acknowledged."""
        body = b"message %d" % next(self._numbers)
        fields = {"a": "P", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0"}
        fields |= {"g": str(time.time_ns() // 1_000_000), "h": "0", "i": "", "j": "0", "m": "false"}
        command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, body)
        sent_at = time.monotonic()
        try:
            answer = await self._client.request(member.address, command, REQUEST_S)
        except (OSError, FiretrailError):
            return False
        if answer.code != ResponseCode.SUCCESS:
            return False
        offset = int((answer.fields or {})["msgId"][-16:], 16)
        self.acks.append(Ack(body, offset, sent_at, time.monotonic(), member.number))
        return True

    async def acknowledged(self, count: int) -> None:
        """Wait until so many more messages were acknowledged."""
        wanted = len(self.acks) + count
        async with asyncio.timeout(CALM_S):
            while len(self.acks) < wanted:
                await asyncio.sleep(0.02)

    @property
    def master(self) -> Member:
        """The member that acknowledged last."""
        return self.members[self.acks[-1].member - 1]

    # -- torments -----------------------------------------------------------------------------

    async def torment(self, kind: str) -> float:
        """Do something to the master, and undo it; return the seconds without acknowledgement."""
        master, began = self.master, len(self.acks)
        pause_s = LEASE_S * self.random.uniform(1.2, 2.5)
        ways: dict[str, Callable[[], Awaitable[None]]] = {
            "kill": lambda: self._kill(master, pause_s),
            "stop": lambda: self._stop(master, pause_s),
            "etcd": lambda: self._cut(master, [master.etcd], pause_s),
            "replicas": lambda: self._cut(master, master.links, pause_s),
            "alone": lambda: self._cut(master, [master.etcd, *master.links], pause_s),
            "clock": lambda: self._set_clock(master, pause_s),
        }
        await ways[kind]()
        await self.acknowledged(20)
        told = [ack.told_at for ack in self.acks[max(began - 1, 0) :]]
        return max(b - a for a, b in itertools.pairwise(told))

    async def _kill(self, master: Member, pause_s: float) -> None:
        await master.kill()
        await asyncio.sleep(pause_s)
        await master.start()

    async def _stop(self, master: Member, pause_s: float) -> None:
        master.signal(signal.SIGSTOP)
        await asyncio.sleep(pause_s)
        master.signal(signal.SIGCONT)

    async def _cut(self, master: Member, proxies: list[Proxy], pause_s: float) -> None:
        for proxy in proxies:
            await proxy.cut()
        await asyncio.sleep(pause_s)
        await self.heal(master)

    async def _set_clock(self, master: Member, pause_s: float) -> None:
        master.clock.set_clock(self.random.choice(JUMPS_S))
        await asyncio.sleep(pause_s)
        master.clock.set_clock(0)

    # -- the oracle ---------------------------------------------------------------------------

    async def finish(self) -> None:
        """Wait until all members have the same log; stop them and check everything."""
        async with asyncio.timeout(CALM_S):
            await self._logs_are_equal()
        for member in self.members:
            assert await member.stop() == 0, member.said[-2000:]
            check_files(member.store, SLOTS)
        logs = [_messages(member.store) for member in self.members]
        for member, log in zip(self.members, logs, strict=True):
            lost = [ack for ack in self.acks if log.get(ack.offset) != ack.body]
            assert not lost, f"member {member.number} lacks {len(lost)} acknowledged: {lost[:3]}"
        check_order(self.acks)

    async def _logs_are_equal(self) -> None:
        """Wait until a message is on all members, and nothing else is being sent."""
        while True:
            while not any([await self.send(member) for member in self.members]):
                await asyncio.sleep(0.1)
            for _ in range(100):
                ends = [_end(member.store) for member in self.members]
                if len(set(ends)) == 1 and ends[0] > self.acks[-1].offset:
                    return
                await asyncio.sleep(0.05)


def check_order(acks: list[Ack]) -> None:
    """Check that messages which were sent after others were acknowledged have larger offsets."""
    told = sorted(acks, key=lambda ack: ack.told_at)
    highest, at = -1, 0
    for ack in sorted(acks, key=lambda ack: ack.sent_at):
        while told[at].told_at < ack.sent_at:
            highest = max(highest, told[at].offset)
            at += 1
        assert ack.offset > highest, f"{ack} was sent after a message at {highest} was acknowledged"


def _end(store: Path) -> int:
    with StoreView.open(store) as view:
        return view.end


def _messages(store: Path) -> dict[int, bytes]:
    """Return the bodies of all messages by physical offset, read without code of the store."""
    return {record.offset: record.body for record in readable(store / "commitlog")}


async def fail_over(folder: Path, seed: int, kinds: tuple[str, ...] = KINDS) -> Counter[str]:
    """Torment the master of a group once in every way; return the figures."""
    figures = Counter[str]()
    async with AsyncExitStack() as stack:
        etcd = stack.enter_context(etcd_server(folder))
        group = Group(folder, seed)
        stack.push_async_callback(group.close)
        await group.start(etcd)
        stop = asyncio.Event()
        producers = [asyncio.create_task(group.produce(stop)) for _ in range(PRODUCERS)]
        try:
            await group.acknowledged(20)
            for kind in group.random.sample(kinds, len(kinds)):
                await group.in_sync()
                before = group.master.number
                gap_s = await group.torment(kind)
                figures["failovers"] += group.master.number != before
                name = f"longest ms without acknowledgement ({kind})"
                figures[name] = max(figures[name], int(gap_s * 1000))
        finally:
            stop.set()
            await asyncio.gather(*producers)
        await group.finish()
        figures["acknowledged"] = len(group.acks)
    return figures
