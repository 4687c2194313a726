"""The connection of a replica to the HA port of its master: a socket around a session."""

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from firetrail.auth.signature import Signer
from firetrail.errors import NotReachedError
from firetrail.format.names import OFFSET_MAX
from firetrail.remoting.connections.access import Access
from firetrail.remoting.connections.remoting_client import split_address
from firetrail.replication.ha.ha_frames import NO_IDENTITY, encode_authentication
from firetrail.replication.ha.ha_source import HASocket
from firetrail.replication.ha.replica_session import Introduction, ReplicaSession
from firetrail.store.log.replica_acks import NO_MEMBER
from firetrail.store.log_copy import LogCopy
from firetrail.system import Clock
from firetrail.text import os_reason
from firetrail.tls.secure_socket import SecureSocket
from firetrail.tls.tls_session import reason_of

CONNECT_S = 3.0
"""The time that an attempt to connect may take."""
RECEIVE_SIZE = 1 << 20
"""Maximum number of bytes of one read from the socket."""
REPORT_MAX = 16 << 20
"""Maximum number of bytes that a replica receives between two reports."""
PURPOSE = "firetrail-ha"
"""The purpose of the signature of a replica."""
POLL_S = 0.5
"""The time that a read waits for the master before the replica checks whether a report is due."""


@dataclass(slots=True)
class HAClientStatus:
    """The state of a connection, for administrators; the counters of one that ended stay."""

    master: str
    """``ip:port`` of the master's HA port."""
    connected: bool = False
    received: int = 0
    """Bytes of the log that were received over this connection."""
    master_offset: int = -1
    """The end of the master's log as far as the connection has seen it; -1 if unknown."""
    read_at_ms: int = 0
    """The time at which the master last sent something, in milliseconds since 1970; 0 if never."""
    wrote_at_ms: int = 0
    """The time at which the replica last reported, in milliseconds since 1970; 0 if never."""
    opened_at_ms: int = 0
    """The time at which the connection was opened, in milliseconds since 1970."""

    @property
    def heard_at_ms(self) -> int:
        """The time at which the master last sent something, or else the connection was opened."""
        return self.read_at_ms or self.opened_at_ms

    def silent_s(self, now_ms: int) -> float:
        """Return for how many seconds the master has sent nothing."""
        return (now_ms - self.heard_at_ms) / 1000


