"""A bridge between network namespaces, whose packets are dropped by nftables.

Every node has a namespace of its own. Packets are dropped on the bridge, in one direction or in
both, for all ports or for one; connections stay open. The nodes do not notice it in any other way.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import NamedTuple

from tests.torture.group.networks import new_namespace, run

NETWORK = "10.78.0"
PEERS = f"{NETWORK}.0/24"
OWN = f"{NETWORK}.254"
"""The address of the tests themselves, which are never cut off."""
TOOLS = ("ip", "nft", "unshare", "nsenter")
_CHAIN = "bridge faults passing"


class NoNamespaces(Exception):
    """This user cannot create network namespaces; the text says why, and the remedy."""


class Node(NamedTuple):
    """A place in the network.

    Attributes:
        host: Its address.
        prefix: The beginning of commands that run there.
    """

    host: str
    prefix: list[str]


def check_namespaces() -> None:
    """Raise NoNamespaces if this process cannot create what a bridge needs."""
    if missing := [name for name in TOOLS if shutil.which(name) is None]:
        packages = "iproute2, nftables and util-linux"
        raise NoNamespaces(f"{', '.join(missing)} not found: install {packages}")
    if os.geteuid() != 0:
        raise NoNamespaces("network namespaces, nftables and mounts need root: run this as root")
    probe = "ip link add br0 type bridge && nft add table bridge probe"
    done = subprocess.run(["unshare", "--net", "sh", "-c", probe], capture_output=True, text=True)
    if done.returncode:
        reason = done.stderr.strip()
        raise NoNamespaces(f"a bridge in a new network namespace is not possible: {reason}")


class Bridge:
    """The bridge, in the namespace of this thread; use it within ``run_in_namespace``.

    The namespaces of the nodes disappear with their last process.
    """

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        run("ip link set lo up")
        run("ip link add br0 type bridge")
        run(f"ip addr add {OWN}/24 dev br0")
        run("ip link set br0 up")
        run("nft add table bridge faults")
        run(f"nft add chain {_CHAIN} {{ type filter hook forward priority 0 ; }}")

    def add(self, number: int) -> Node:
        """Create a node with this number as the end of its address."""
        holder = new_namespace(self._stack)
        inside = f"nsenter --net=/proc/{holder}/ns/net"
        host = f"{NETWORK}.{number}"
        run(f"ip link add node{number} type veth peer name eth0 netns {holder}")
        run(f"ip link set node{number} master br0 up")
        run(f"{inside} ip link set lo up")
        run(f"{inside} ip addr add {host}/24 dev eth0")
        run(f"{inside} ip link set eth0 up")
        return Node(host, inside.split())

    def drop(self, sources: Iterable[str], targets: Iterable[str], port: int | None = None) -> None:
        """Drop packets from some nodes to others.

        Args:
            sources: The addresses from which nothing arrives.
            targets: The addresses at which it does not arrive.
            port: Drop only packets of connections to this port of either side. Default: all.
        """
        ports = [""] if port is None else [f" tcp dport {port}", f" tcp sport {port}"]
        targets = list(targets)
        for source in sources:
            for target in targets:
                for limit in ports if source != target else ():
                    run(f"nft add rule {_CHAIN} ip saddr {source} ip daddr {target}{limit} drop")

    def heal(self) -> None:
        run(f"nft flush chain {_CHAIN}")
