"""TLS in memory, and certificates."""

import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from firetrail.errors import ConfigError
from firetrail.proxy.transport import tls
from firetrail.proxy.transport.tls import (
    TlsSession,
    chosen_context,
    context_of_files,
    self_signed_context,
)


class Client:
    """The other side of a session."""

    def __init__(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing)

    def greet(self, session: TlsSession) -> None:
        for _ in range(5):
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                pass
            else:
                session.decrypt(self.outgoing.read())
                return
            session.decrypt(self.outgoing.read())
            self.incoming.write(session.take_output())
        raise AssertionError("the handshake did not end")


@pytest.fixture(scope="module")
def context() -> ssl.SSLContext:
    return self_signed_context()


def test_a_session_transports_data(context: ssl.SSLContext) -> None:
    client, session = Client(), TlsSession(context)
    assert not session.is_open
    client.greet(session)
    assert session.is_open
    assert client.tls.selected_alpn_protocol() == "h2"
    text = bytes(range(256)) * 1000
    client.tls.write(text)
    sent = client.outgoing.read()
    found = b"".join(session.decrypt(sent[at : at + 1000]) for at in range(0, len(sent), 1000))
    assert found == text
    session.encrypt(text)
    client.incoming.write(session.take_output())
    found = b""
    while len(found) < len(text):
        found += client.tls.read(1 << 20)
    assert found == text


def test_other_bytes_end_a_session(context: ssl.SSLContext) -> None:
    with pytest.raises(ssl.SSLError):
        TlsSession(context).decrypt(b"\x16\x03\x01\x00\x05hello")


def test_the_end_of_the_client_is_no_data(context: ssl.SSLContext) -> None:
    client, session = Client(), TlsSession(context)
    client.greet(session)
    with pytest.raises(ssl.SSLError):
        client.tls.unwrap()  # sends the end, and waits for that of the server
    assert session.decrypt(client.outgoing.read()) == b""


def written(folder: Path, password: str | None) -> tuple[Path, Path]:
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    pem = tls._self_signed("secret")
    at = pem.index(b"-----BEGIN ENCRYPTED")
    certificate.write_bytes(pem[:at])
    private = serialization.load_pem_private_key(pem[at:], b"secret")
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        encryption = serialization.BestAvailableEncryption(password.encode())
    pkcs8 = serialization.PrivateFormat.PKCS8
    key.write_bytes(private.private_bytes(serialization.Encoding.PEM, pkcs8, encryption))
    return certificate, key


def test_a_certificate_of_files(tmp_path: Path) -> None:
    certificate, key = written(tmp_path, None)
    session = TlsSession(context_of_files(str(certificate), str(key)))
    client = Client()
    client.greet(session)
    found = client.tls.getpeercert(binary_form=True)
    assert found is not None
    expected = x509.load_pem_x509_certificate(certificate.read_bytes())
    assert x509.load_der_x509_certificate(found) == expected


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    certificate, key = (str(path) for path in written(tmp_path, None))
    other, missing, text = tmp_path / "other", tmp_path / "missing.pem", tmp_path / "text.pem"
    other.mkdir()
    text.write_text("no certificate")
    _, other_key = written(other, None)
    cases = [
        ("certificate", missing, key, "the file does not exist; check the path"),
        ("key", certificate, missing, "the file does not exist; check the path"),
        (
            "certificate",
            tmp_path,
            key,
            r"the file cannot be read \(Is a directory\); check its perm",
        ),
        ("certificate", text, key, "the file has no certificate in PEM format"),
        ("key", certificate, text, "the file has no private key in PEM format"),
        (
            "key",
            certificate,
            other_key,
            f"this is not the key of the certificate in {certificate};",
        ),
        ("key", certificate, "", "give both files: --tls-cert and --tls-key, or tlsCertPath and"),
        ("certificate", "", key, "give both files"),
    ]
    for name, first, second, reason in cases:
        with pytest.raises(ConfigError, match=f"^TLS {name} = .*: {reason}") as caught:
            chosen_context(str(first), str(second))
        assert str(caught.value.value) == str(first if name == "certificate" else second)


def test_a_key_with_a_password_and_a_broken_certificate_are_refused(tmp_path: Path) -> None:
    certificate, key = written(tmp_path, "secret")
    with pytest.raises(ConfigError, match=r"the key has a password; .*openssl pkey -in .*key\.pem"):
        context_of_files(str(certificate), str(key))
    certificate, key = written(tmp_path, None)
    certificate.write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")
    with pytest.raises(ConfigError, match=r"cannot use it with the key in .*; create both again"):
        context_of_files(str(certificate), str(key))


def test_no_files_choose_no_certificate() -> None:
    assert chosen_context("", "") is None
