"""The connection of a master to one replica: sockets and threads around a session.

Each connection has two threads, as in RocketMQ: one sends the log, the other reads the reports. The
work is done by the kernel (sends release the interpreter's lock), so replicas do not slow down the
event loop that serves clients.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from firetrail.errors import FiretrailError, NotReachedError
from firetrail.replication.flow_control import RateMeter, TransferRate
from firetrail.replication.frames import BODY_MAX, encode_confirmation, encode_header
from firetrail.replication.master_session import MasterSession, Transfer
from firetrail.store.log.commit_log import CommitLog
from firetrail.store.log.flusher import Signal
from firetrail.store.log.replica_acks import ReplicaAcks
from firetrail.system import Clock
from firetrail.tls.secure_socket import SecureSocket

REPORT_SIZE = 4096
"""Bytes that one read takes from a replica."""
IDLE_S = 0.1
"""How long a sender waits for new messages before it looks for them without being woken."""
LIMITED_S = 0.02
"""How long a sender waits if flow control does not allow more at the moment."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HALimits:
    """The settings of a master's HA port.

    Attributes:
        batch_size: The most bytes of the log in one transfer.
        heartbeat_s: The most seconds between two transfers.
        silence_s: How long a replica may report nothing before its connection is closed.
        rate: Returns the most bytes per second to each replica, None for any number.
    """

    batch_size: int = 256 << 10
    heartbeat_s: float = 5.0
    silence_s: float = 20.0
    rate: Callable[[], int | None] = field(default=lambda: None)


HASocket = socket.socket | SecureSocket
"""A socket of replication, with TLS or without it."""


class Admitted(NamedTuple):
    """A connection that may be served, and the bytes that were read from it already."""

    socket: HASocket
    first: bytes = b""


def admit_all(connection: socket.socket, address: str) -> Admitted:
    """Serve everybody, without TLS."""
    return Admitted(connection)


@dataclass(frozen=True, slots=True)
class HASource:
    """What replicas are served from.

    Attributes:
        log: The log to send.
        acks: Where the confirmations of replicas are noted.
        limits: The settings of the port.
        clock: The time.
        admit: Takes a socket and the address of the peer; does the TLS handshake, and checks who
            the peer is, in a thread of the connection. It raises OSError or FiretrailError if the
            peer may not be served. Default: everybody is served without TLS.
    """

    log: CommitLog
    acks: ReplicaAcks
    limits: HALimits
    clock: Clock
    admit: Callable[[socket.socket, str], Admitted] = admit_all


