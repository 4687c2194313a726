"""TCP ports for servers that have to know their port before they listen.

A port that was merely found free may be taken before the server binds it: by a client, to which the
system assigns a port, or by the tests in another process. So these ports are outside of the range
that the system assigns, and each process has a block of them for as long as it lives.
"""

import itertools
import os
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path

HOST = "127.0.0.1"
ASSIGNED = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The ports that the system assigns to clients, as two numbers."""
BLOCK = 256
DERIVED = (-2, -1, 0, 1)
"""A broker also listens two ports below its own, for clients, and one above, for replicas."""
_holders: list[socket.socket] = []
"""A socket whose name says which block this process has; it ends with the process."""


def free_port() -> int:
    """Return a port that is free, as are those that a broker derives from its own.

    No other process of the tests gets any of them, and no other call until the block was used up.
    """
    return next(port for port in _ports() if all(_is_free(port + near) for near in DERIVED))


def free_ports(count: int) -> list[int]:
    """Return several ports that are free, and that no other process of the tests gets."""
    return [free_port() for _ in range(count)]


@cache
def _ports() -> Iterator[int]:
    """Return the ports of this process, again and again."""
    first = int(ASSIGNED.read_text().split()[0]) if ASSIGNED.exists() else 0
    end = max(first, 16_384) // BLOCK * BLOCK
    blocks = range(end // 2, end, BLOCK)
    for number in range(len(blocks)):
        base = blocks[(os.getpid() + number) % len(blocks)]
        if _reserve(base):
            first = base - DERIVED[0]
            return itertools.cycle(range(first, base + BLOCK, len(DERIVED)))
    raise AssertionError(f"all ports from {blocks.start} to {end} are reserved by tests")


def _reserve(base: int) -> bool:
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(f"\0firetrail-tests-ports-{base}")
    except OSError:
        holder.close()
        return False
    _holders.append(holder)
    return True


def _is_free(port: int) -> bool:
    """Return whether a server can bind it, even one that does not reuse addresses."""
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
