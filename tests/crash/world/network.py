"""A simulated network: connections that keep bytes in order, and break wherever a test wants.

A :class:`Network` replaces the module ``socket`` in the modules of replication. Its threads are
those of a :class:`World`, so a run over it is deterministic and never waits. Every read returns a
random part of what has arrived. A connection is cut after a number of bytes in one direction: the
receiver gets exactly these bytes and then a reset; a part of what was on its way in the other
direction is lost. A :class:`Link` adds delay, a rate, and silence.
"""

from __future__ import annotations

import errno
import random
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import cast

from tests.crash.world.threads import World

from firetrail.replication.ha import ha_client, ha_connection
from firetrail.replication.ha.ha_port import OnConnected

WINDOW = 64 << 10
"""Bytes on their way in one direction at most; a sender waits while there are more."""
NEVER = 1 << 60


class Tap(Enum):
    """A tap on the bytes that one end of a connection sends."""

    LOG = "they are damaged if the test wants it"
    REPORTS = "they are noted"
    NONE = "they are passed on"


@dataclass(slots=True)
class Link:
    """The properties of the wire in one direction."""

    delay_s: float = 0.0
    bytes_per_s: float = float("inf")
    is_silent: bool = False
    """Whether everything that is sent from now on is lost, without a reset."""


class _Pipe:
    """One direction of a connection."""

    def __init__(self, world: World, link: Link, cut_after: int) -> None:
        self._world = world
        self._link = link
        self._arriving: deque[tuple[float, bytearray]] = deque()
        self._free_at = 0.0
        self.cut_after = cut_after
        self.size = 0
        self.has_ended = False
        self.was_reset = False

    def send(self, data: bytes) -> bool:
        """Put bytes on the wire; return whether the cut comes now."""
        self.cut_after -= len(data)
        is_cut = self.cut_after <= 0
        if is_cut:
            data = data[: len(data) + self.cut_after]
        if data and not self._link.is_silent:
            begin = max(self._free_at, self._world.now)
            self._free_at = begin + len(data) / self._link.bytes_per_s
            self._arriving.append((self._free_at + self._link.delay_s, bytearray(data)))
            self.size += len(data)
        return is_cut

    @property
    def has_room(self) -> bool:
        return self.size < WINDOW or self.has_ended

    @property
    def next_arrival(self) -> float | None:
        return self._arriving[0][0] if self._arriving else None

    @property
    def is_readable(self) -> bool:
        arrival = self.next_arrival
        return self.has_ended if arrival is None else arrival <= self._world.now

    def take(self, size: int) -> bytes:
        if not self._arriving:
            return b""
        first = self._arriving[0][1]
        taken = bytes(first[:size])
        del first[:size]
        self.size -= len(taken)
        if not first:
            self._arriving.popleft()
        return taken

    def reset(self, source: random.Random, *, keeps_all: bool) -> None:
        """End the direction: the receiver gets a part of what is on its way, then an error."""
        while not keeps_all and self._arriving and source.random() < 0.5:
            self.size -= len(self._arriving.pop()[1])
        self.has_ended = self.was_reset = True


class Endpoint:
    """Looks like a connected socket."""

    def __init__(self, network: Network, out: _Pipe, incoming: _Pipe, tap: Tap) -> None:
        self._network = network
        self._world = network.world
        self._out = out
        self._in = incoming
        self._tap = tap
        self._timeout: float | None = None
        self._is_closed = False

    def settimeout(self, seconds: float) -> None:
        self._timeout = seconds

    def setsockopt(self, *_: int) -> None:
        """Nothing depends on it."""

    def sendall(self, data: bytes | memoryview) -> None:
        self._world.yield_point()
        if not self._world.block(lambda: self._out.has_room or self._is_closed, self._timeout):
            raise TimeoutError("timed out")
        self._check()
        if self._out.was_reset:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        if self._out.has_ended:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        data = bytes(data)
        if self._tap is Tap.REPORTS:
            self._network.on_report(data)
        elif self._tap is Tap.LOG:
            data = self._network.damaged(data)
        if self._out.send(data):
            self._network.cut(self._out, self._in)

    def send(self, data: memoryview) -> int:
        return self.sendmsg([data])

    def sendmsg(self, buffers: Sequence[bytes | memoryview]) -> int:
        """Send a random part of the buffers, as a socket with a full buffer does."""
        data = b"".join(buffers)
        size = self._network.part(len(data))
        self.sendall(data[:size])
        return size

    def recv(self, size: int) -> bytes:
        self._world.yield_point()
        self._wait_readable()
        self._check()
        data = self._in.take(self._network.part(size))
        if not data and self._in.was_reset:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        return data

    def _wait_readable(self) -> None:
        world, until = self._world, None
        if self._timeout is not None:
            until = world.now + self._timeout
        while not self._in.is_readable and not self._is_closed:
            if until is not None and world.now >= until:
                raise TimeoutError("timed out")
            times = [time for time in (until, self._in.next_arrival) if time is not None]
            world.block(
                lambda: self._in.is_readable or self._is_closed,
                max(min(times) - world.now, 1e-6) if times else None,
            )

    def recv_into(self, buffer: memoryview) -> int:
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def shutdown(self, how: int) -> None:
        self._check()
        self._out.has_ended = self._in.has_ended = True

    def close(self) -> None:
        self._is_closed = True
        self._out.has_ended = True
        self._in.reset(self._network.source, keeps_all=True)

    def _check(self) -> None:
        if self._is_closed:
            raise OSError(errno.EBADF, "Bad file descriptor")

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Port:
    """Looks like the HA port of a broker."""

    def __init__(self) -> None:
        self.on_connected: OnConnected | None = None


