"""A certificate that nobody has signed, for the gRPC port of a broker without a certificate."""

from __future__ import annotations

import secrets
import ssl
import tempfile
from datetime import UTC, datetime, timedelta

from firetrail.system import SYSTEM
from firetrail.tls.certificates import server_context

_VALID_DAYS = 3650
_HOST = "firetrail"


def self_signed_context() -> ssl.SSLContext:
    """Return a context with a new certificate, which encrypts and proves nothing."""
    password = secrets.token_hex(16)
    context = server_context()
    # OpenSSL loads keys from files only. The file is gone at once, and the key in it is encrypted.
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(_self_signed(password))
        file.flush()
        context.load_cert_chain(file.name, password=password)
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
