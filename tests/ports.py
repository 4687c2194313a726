"""TCP ports for servers that have to know their port before they listen.

A port that was merely found free may be taken before the server binds it: by a client, to which the
system assigns a port, or by the tests in another process. So these ports are outside of the range
that the system assigns, and each process has a block of them for as long as it lives.
"""

from __future__ import annotations

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
_holders: list[socket.socket] = []
"""A socket whose name says which block this process has; it ends with the process."""


def free_port(*near: int) -> int:
    """Return a port that is free, as are the ports at the distances ``near`` from it.

    No other process of the tests gets them.
    """
    while True:
        port = next(_ports())
        if all(_block_of(port + distance) == _block_of(port) for distance in near) and all(
            _is_free(port + distance) for distance in (0, *near)
        ):
            return port


def free_ports(count: int) -> list[int]:
    """Return several ports that are free, and that no other process of the tests gets."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)


@cache
def _ports() -> Iterator[int]:
    """Return the ports of this process, again and again."""
    first = int(ASSIGNED.read_text().split()[0]) if ASSIGNED.exists() else 0
    end = max(first, 16_384) // BLOCK * BLOCK
    blocks = range(end // 2, end, BLOCK)
    for number in range(len(blocks)):
        base = blocks[(os.getpid() + number) % len(blocks)]
        if _reserve(base):
            return itertools.cycle(range(base, base + BLOCK))
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


def _block_of(port: int) -> int:
    return port // BLOCK


def _is_free(port: int) -> bool:
    """Return whether a server can bind it, even one that does not reuse addresses."""
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