class HAConnection:
    """One replica."""

    def __init__(
        self,
        connection: socket.socket,
        address: str,
        source: HASource,
        on_closed: Callable[[HAConnection], None],
    ) -> None:
        """Take over a connection.

        Args:
            connection: The socket.
            address: ``ip:port`` of the replica.
            source: What it is served from.
            on_closed: Called once, when the connection is closed.
        """
        self.address = address
        self._raw = connection
        self._socket: HASocket = connection
        self._admit = source.admit
        self._first = b""
        self._log, self._acks = source.log, source.acks
        self._limits = limits = source.limits
        self._clock = clock = source.clock
        self._on_closed = on_closed
        self._wake = Signal()
        self._closing = threading.Lock()  # taken once, by the thread that closes the connection
        now = clock.monotonic()
        self.session = MasterSession(source.log, limits.batch_size, limits.heartbeat_s, now)
        self._bucket = TransferRate(limits.rate, now)
        self._meter = RateMeter(now)
        self._noted = -1  # the last acknowledged offset that counts for waiting producers
        connection.settimeout(limits.silence_s)
        self._sender = threading.Thread(
            target=self._guarded, args=(self._send,), name="firetrail-ha-send", daemon=True
        )
        self._reader = threading.Thread(target=self._run, name="firetrail-ha-read", daemon=True)

    def start(self) -> None:
        """Begin to serve the replica."""
        self._reader.start()

    def wake(self) -> None:
        """Send what is new."""
        self._wake.set()

    def close(self, reason: str = "") -> None:
        """Close the connection; log the reason unless it is empty."""
        if not self._closing.acquire(blocking=False):
            return
        if reason:
            _log.warning("the connection of replica %s was closed: %s", self.address, reason)
        self._acks.drop(self)
        with suppress(OSError):
            self._raw.shutdown(socket.SHUT_RDWR)
        self._wake.set()
        self._on_closed(self)

    @property
    def is_closed(self) -> bool:
        """Whether the connection was closed."""
        return self._closing.locked()

    @property
    def has_reported(self) -> bool:
        """Whether the peer has said where its log ends, as every replica does first."""
        return self.session.acked >= 0

    def lacks(self, end: int) -> bool:
        """Whether the replica lacks bytes before ``end``, or the confirmation of what it has."""
        return self.has_reported and (self._noted < end or self.session.owes_confirmation)

    @property
    def sent_per_second(self) -> int:
        """The bytes that were sent in the last full second."""
        return self._meter.per_second(self._clock.monotonic())

    def join(self) -> None:
        """Wait for the end of its threads."""
        self._reader.join()

    def _run(self) -> None:
        """Serve the replica until the connection is closed; then nobody uses the socket."""
        self._guarded(self._open)
        if not self.is_closed:
            self._sender.start()
            self._guarded(self._read)
            self._sender.join()
        self._raw.close()

    def _open(self) -> None:
        self._socket, self._first = self._admit(self._raw, self.address)
        _log.info("replica %s has connected", self.address)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except TimeoutError:
            self.close(f"it has sent or read nothing for {self._limits.silence_s:g} seconds")
        except (OSError, FiretrailError) as error:
            self.close(str(error))
        except Exception as error:
            if not self.is_closed:
                _log.exception("the connection of replica %s failed", self.address)
            self.close(str(error))

    # -- reports ------------------------------------------------------------------------------

    def _read(self) -> None:
        while not self.is_closed:
            data, self._first = self._first or self._socket.recv(REPORT_SIZE), b""
            if not data:
                if not self.is_closed and self.has_reported:
                    _log.info("replica %s has disconnected", self.address)
                self.close()
                return
            now = self._clock.monotonic()
            is_first = self.session.position < 0
            if self.session.receive(data, now):
                self._note()
            elif now - self.session.read_at > self._limits.silence_s:
                raise NotReachedError("it sends bytes, but no reports")
            if is_first:
                self._wake.set()

    def _note(self) -> None:
        acked = self.session.acked
        self._acks.note(self, acked, self.session.member)
        if self.is_closed:  # it was closed in between, and must not count any more
            self._acks.drop(self)
        self._noted = acked

    # -- transfers ----------------------------------------------------------------------------

    def _send(self) -> None:
        while not self.is_closed:
            now = self._clock.monotonic()
            allowance = self._bucket.allowance(now)
            transfer = self.session.next_transfer(now, BODY_MAX if allowance is None else allowance)
            if transfer is not None:
                self._send_one(transfer)
                continue
            is_idle = not self._wake.wait(LIMITED_S if allowance == 0 else IDLE_S)
            if is_idle and (confirmation := self._confirmation()):
                self._send_all([memoryview(confirmation)])

    def _confirmation(self) -> bytes:
        """Return the confirmation that is due; empty if none is.

        It is sent with the next transfer, or when there was none for IDLE_S: a frame of its own for
        each message would cost the master as much as the message.
        """
        confirmed = self.session.next_confirmation()
        return encode_confirmation(confirmed) if confirmed is not None else b""

    def _send_one(self, transfer: Transfer) -> None:
        header = self._confirmation() + encode_header(*transfer)
        if transfer.size == 0:
            self._send_all([memoryview(header)])
            return
        content = self._log.read(transfer.offset, transfer.size)
        if content is None:
            raise NotReachedError(
                f"retention has deleted the log at {transfer.offset}, which the replica needs"
            )
        with content:
            self._send_all([memoryview(header), content])

    def _send_all(self, parts: Sequence[memoryview]) -> None:
        """Send everything. A slow replica may take as long as it wants if it takes something."""
        size = sum(map(len, parts))
        self._bucket.take(size)
        self._meter.note(size, self._clock.monotonic())
        sent = self._socket.sendmsg(parts)
        for part in parts:
            at = min(sent, len(part))
            sent -= at
            while at < len(part):
                with part[at:] as rest:
                    at += self._socket.send(rest)
