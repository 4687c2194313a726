"""A certificate authority for tests."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PEM = serialization.Encoding.PEM


class Issued(NamedTuple):
    """A certificate and its key, in files."""

    certificate: str
    key: str


class Authority:
    """Issues certificates into a folder.

    Attributes:
        trust: The file with the certificate of the authority.
    """

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        own = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        path = folder / f"{name}.pem"
        path.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(PEM))
        self.trust = str(path)

    def issue(
        self,
        name: str = "localhost",
        *,
        file: str = "",
        uri: str = "",
        is_local: bool = True,
        is_expired: bool = False,
        password: str = "",
    ) -> Issued:
        """Issue a certificate for a name, and for localhost and 127.0.0.1 unless told otherwise."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        names: list[x509.GeneralName] = [x509.DNSName("localhost" if is_local else name)]
        if is_local:
            names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        if uri:
            names.append(x509.UniformResourceIdentifier(uri))
        builder = self._builder(subject, key.public_key(), is_expired=is_expired).add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
        file = file or name
        certificate, private = self._folder / f"{file}.pem", self._folder / f"{file}.key"
        certificate.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(PEM))
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password:
            encryption = serialization.BestAvailableEncryption(password.encode())
        pkcs8 = serialization.PrivateFormat.PKCS8
        private.touch(0o600)
        private.write_bytes(key.private_bytes(PEM, pkcs8, encryption))
        return Issued(str(certificate), str(private))

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, is_expired: bool = False
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(now + timedelta(days=-1 if is_expired else 60))
        )
