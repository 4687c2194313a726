"""TLS in memory: a session that works with every event loop, and with sockets in threads.

A session reads and writes bytes, not sockets. So the first bytes of a connection can be looked at
before it is decided whether they belong to TLS, and one port serves both.
"""

import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

HANDSHAKE = 0x16
"""The first byte of every TLS client. A frame of RocketMQ starts with 0 or 1, and a client that
speaks HTTP/2 at once starts with a letter."""
_RECORD_BYTES = 16 << 10
"""A read returns at most one record of TLS, which is not larger. The buffers of OpenSSL never
shrink, so no more than this is written to them at once."""


class TlsSession:
    """The TLS of one connection.

    Args:
        context: The certificates and rules of this side.
        server_name: The name of the server if this side is the client, to check its certificate.
            Default: None, for the side of the server.
    """

    __slots__ = ("_incoming", "_is_open", "_outgoing", "_output", "_tls", "is_ended")

    def __init__(self, context: ssl.SSLContext, server_name: str | None = None) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_name is None,
            server_hostname=server_name,
        )
        self._output: list[bytes] = []
        self._is_open = False
        self.is_ended = False
        """Whether the peer has said that nothing follows."""

    def decrypt(self, data: bytes | memoryview) -> bytes:
        """Return the data of the peer; raise SSLError if it violates the protocol.

        A client calls this without data first. There may be something to write afterwards, also
        after an error.
        """
        parts: list[bytes] = []
        view = memoryview(data)
        try:
            self._receive(view[:_RECORD_BYTES], parts)
            for at in range(_RECORD_BYTES, len(view), _RECORD_BYTES):
                self._receive(view[at : at + _RECORD_BYTES], parts)
        except ssl.SSLError:
            self._is_open = False  # OpenSSL encrypts nothing after an error
            raise
        return b"".join(parts)

    def _receive(self, data: memoryview, parts: list[bytes]) -> None:
        """Decrypt the complete records in some bytes, and append their content to ``parts``."""
        self._incoming.write(data)
        try:
            if not self._is_open:
                self._tls.do_handshake()
                self._is_open = True
            while part := self._tls.read(_RECORD_BYTES):
                parts.append(part)
            self.is_ended = True
        except ssl.SSLWantReadError:
            pass

    def encrypt(self, data: bytes | memoryview) -> None:
        """Encrypt data for the peer, to be written."""
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view[:_RECORD_BYTES]) :]
            self._output.append(self._outgoing.read())

    def end(self) -> None:
        """End the session; the last bytes are to be written. This does not wait for the end of the
        peer."""
        if self._is_open:
            with suppress(ssl.SSLError):
                self._tls.unwrap()

    def take_output(self) -> bytes:
        """Return the bytes to write."""
        output, self._output = self._output, []
        if rest := self._outgoing.read():
            output.append(rest)
        return b"".join(output)

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done, and nothing has failed since."""
        return self._is_open

    @property
    def peer_certificate(self) -> Mapping[str, Any]:
        """The verified certificate of the peer, as :meth:`ssl.SSLSocket.getpeercert` returns it.

        It is empty if the peer has shown none.
        """
        return self._tls.getpeercert() or {}


def reason_of(error: ssl.SSLError) -> str:
    """Return OpenSSL's text about an error, without its numbers and source lines."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    return (error.reason or str(error)).replace("_", " ").lower()
