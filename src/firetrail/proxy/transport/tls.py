"""TLS in memory: certificates, and sessions that work with every event loop.

A session reads and writes bytes, not sockets. So the first bytes of a connection can be looked at
before it is decided whether they belong to TLS, and one port serves both.
"""

from __future__ import annotations

import secrets
import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from firetrail.errors import ConfigError
from firetrail.system import SYSTEM

HANDSHAKE = 0x16
"""The first byte of every TLS client. A client that speaks HTTP/2 at once starts with a letter."""
_READ_BYTES = 256 << 10
_VALID_DAYS = 3650
_HOST = "firetrail"
_CERTIFICATE = "TLS certificate"
_KEY = "TLS key"


def chosen_context(certificate: str, key: str) -> ssl.SSLContext | None:
    """Return a context with the certificate that the user has chosen; None if there is none.

    Args:
        certificate: The path of the certificate; empty for none.
        key: The path of its private key; empty for none.

    Raises:
        ConfigError: Only one of them is given, or a file cannot be used.
    """
    return context_of_files(certificate, key) if certificate or key else None


def context_of_files(certificate: str, key: str) -> ssl.SSLContext:
    """Return a context with a certificate chain and its private key.

    Args:
        certificate: The path of a PEM file with the certificate, followed by those of its issuers.
        key: The path of a PEM file with the private key, without a password.

    Raises:
        ConfigError: A file is missing or cannot be used.
    """
    for name, given in ((_CERTIFICATE, certificate), (_KEY, key)):
        if not given:
            raise ConfigError(
                name,
                given,
                "give both files: --tls-cert and --tls-key, or tlsCertPath and tlsKeyPath",
            )
    if b"-----BEGIN CERTIFICATE" not in _content(_CERTIFICATE, certificate):
        raise ConfigError(_CERTIFICATE, certificate, "the file has no certificate in PEM format")
    private = _content(_KEY, key)
    if b"PRIVATE KEY-----" not in private:
        raise ConfigError(_KEY, key, "the file has no private key in PEM format")
    if b"ENCRYPTED" in private:
        remedy = f"remove it with 'openssl pkey -in {key} -out FILE'"
        raise ConfigError(_KEY, key, f"the key has a password; {remedy}")
    context = _new_context()
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            reason = f"this is not the key of the certificate in {certificate}"
            raise ConfigError(_KEY, key, f"{reason}; give the files that belong together") from None
        reason = f"OpenSSL cannot use it with the key in {key} ({error.reason})"
        raise ConfigError(_CERTIFICATE, certificate, f"{reason}; create both again") from None
    return context


def _content(name: str, path: str) -> bytes:
    try:
        return SYSTEM.files.read(Path(path))
    except FileNotFoundError:
        raise ConfigError(name, path, "the file does not exist; check the path") from None
    except OSError as error:
        reason = f"the file cannot be read ({error.strerror})"
        raise ConfigError(name, path, f"{reason}; check its permissions") from None


def self_signed_context() -> ssl.SSLContext:
    """Return a context with a new certificate, which encrypts and proves nothing."""
    password = secrets.token_hex(16)
    context = _new_context()
    # OpenSSL loads keys from files only. The file is gone at once, and the key in it is encrypted.
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(_self_signed(password))
        file.flush()
        context.load_cert_chain(file.name, password=password)
    return context


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["h2"])
    return context


def _self_signed(password: str) -> bytes:
    """Return a certificate and its encrypted key in PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _HOST)])
    now = datetime.fromtimestamp(SYSTEM.clock.now_ms() / 1000, UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=_VALID_DAYS))
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.DNSName(_HOST)]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password.encode()),
    )
    return certificate.public_bytes(serialization.Encoding.PEM) + secret


class TlsSession:
    """The TLS of one connection, as seen by the server."""

    __slots__ = ("_incoming", "_is_open", "_outgoing", "_tls")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_open = False

    def decrypt(self, data: bytes) -> bytes:
        """Return the data of the client; raise SSLError if it violates the protocol.

        There may be something to write afterwards, also after an error.
        """
        self._incoming.write(data)
        parts = []
        try:
            if not self._is_open:
                self._tls.do_handshake()
                self._is_open = True
            while part := self._tls.read(_READ_BYTES):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        return b"".join(parts)

    def encrypt(self, data: bytes) -> None:
        """Add data for the client to what is to be written."""
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]

    def take_output(self) -> bytes:
        """Return the bytes to write."""
        return self._outgoing.read()

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done."""
        return self._is_open
