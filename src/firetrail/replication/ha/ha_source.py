"""The parts of a master that serve replicas, and the settings of its HA port."""

import socket
from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from firetrail.store.log.commit_log import CommitLog
from firetrail.store.log.replica_acks import ReplicaAcks
from firetrail.system import Clock, Threads
from firetrail.tls.secure_socket import SecureSocket


@dataclass(frozen=True, slots=True)
class HALimits:
    """The settings of a master's HA port.

    Attributes:
        batch_size: The most bytes of the log in one transfer.
        heartbeat_s: The most seconds between two transfers.
        silence_s: The time for which a replica may report nothing before its connection is closed.
        rate: Returns the most bytes per second to each replica, None for any number.
    """

    batch_size: int = 256 << 10
    heartbeat_s: float = 5.0
    silence_s: float = 20.0
    rate: Callable[[], int | None] = field(default=lambda: None)


HASocket = socket.socket | SecureSocket
"""A socket of replication, with TLS or without it."""


class AdmittedConnection(NamedTuple):
    """A connection that may be served, and the bytes that were read from it already."""

    socket: HASocket
    first: bytes = b""


def admit_all(connection: socket.socket, address: str) -> AdmittedConnection:
    """Serve every peer, without TLS."""
    return AdmittedConnection(connection)


@dataclass(frozen=True, slots=True)
class HASource:
    """The parts of a master that serve its replicas.

    Attributes:
        log: The log to send.
        acks: Where the confirmations of replicas are noted.
        limits: The settings of the port.
        clock: The time.
        threads: Starts the threads that serve replicas.
        admit: Takes a socket and the address of the peer; does the TLS handshake, and checks who
            the peer is, in a thread of the connection. It raises OSError or FiretrailError if the
            peer may not be served. Default: ``admit_all``, without TLS.
        loop: The event loop that puts messages; it serves the replicas that follow closely.
            Default: None, so threads serve all replicas.
    """

    log: CommitLog
    acks: ReplicaAcks
    limits: HALimits
    clock: Clock
    threads: Threads
    admit: Callable[[socket.socket, str], AdmittedConnection] = admit_all
    loop: AbstractEventLoop | None = None
