"""TLS and authentication of replicas at the HA port of a master.

A replica of Firetrail begins with TLS if its master uses it, and authenticates itself with a
signature if its master has access control. A Java broker can do neither, so ``ha_java_peers`` must
allow it.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from firetrail.access.audit.audit_log import CERTIFICATE, SIGNATURE
from firetrail.access.guard import Guard
from firetrail.access.implied_permissions import CLUSTER, UPDATE
from firetrail.auth.caller import NO_PERMISSION, Caller
from firetrail.auth.policies import User
from firetrail.auth.resources import need
from firetrail.auth.signature import ACCESS_KEY
from firetrail.broker.broker_config import BrokerConfig
from firetrail.errors import ReplicationError, RequestError
from firetrail.format.values.integers import number_in
from firetrail.remoting.servers.addresses import source_of
from firetrail.replication.ha.ha_client import PURPOSE
from firetrail.replication.ha.ha_frames import REPORT, authentication_size, decode_authentication
from firetrail.replication.ha.ha_source import AdmittedConnection, HASocket
from firetrail.settings.settings_table import Live
from firetrail.system import System
from firetrail.tls.secure_socket import SecureSocket
from firetrail.tls.server_tls import ServerTls
from firetrail.tls.tls_config import TlsMode
from firetrail.tls.tls_session import HANDSHAKE

AGE_MAX_MS = 15 * 60_000
"""Maximum difference between the time of a signature and the clock of this broker."""
ADMISSION_S = 20.0
"""The time that a peer may take from its connection until it is admitted, in total. Without a
limit, a peer that sends single bytes would keep a connection and its thread."""
REQUEST = "HA connection"
"""Its name in the audit log."""


class HAAdmission:
    """Decides who is served, after the address was accepted.

    Args:
        config: The settings in force.
        guard: Knows the users; None if there is no access control.
        tls: The TLS of the broker's ports; None for plaintext.
        system: The clock, and the threads.
    """

    def __init__(
        self, config: Live[BrokerConfig], guard: Guard | None, tls: ServerTls | None, system: System
    ) -> None:
        self._live = config
        self._guard = guard
        self._tls = tls if tls is not None and tls.mode is not TlsMode.DISABLED else None
        self._system = system

    def __call__(self, connection: socket.socket, address: str) -> AdmittedConnection:
        """Return the connection, with TLS if the peer uses it.

        Args:
            connection: The socket.
            address: ``ip:port`` of the peer.

        Raises:
            OSError: The connection is lost, TLS fails, or the peer takes too long.
            FiretrailError: The peer may not be served.
        """
        is_late, is_over = self._system.threads.event(), self._system.threads.event()

        def end() -> None:
            if not is_over.wait(ADMISSION_S):
                is_late.set()
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

        self._system.threads.thread("firetrail-admission", end).start()
        try:
            return self._admitted(connection, address)
        except OSError:
            if is_late.is_set():
                raise TimeoutError(f"it was not admitted within {ADMISSION_S:g} s") from None
            raise
        finally:
            is_over.set()

    def _admitted(self, connection: socket.socket, address: str) -> AdmittedConnection:
        admitted, certificate_user = self._secured(connection)
        first = _exactly(admitted, REPORT.size)
        size = authentication_size(first)
        if size is not None:
            fields = decode_authentication(_exactly(admitted, size))
            self._check(admitted, address, fields, certificate_user)
            return AdmittedConnection(admitted)
        self._check(admitted, address, {}, certificate_user)
        return AdmittedConnection(admitted, first)

    def _secured(self, connection: socket.socket) -> tuple[HASocket, str | None]:
        """Return the connection after the TLS handshake, and the user in the peer's certificate."""
        if self._tls is None:
            return connection, None
        first = connection.recv(1, socket.MSG_PEEK)
        if not first:
            raise ConnectionResetError("it has closed the connection")
        if first[0] != HANDSHAKE and self._live.current.ha_java_peers:
            return connection, None
        drop = partial(connection.shutdown, socket.SHUT_RDWR)
        session = self._tls.begin(first[0], drop)
        if session is None:
            return connection, None
        try:
            secured = SecureSocket(connection, session)
            secured.open()
        finally:
            self._tls.finished(drop)
        return secured, self._tls.user_of(session)

    def _check(
        self,
        connection: HASocket,
        address: str,
        fields: Mapping[str, str],
        certificate_user: str | None,
    ) -> None:
        """Raise ReplicationError unless the peer is a user who may manage the cluster."""
        guard = self._guard
        if guard is None or (self._live.current.ha_java_peers and not fields):
            return
        source, caller = source_of(address), None
        encrypted = isinstance(connection, SecureSocket)
        try:
            user = self._user_of(guard, fields, certificate_user)
            caller = Caller(user, source, is_checked=guard.policy.authorization)
            caller.require(need(CLUSTER, self._live.current.cluster, UPDATE))
        except RequestError as error:
            if guard.audit is not None:
                claimed = fields.get(ACCESS_KEY) or certificate_user
                guard.audit.denied_call(
                    *(REQUEST, error.remark, address, caller),
                    code=error.code,
                    is_encrypted=encrypted,
                    claimed=claimed,
                )
            raise ReplicationError(
                f"{error.remark} Set innerClientAuthenticationCredentials of the replica to a user "
                "who may update the cluster; ha_java_peers=true lets Java brokers connect"
            ) from None
        if guard.audit is not None:
            method = SIGNATURE if fields else CERTIFICATE
            guard.audit.login(user.name, method, address, is_encrypted=encrypted)

    def _user_of(
        self, guard: Guard, fields: Mapping[str, str], certificate_user: str | None
    ) -> User:
        if not fields and certificate_user is not None:
            return guard.known(certificate_user)
        user = guard.authenticated(fields.get(ACCESS_KEY, ""), fields, b"")
        time_ms = number_in(fields.get("time"))
        if fields.get("purpose") != PURPOSE or time_ms is None:
            raise RequestError(NO_PERMISSION, "the signature is not one of a replica.")
        if abs(time_ms - self._system.clock.now_ms()) > AGE_MAX_MS:
            raise RequestError(NO_PERMISSION, "its time is too far from this broker's.")
        return user


def _exactly(connection: HASocket, size: int) -> bytes:
    """Return bytes of the peer; raise OSError if it sends fewer."""
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError("it has closed the connection")
        data += part
    return data
