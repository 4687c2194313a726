"""A TLS 1.3 client that makes the server change its keys, again and again."""

import asyncio
import hmac
import ssl
from pathlib import Path
from typing import cast

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from tests.tls.peers import Client

from firetrail.tls.tls_session import TlsSession

HASH = "sha384"
KEY_UPDATE = bytes([24, 0, 0, 1, 1])
"""The message KeyUpdate, which asks the server for one in return (RFC 8446, section 4.6.3)."""
HANDSHAKE = b"\x16"


def logging_context(keys: Path) -> ssl.SSLContext:
    """Return the context of a client of TLS 1.3 that writes its secrets to a file.

    OpenSSL prefers the cipher suite TLS_AES_256_GCM_SHA384.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.keylog_filename = str(keys)
    return context


class KeyUpdates:
    """Records with KeyUpdate, for a connection on which the client has sent no data yet.

    Python's module for TLS cannot send them.

    Args:
        keys: The file with the secrets of the connection.
    """

    def __init__(self, keys: Path) -> None:
        (line,) = (
            each for each in keys.read_text().splitlines() if each.startswith("CLIENT_TRAFFIC")
        )
        self._secret = bytes.fromhex(line.split()[2])

    def records(self, count: int) -> bytes:
        return b"".join(self._next() for _ in range(count))

    def _next(self) -> bytes:
        plain = KEY_UPDATE + HANDSHAKE
        head = b"\x17\x03\x03" + (len(plain) + 16).to_bytes(2, "big")
        key, nonce = self._derived(b"key", 32), self._derived(b"iv", 12)
        self._secret = self._derived(b"traffic upd", 48)
        return head + AESGCM(key).encrypt(nonce, plain, head)

    def _derived(self, label: bytes, size: int) -> bytes:
        """Return HKDF-Expand-Label of the secret."""
        name = b"tls13 " + label
        info = size.to_bytes(2, "big") + bytes([len(name)]) + name + b"\0\1"
        return hmac.digest(self._secret, info, HASH)[:size]


class DeafTransport:
    """A transport whose peer speaks TLS 1.3, and reads nothing after the handshake.

    Args:
        protocol: The connection of the server.
    """

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        self._high = 0
        self.written = b""
        self.is_paused = False

    def flood(self, keys: Path) -> None:
        """Finish the handshake, and send key updates until the server does not read any more.

        Args:
            keys: The file for the secrets of the connection.
        """
        self._protocol.connection_made(cast(asyncio.BaseTransport, self))
        Client(logging_context(keys)).greet(cast(TlsSession, self))
        self.written = b""
        updates = KeyUpdates(keys)
        for _ in range(1000):
            if self.is_paused:
                return
            self._protocol.data_received(updates.records(10))
        raise AssertionError(f"{len(self.written)} bytes wait, and the server still reads")

    # -- what the client of the handshake uses, in place of a session --------------------------

    def decrypt(self, data: bytes) -> None:
        if data:
            self._protocol.data_received(data)

    def take_output(self) -> bytes:
        written, self.written = self.written, b""
        return written

    # -- what connections use -----------------------------------------------------------------

    def set_write_buffer_limits(self, high: int) -> None:
        self._high = high

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("192.0.2.7", 4711)

    def write(self, data: bytes) -> None:
        was_full = len(self.written) > self._high
        self.written += data
        if len(self.written) > self._high and not was_full:
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return False
