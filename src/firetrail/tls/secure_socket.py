"""A socket with TLS that one thread may read while another one writes.

The sockets of the standard library must not be used by two threads at once. Here a lock covers the
session, which works in memory, and no thread waits for the network while holding it.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Sequence

from firetrail.tls.tls_session import TlsSession

_READ_SIZE = 256 << 10


class SecureSocket:
    """The part of a socket's interface that replication uses, over TLS.

    Args:
        connection: The connected socket. Its timeouts apply to every operation.
        session: The session; it is not open yet.
    """

    def __init__(self, connection: socket.socket, session: TlsSession) -> None:
        self._socket = connection
        self._session = session
        self._using = threading.Lock()  # over the session and _unsent
        self._sending = threading.Lock()  # over writes, which must keep their order
        self._unsent = b""
        self._plain = bytearray()  # received, and not read yet; for the thread that reads

    def open(self) -> None:
        """Do the handshake.

        Raises:
            ssl.SSLError: The peer violates the protocol, or its certificate is not accepted.
            OSError: The connection is lost, or the peer is silent.
        """
        data = b""
        while True:
            self._decrypt(data)
            if self._session.is_open:
                return
            data = self._socket.recv(_READ_SIZE)
            if not data:
                raise ConnectionResetError("the connection was lost during the TLS handshake")

    # -- as a socket --------------------------------------------------------------------------

    def recv(self, size: int) -> bytes:
        """Return at most ``size`` bytes; nothing at the end."""
        while not self._plain:
            if not self._receive() and not self._plain:
                return b""
        return self._take(size)

    def _take(self, size: int) -> bytes:
        data = bytes(self._plain[:size])
        del self._plain[:size]
        return data

    def recv_into(self, buffer: memoryview) -> int:
        """Read the bytes that have arrived and fit, or wait for some. Return the size."""
        while not self._plain:
            if not self._receive() and not self._plain:
                return 0
        while len(self._plain) < len(buffer) and select.select([self._socket], [], [], 0)[0]:
            if not self._receive():
                break
        data = self._take(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def send(self, data: bytes | memoryview) -> int:
        """Send everything, and return its size."""
        with self._using:
            self._session.encrypt(data)
            self._unsent += self._session.take_output()
        self._flush()
        return len(data)

    def sendall(self, data: bytes | memoryview) -> None:
        """Send everything."""
        self.send(data)

    def sendmsg(self, parts: Sequence[bytes | memoryview]) -> int:
        """Send all parts, and return their size."""
        return self.send(b"".join(parts))

    def settimeout(self, seconds: float | None) -> None:
        """Set the time limit of each operation."""
        self._socket.settimeout(seconds)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Set an option of the socket."""
        self._socket.setsockopt(level, option, value)

    def shutdown(self, how: int) -> None:
        """End the connection, for a thread that waits on it."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def __enter__(self) -> SecureSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- bytes of TLS -------------------------------------------------------------------------

    def _receive(self) -> bool:
        """Read from the network, and decrypt; return whether there may be more."""
        data = self._socket.recv(_READ_SIZE)
        if data:
            self._decrypt(data)
        return bool(data) and not self._session.is_ended

    def _decrypt(self, data: bytes) -> None:
        try:
            with self._using:
                try:
                    self._plain += self._session.decrypt(data)
                finally:
                    self._unsent += self._session.take_output()
        finally:
            if self._unsent:
                self._flush()

    def _flush(self) -> None:
        with self._sending:
            with self._using:
                data, self._unsent = memoryview(self._unsent), b""
            while data:
                data = data[self._socket.send(data) :]
