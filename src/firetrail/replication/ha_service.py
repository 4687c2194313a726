"""The HA port of a master: it sends the commit log to every replica that connects.

Each connection has two threads, as in RocketMQ: one sends the log, the other reads the reports. The
work is done by the kernel (sends release the interpreter's lock), so replicas do not slow down the
event loop that serves clients.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from firetrail.errors import FiretrailError
from firetrail.replication.frames import encode_header
from firetrail.replication.master_session import MasterSession
from firetrail.store.log.commit_log import CommitLog
from firetrail.store.log.replica_acks import ReplicaAcks
from firetrail.system import Clock

CONNECTIONS_MAX = 32
"""The most connections of replicas; further ones are closed at once."""
BACKLOG = 16
REPORT_SIZE = 4096
"""Bytes that one read takes from a replica."""
IDLE_S = 0.1
"""How long a sender waits for new messages before it looks for them without being woken."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HALimits:
    """The settings of a master's HA port.

    Attributes:
        batch_size: The most bytes of the log in one transfer.
        heartbeat_s: The most seconds between two transfers.
        silence_s: How long a replica may report nothing before its connection is closed.
    """

    batch_size: int = 256 << 10
    heartbeat_s: float = 5.0
    silence_s: float = 20.0


@dataclass(frozen=True, slots=True)
class HASource:
    """What replicas are served from.

    Attributes:
        log: The log to send.
        acks: Where the confirmations of replicas are noted.
        limits: The settings of the port.
        clock: The time.
    """

    log: CommitLog
    acks: ReplicaAcks
    limits: HALimits
    clock: Clock


class HAConnection:
    """One replica."""

    def __init__(
        self,
        connection: socket.socket,
        address: str,
        source: HASource,
        on_closed: Callable[[HAConnection], None],
    ) -> None:
        self.address = address
        self._socket = connection
        self._log, self._acks = source.log, source.acks
        self._limits = limits = source.limits
        self._clock = clock = source.clock
        self._on_closed = on_closed
        self._wake = threading.Event()
        self._closing = threading.Lock()  # taken once, by the thread that closes the connection
        self.session = MasterSession(
            source.log, limits.batch_size, limits.heartbeat_s, clock.monotonic()
        )
        connection.settimeout(limits.silence_s)
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=name, daemon=True)
            for name, work in (("firetrail-ha-send", self._send), ("firetrail-ha-read", self._read))
        ]

    def start(self) -> None:
        """Begin to serve the replica."""
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Send what is new."""
        self._wake.set()

    def close(self, reason: str = "") -> None:
        """Close the connection; log the reason unless it is empty."""
        if not self._closing.acquire(blocking=False):
            return
        if reason:
            _log.warning("the connection of replica %s was closed: %s", self.address, reason)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._wake.set()
        self._acks.drop(self)
        self._on_closed(self)

    @property
    def is_closed(self) -> bool:
        """Whether the connection was closed."""
        return self._closing.locked()

    def join(self) -> None:
        """Wait for the end of its threads."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except TimeoutError:
            self.close(f"it has sent or read nothing for {self._limits.silence_s:g} seconds")
        except (OSError, FiretrailError) as error:
            self.close(str(error))
        except Exception as error:
            _log.exception("the connection of replica %s failed", self.address)
            self.close(str(error))

    def _read(self) -> None:
        while not self.is_closed:
            data = self._socket.recv(REPORT_SIZE)
            if not data:
                _log.info("replica %s has disconnected", self.address)
                self.close()
                return
            is_first = self.session.position < 0
            if self.session.receive(data, self._clock.monotonic()):
                self._acks.note(self, self.session.acked)
            if is_first:
                self._wake.set()

    def _send(self) -> None:
        while not self.is_closed:
            transfer = self.session.next_transfer(self._clock.monotonic())
            if transfer is None:
                self._wake.wait(IDLE_S)
                self._wake.clear()
                continue
            header = encode_header(*transfer)
            if transfer.size == 0:
                self._socket.sendall(header)
                continue
            content = self._log.read(transfer.offset, transfer.size)
            if content is None:
                self.close(
                    f"retention has deleted the log at {transfer.offset}, which the replica needs"
                )
                return
            with content:
                sent = self._socket.sendmsg([header, content])
                if sent < len(header):
                    self._socket.sendall(header[sent:])
                    sent = len(header)
                with content[sent - len(header) :] as rest:
                    self._socket.sendall(rest)


class HAService:
    """Listens on the HA port and serves the replicas that connect."""

    def __init__(self, source: HASource) -> None:
        self._source = source
        self._guard = threading.Lock()
        self._connections: list[HAConnection] = []
        self._listener: socket.socket | None = None
        self._thread = threading.Thread(target=self._accept, name="firetrail-ha", daemon=True)

    @property
    def port(self) -> int:
        """The port that the service listens on; 0 before the start."""
        return self._listener.getsockname()[1] if self._listener is not None else 0

    @property
    def connections(self) -> list[HAConnection]:
        """The connected replicas."""
        with self._guard:
            return list(self._connections)

    def start(self, host: str, port: int) -> None:
        """Listen on an address; port 0 picks a free one. Raises OSError if it is in use."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        self._source.acks.on_waiting = self.wake
        self._thread.start()

    def wake(self) -> None:
        """Send what is new in the log to all replicas."""
        for connection in self._connections:
            connection.wake()

    def stop(self) -> None:
        """Close the port and all connections."""
        listener = self._listener
        if listener is None:
            return
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        self._thread.join()
        for connection in self.connections:
            connection.close()
            connection.join()

    def _accept(self) -> None:
        assert self._listener is not None
        while True:
            try:
                connection, address = self._listener.accept()
            except OSError:
                return  # the service stops
            self._serve(connection, f"{address[0]}:{address[1]}")

    def _serve(self, connection: socket.socket, address: str) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._guard:
            if len(self._connections) >= CONNECTIONS_MAX:
                _log.warning(
                    "the connection of replica %s was refused: there are %d already",
                    address,
                    CONNECTIONS_MAX,
                )
                connection.close()
                return
            replica = HAConnection(connection, address, self._source, self._closed)
            self._connections = [*self._connections, replica]
        _log.info("replica %s has connected", address)
        replica.start()

    def _closed(self, connection: HAConnection) -> None:
        with self._guard:
            self._connections = [other for other in self._connections if other is not connection]
