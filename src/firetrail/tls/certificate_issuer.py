"""Certificates that Firetrail issues itself. They need the package ``cryptography``."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

from firetrail.system import SYSTEM

if TYPE_CHECKING:
    from cryptography.x509 import Certificate, GeneralName, KeyUsage

AUTHORITY_DAYS = 3650
"""The time for which the certificate of an authority is valid."""
SERVER_DAYS = 397
"""The time for which the certificate of a server is valid: the most that browsers accept."""


class IssuedCertificate(NamedTuple):
    """A certificate and its private key, in PEM format."""

    certificate: bytes
    key: bytes


def issue(
    name: str,
    hosts: Iterable[str],
    days: int,
    issuer: IssuedCertificate | None = None,
    *,
    is_authority: bool = False,
    password: str = "",
) -> IssuedCertificate:
    """Issue a certificate with an elliptic key (P-256).

    Args:
        name: The common name of its holder.
        hosts: The host names and addresses that it is for.
        days: The time for which it is valid.
        issuer: The authority that signs it. Default: its holder.
        is_authority: Whether its holder may issue certificates. Default: False.
        password: The password of its key. Default: the key is not encrypted.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    signer_name, signer = subject, key
    if issuer is not None:
        signer_name = x509.load_pem_x509_certificate(issuer.certificate).subject
        loaded = serialization.load_pem_private_key(issuer.key, None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        signer = loaded
    now = _now()
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(
            x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None),
            critical=True,
        )
        .add_extension(_key_usage(is_authority), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if names := [_general_name(host) for host in hosts]:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    encryption = (
        serialization.BestAvailableEncryption(password.encode())
        if password
        else serialization.NoEncryption()
    )
    encoding = serialization.Encoding.PEM
    return IssuedCertificate(
        builder.sign(signer, hashes.SHA256()).public_bytes(encoding),
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, encryption),
    )


def is_usable(certificate: bytes, hosts: Iterable[str], days: int) -> bool:
    """Return whether a certificate is for some hosts, and valid for some days more.

    Args:
        certificate: The certificate in PEM format.
        hosts: The host names and addresses.
        days: The days.
    """
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificate(certificate)
    except ValueError:
        return False
    names = {str(name) for name in _names(found)}
    is_for_all = {str(_general_name(host)) for host in hosts} <= names
    return is_for_all and found.not_valid_after_utc - timedelta(days=days) > _now()


def _names(certificate: Certificate) -> list[GeneralName]:
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return list(found.value)


def _general_name(host: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host.partition("%")[0]))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(is_authority: bool) -> KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _now() -> datetime:
    return datetime.fromtimestamp(SYSTEM.clock.now_ms() / 1000, UTC)