class Network:
    """Looks like the module ``socket``; there is one port, that of the master."""

    IPPROTO_TCP, TCP_NODELAY = socket.IPPROTO_TCP, socket.TCP_NODELAY
    SHUT_RDWR = socket.SHUT_RDWR

    def __init__(self, world: World, source: random.Random) -> None:
        self.world = world
        self.source = source
        self.to_replica, self.to_master = Link(), Link()
        self.splits = True
        """Whether reads and writes return or take a random part of what they could."""
        self.next_cuts: deque[tuple[int, int]] = deque()
        """For each of the next connections: the bytes that arrive at the replica, and at the
        master; it is cut when one of them has arrived."""
        self.flip_after: int | None = None
        """After this many more bytes of the master one bit is wrong; None for never."""
        self.connections = 0
        self.on_report: Callable[[bytes], None] = lambda data: None
        """Called with what the replica sends."""
        self.port = Port()
        self._pipes: list[tuple[_Pipe, _Pipe]] = []

    def create_connection(
        self, address: tuple[str, int], timeout: float, *, is_tapped: bool = True
    ) -> Endpoint:
        """Connect to the port; ``on_report`` is called with what the connection sends if tapped."""
        self.world.yield_point()
        cuts = self.next_cuts.popleft() if self.next_cuts else (NEVER, NEVER)
        to_replica = _Pipe(self.world, self.to_replica, cuts[0])
        to_master = _Pipe(self.world, self.to_master, cuts[1])
        self._pipes.append((to_replica, to_master))
        self.connections += 1
        accepted = Endpoint(self, to_replica, to_master, Tap.LOG)
        self.world.spawn(lambda: self._accept(accepted), "accept")
        return Endpoint(self, to_master, to_replica, Tap.REPORTS if is_tapped else Tap.NONE)

    def _accept(self, connection: Endpoint) -> None:
        if self.port.on_connected is None:
            connection.close()
        else:
            self.port.on_connected(cast(socket.socket, connection), "10.0.0.2:50000")

    def part(self, size: int) -> int:
        """Return how many of ``size`` bytes a read or write takes."""
        return self.source.randint(1, size) if self.splits else size

    def damaged(self, data: bytes) -> bytes:
        """Return what becomes of bytes that the master sends."""
        if self.flip_after is None:
            return data
        at, self.flip_after = self.flip_after, self.flip_after - len(data)
        if at < len(data):
            self.flip_after = None
            damaged = bytearray(data)
            damaged[at] ^= 1 << self.source.randrange(8)
            return bytes(damaged)
        return data

    def cut(self, sent: _Pipe, other: _Pipe) -> None:
        """Break a connection; everything that was sent in the first direction arrives."""
        sent.reset(self.source, keeps_all=True)
        other.reset(self.source, keeps_all=False)

    def cut_all(self) -> None:
        """Break every connection, with any part of what is on its way."""
        for to_replica, to_master in self._pipes:
            if not to_replica.has_ended:
                self.cut(*self.source.sample((to_replica, to_master), 2))
        self._pipes.clear()

    @contextmanager
    def replaces_socket(self) -> Iterator[None]:
        """Have the modules of replication use this network."""
        modules = (ha_client, ha_connection)
        for module in modules:
            module.socket = self  # type: ignore[attr-defined]
        try:
            yield
        finally:
            for module in modules:
                module.socket = socket  # type: ignore[attr-defined]