class HAClient:
    """Follows a master over one connection, in the classic protocol.

    While there is more data than one read takes, the replica lags. It then reports, and with
    SYNC_FLUSH syncs, only once per REPORT_MAX bytes.

    :meth:`connect` and :meth:`follow` block their thread; :meth:`stop` and :meth:`close` may be
    called from any other one.

    Attributes:
        status: The state of the connection.
        member: The number of the replica in its group; 0 if it is in none.
        identity: The number of the replica's store, by which its master counts it once.
        is_confirmed: Whether the master is Firetrail, which confirms the part of the log that the
            replica may show.
        is_leaving: Whether the replica announces its stop to the master.
        access: The credentials and the TLS to use; None for neither.
    """

    def __init__(
        self,
        log: LogCopy,
        address: str,
        begin: int,
        clock: Clock,
        *,
        heartbeat_s: float = 5.0,
        silence_s: float = 20.0,
    ) -> None:
        """Prepare a connection.

        Args:
            log: The log of the replica.
            address: ``host:port`` of the master's HA port.
            begin: Where the log continues; see :class:`ReplicaSession`.
            clock: The time.
            heartbeat_s: The most seconds between two reports.
            silence_s: How long the master may send nothing before the connection is given up.
        """
        self._log = log
        self._address = address
        self._begin = begin
        self._clock = clock
        self._heartbeat_s = heartbeat_s
        self._silence_s = silence_s
        self._session: ReplicaSession | None = None
        self._buffer = memoryview(bytearray(RECEIVE_SIZE))
        self._socket: HASocket | None = None
        self._stopping = False
        self._poll_s = min(POLL_S, heartbeat_s / 2)
        self._has_more = False  # whether the last read has filled the buffer
        self._reported_to = 0  # bytes received before the last report
        self.status = HAClientStatus(address)
        self.member = NO_MEMBER
        self.identity = NO_IDENTITY
        self.is_confirmed = True
        self.is_leaving = False
        self.access: Access | None = None

    def connect(self) -> None:
        """Open the connection, with the handshake if the protocol has one; the log is not sent yet.

        Raises:
            NotReachedError: The master cannot be reached, or does not answer the handshake.
            ProtocolError: The peer is not a master of this protocol.
            ReplicationError: The master cannot serve this replica.
        """
        plain = self._connect()
        self.status.opened_at_ms = self._clock.now_ms()
        self._socket = plain  # so that a stop ends the handshake of TLS, too
        connection = self._socket = self._secured(plain)
        if self._stopping:  # checked after the assignment: close() may have run meanwhile
            connection.close()
        try:
            self._session = session = self._open_session(self._clock.monotonic())
            self._exchange(connection, session, lambda: session.is_ready)
        except BaseException:
            connection.close()
            raise

    def follow(self) -> None:
        """Append the log that the master sends until :meth:`stop` is called; connect first if
        necessary.

        Raises:
            NotReachedError: The master cannot be reached, has closed the connection or is silent.
            ProtocolError: The peer is not a master.
            DivergedError: The master's log does not continue the replica's.
            ReplicationError: The master sent damaged bytes.
            StoreError: The replica's store does not accept the records.
        """
        if self._socket is None:
            self.connect()
        assert self._socket is not None
        assert self._session is not None
        with self._socket as connection:
            self.status.connected = True
            try:
                self._exchange(connection, self._session, lambda: False)
            finally:
                self.status.connected = False

    def stop(self) -> None:
        """Make :meth:`follow` return."""
        self._stopping = True
        connection = self._socket
        if connection is not None:
            with suppress(OSError):  # it was lost already
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close a connection that is not followed."""
        self._stopping = True
        if self._socket is not None:
            self._socket.close()

    def _open_session(self, now: float) -> ReplicaSession:
        log = self._log
        introduction: Introduction | None = None
        if self.is_confirmed:
            introduction = Introduction(log.confirm, self.member, self.identity)
        else:
            log.confirm(OFFSET_MAX)  # a Java master shows everything to its own consumers
        return ReplicaSession(
            log, log.durable_offset, self._begin, now, self._heartbeat_s, introduction
        )

    def _secured(self, connection: socket.socket) -> HASocket:
        """Return the connection with TLS, after this side has authenticated itself."""
        access = self.access or Access()
        secured: HASocket = connection
        try:
            if access.tls is not None:
                session = access.tls.session(split_address(self._address)[0])
                secured = SecureSocket(connection, session)
                secured.open()
            if access.credentials is not None:
                fields = {"purpose": PURPOSE, "time": str(self._clock.now_ms())}
                signed = Signer(access.credentials).fields(fields)
                secured.sendall(encode_authentication(signed))
        except OSError as error:
            connection.close()
            reason = reason_of(error) if isinstance(error, ssl.SSLError) else os_reason(error)
            raise NotReachedError(
                f"the HA port {self._address} of the master cannot be used: {reason}; does the "
                "master use TLS? A Java broker cannot: set ha_java_peers=true then"
            ) from error
        connection.settimeout(self._poll_s)
        return secured

    def _connect(self) -> socket.socket:
        host, port = split_address(self._address)
        try:
            connection = socket.create_connection((host, port), CONNECT_S)
        except OSError as error:
            raise NotReachedError(
                f"the HA port {self._address} of the master cannot be reached: {os_reason(error)}"
            ) from error
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _exchange(
        self, connection: HASocket, session: ReplicaSession, is_done: Callable[[], bool]
    ) -> None:
        """Pass bytes between the master and the session until it is done, or :meth:`stop`."""
        try:
            while not (self._stopping or is_done()):
                self._pass_bytes(connection, session)
        except OSError as error:
            if not self._stopping:
                raise NotReachedError(f"master {self._address}: {os_reason(error)}") from error

    def _pass_bytes(self, connection: HASocket, session: ReplicaSession) -> None:
        clock, status = self._clock, self.status
        hurries = self._has_more and session.received - self._reported_to < REPORT_MAX
        if not hurries:
            self._report(connection, session)
        try:
            size = self._receive(connection, waits=not hurries)
        except (TimeoutError, BlockingIOError):
            self._has_more = False
            silence_s = clock.monotonic() - session.read_at
            if silence_s > self._silence_s:
                raise ConnectionError(f"it has sent nothing for {silence_s:.0f} seconds") from None
            return
        if size == 0:
            raise ConnectionError("it has closed the HA connection")
        self._has_more = size == len(self._buffer)
        session.receive(self._buffer[:size], clock.monotonic())
        status.read_at_ms = clock.now_ms()
        status.received, status.master_offset = session.received, session.master_offset

    def _report(self, connection: HASocket, session: ReplicaSession) -> None:
        """Send the report that is due; with SYNC_FLUSH, after a sync of everything received."""
        report = session.report(self._clock.monotonic())
        self._reported_to = session.received
        if report is not None:
            connection.sendall(report)
            self.status.wrote_at_ms = self._clock.now_ms()
        if self.is_leaving and (farewell := session.farewell()):
            connection.sendall(farewell)

    def _receive(self, connection: HASocket, *, waits: bool) -> int:
        """Read into the buffer; if nothing has arrived, wait for it or raise an error."""
        if waits:
            return connection.recv_into(self._buffer)
        connection.settimeout(0)
        try:
            return connection.recv_into(self._buffer)
        finally:
            connection.settimeout(self._poll_s)
