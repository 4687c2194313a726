"""Networks between the members of a group and etcd, which can be partitioned.

:class:`Namespaces` gives every member a network namespace of its own, and routes between them. It
drops packets in one direction or in both, and connections stay open.
:class:`Proxies` needs no rights, and closes the connections that it cuts.
"""

import asyncio
import ctypes
import os
import shutil
import subprocess
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from tests.replication.etcd_server import etcd_server

ETCD = 0
"""The number of etcd among members, which are numbered from 1 on."""
LOCAL = "127.0.0.1"
PEERS = "10.77.0.0/16"
NEW_NETWORK = 0x40000000
"""CLONE_NEWNET of Linux."""
NAMESPACE_S = 30.0
"""Patience with a new namespace."""

T = TypeVar("T")


class Place(NamedTuple):
    """The place where a member runs.

    Attributes:
        bind: The address that the broker listens on; clients use it.
        host: The address that the broker has for other members.
        etcd: The address of etcd, as the member uses it.
        peers: What the HA port of the member allows.
        prefix: The beginning of the command that starts a process there.
    """

    bind: str
    host: str
    etcd: str
    peers: str
    prefix: Sequence[str]


class Network(Protocol):
    """A network with etcd in it."""

    etcd: str
    """The address of etcd for clients that are never cut off."""

    async def place(self, number: int, ports: Sequence[int]) -> Place:
        """Return where member ``number`` runs, which listens on these ports."""

    async def cut(self, number: int, others: Sequence[int], *, way: str = "both") -> None:
        """Let nothing pass between a member and others.

        ``way`` is ``in``, ``out`` or ``both``, as the member sees it.
        """

    async def heal(self, number: int) -> None:
        """Connect a member with everything."""


# -- proxies ----------------------------------------------------------------------------------


class Proxy:
    """Forwards connections to another port, until it is cut."""

    def __init__(self, host: str, port: int, target: int) -> None:
        self._host, self._port, self._target = host, port, target
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, self._host, self._port)
            self._port = self._server.sockets[0].getsockname()[1]

    @property
    def address(self) -> str:
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
            there = await asyncio.open_connection(LOCAL, self._target)
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


class Proxies:
    """Members on one machine, which reach etcd and each other through proxies."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.etcd = stack.enter_context(etcd_server(folder))
        self._stack = stack
        self._to_etcd: dict[int, Proxy] = {}
        self._to_member: dict[int, list[Proxy]] = {}

    async def place(self, number: int, ports: Sequence[int]) -> Place:
        """Open the proxies of a member; others see it at 127.0.1.NUMBER."""
        host = f"127.0.1.{number}"
        self._to_etcd[number] = Proxy(LOCAL, 0, int(self.etcd.rpartition(":")[2]))
        self._to_member[number] = [Proxy(host, port, port) for port in ports]
        for proxy in self._all(number):
            self._stack.push_async_callback(proxy.cut)
        await self.heal(number)
        return Place(LOCAL, host, self._to_etcd[number].address, LOCAL, ())

    def _all(self, number: int) -> list[Proxy]:
        return [self._to_etcd[number], *self._to_member[number]]

    async def cut(self, number: int, others: Sequence[int], *, way: str = "both") -> None:
        """Close connections of a member to etcd, and connections of all other members to it."""
        proxies = [self._to_etcd[number]] if ETCD in others else []
        proxies += self._to_member[number] if {*others} - {ETCD} else []
        for proxy in proxies:
            await proxy.cut()

    async def heal(self, number: int) -> None:
        """Accept connections again."""
        for proxy in self._all(number):
            await proxy.open()


# -- namespaces -------------------------------------------------------------------------------


def can_partition() -> bool:
    """Whether this process may create network namespaces."""
    tools = all(shutil.which(name) for name in ("ip", "unshare", "nsenter"))
    if not tools or os.geteuid() != 0:
        return False
    return subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0


def run_in_namespace(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a thread whose network is a new namespace.

    A namespace belongs to a thread: this process keeps its network. Processes and threads that the
    coroutine starts inherit the new one.
    """
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()

    async def announced() -> T:
        task = asyncio.current_task()
        assert task is not None
        started.set_result((asyncio.get_running_loop(), task))
        return await work

    def isolated() -> T:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "the network cannot be unshared")
        return asyncio.run(announced())

    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(isolated)
        try:
            return result.result()
        finally:
            if not result.done():  # this thread was interrupted
                loop, task = started.result()
                loop.call_soon_threadsafe(task.cancel)


class Namespaces:
    """Members and etcd in network namespaces; this thread's namespace routes between them.

    Use it within :func:`run_in_namespace`. Clients in this thread reach everything at any time. The
    namespaces disappear with their last process.
    """

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._rules: dict[int, list[str]] = {}
        run("ip link set lo up")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        prefix = self._add(ETCD)
        server = etcd_server(folder, host=self._host(ETCD), prefix=prefix)
        self.etcd = stack.enter_context(server)

    @staticmethod
    def _host(number: int) -> str:
        return f"10.77.{number}.2"

    def _add(self, number: int) -> list[str]:
        holder = new_namespace(self._stack)
        inside = f"nsenter --net=/proc/{holder}/ns/net"
        router = f"10.77.{number}.1"
        run(f"ip link add member{number} type veth peer name eth0 netns {holder}")
        run(f"ip addr add {router}/30 dev member{number}")
        run(f"ip link set member{number} up")
        run(f"{inside} ip link set lo up")
        run(f"{inside} ip addr add {self._host(number)}/30 dev eth0")
        run(f"{inside} ip link set eth0 up")
        run(f"{inside} ip route add default via {router}")
        return inside.split()

    async def place(self, number: int, ports: Sequence[int]) -> Place:
        """Create the namespace of a member."""
        prefix = await asyncio.to_thread(self._add, number)
        return Place(self._host(number), self._host(number), self.etcd, PEERS, prefix)

    async def cut(self, number: int, others: Sequence[int], *, way: str = "both") -> None:
        """Drop packets between a member and others."""
        rules = self._rules.setdefault(number, [])
        here = self._host(number)
        for there in map(self._host, others):
            if way != "out":
                rules.append(f"from {there} to {here}")
            if way != "in":
                rules.append(f"from {here} to {there}")
        for rule in rules:
            await asyncio.to_thread(run, f"ip rule add {rule} blackhole")

    async def heal(self, number: int) -> None:
        for rule in self._rules.pop(number, []):
            await asyncio.to_thread(run, f"ip rule del {rule} blackhole")


def new_namespace(stack: AsyncExitStack) -> int:
    """Create a network namespace that exists until the stack is closed.

    Return the process that holds it.
    """
    holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    stack.callback(holder.wait)
    stack.callback(holder.kill)
    own = os.readlink("/proc/thread-self/ns/net")
    over_at = time.monotonic() + NAMESPACE_S
    while os.readlink(f"/proc/{holder.pid}/ns/net") == own:
        assert time.monotonic() < over_at and holder.poll() is None, "no new namespace"
        time.sleep(0.01)
    return holder.pid


def run(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True)
    assert not done.returncode, f"{command}: {done.stderr}"
