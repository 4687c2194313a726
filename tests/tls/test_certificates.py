"""Certificates in files."""

import ssl
from pathlib import Path

import pytest
from cryptography import x509
from tests.tls.authority import Authority
from tests.tls.peers import Client

from firetrail.errors import ConfigError
from firetrail.tls.certificates import load_certificate, load_trust, server_context
from firetrail.tls.tls_session import TlsSession


def load(certificate: object, key: object, password: str = "") -> ssl.SSLContext:
    context = server_context()
    load_certificate(context, str(certificate), str(key), password)
    return context


def test_a_certificate_of_files(authority: Authority) -> None:
    certificate, key = authority.issue()
    session = TlsSession(load(certificate, key))
    client = Client()
    client.greet(session)
    found = client.tls.getpeercert(binary_form=True)
    assert found is not None
    expected = x509.load_pem_x509_certificate(Path(certificate).read_bytes())
    assert x509.load_der_x509_certificate(found) == expected


def test_files_that_cannot_be_used_are_named(tmp_path: Path, authority: Authority) -> None:
    certificate, key = authority.issue()
    missing, text = tmp_path / "missing.pem", tmp_path / "text.pem"
    text.write_text("no certificate")
    _, other_key = authority.issue("other")
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
            load(first, second)
        assert str(caught.value.value) == str(first if name == "certificate" else second)


def test_a_key_may_have_a_password(authority: Authority) -> None:
    certificate, key = authority.issue("protected", password="canary")
    with pytest.raises(ConfigError, match=r"the key has a password; .*openssl pkey -in .*\.key"):
        load(certificate, key)
    with pytest.raises(ConfigError, match="the password is wrong, or OpenSSL") as caught:
        load(certificate, key, "canary2")
    assert "canary" not in str(caught.value)
    load(certificate, key, "canary")


def test_a_broken_certificate_is_refused(tmp_path: Path, authority: Authority) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")
    with pytest.raises(ConfigError, match=r"cannot use it with the key in .*; create both again"):
        load(broken, authority.issue().key)
    with pytest.raises(ConfigError, match=r"TLS trust file = .*OpenSSL cannot read it"):
        load_trust(server_context(), str(broken))
    broken.write_text("nothing")
    with pytest.raises(ConfigError, match="has no certificate in PEM format"):
        load_trust(server_context(), str(broken))
