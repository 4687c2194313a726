"""Certificates and keys in files, and the contexts of OpenSSL that use them."""

import ssl
from pathlib import Path

from firetrail.errors import ConfigError
from firetrail.system import SYSTEM

CERTIFICATE = "TLS certificate"
KEY = "TLS key"
TRUST = "TLS trust file"
_PEM = b"-----BEGIN CERTIFICATE"


def server_context() -> ssl.SSLContext:
    """Return the context of a server without a certificate: TLS 1.2 or later."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["h2"])  # for gRPC; clients of RocketMQ ask for no protocol
    return context


def load_certificate(
    context: ssl.SSLContext,
    certificate: str,
    key: str,
    password: str = "",
    *,
    remedy: str = "give both files: --tls-cert and --tls-key, or tlsCertPath and tlsKeyPath",
) -> None:
    """Add a certificate chain and its private key to a context.

    Args:
        context: The context.
        certificate: The path of a PEM file with the certificate, followed by those of its issuers.
        key: The path of a PEM file with the private key.
        password: The password of the key. Default: empty, for an unencrypted key.
        remedy: The remedy if one of the files is not given.

    Raises:
        ConfigError: A file is not given, is missing or cannot be used.
    """
    for name, given in ((CERTIFICATE, certificate), (KEY, key)):
        if not given:
            raise ConfigError(name, given, remedy)
    if _PEM not in content(CERTIFICATE, certificate):
        raise ConfigError(CERTIFICATE, certificate, "the file has no certificate in PEM format")
    private = content(KEY, key)
    if b"PRIVATE KEY-----" not in private:
        raise ConfigError(KEY, key, "the file has no private key in PEM format")
    convert = f"'openssl pkey -in {key} -out FILE'"
    if b"ENCRYPTED" in private and not password:
        remedy = f"remove it with {convert}, or set tls.server.keyPassword in tls.properties"
        raise ConfigError(KEY, key, f"the key has a password; {remedy}")
    try:
        # A password that is not needed is not used. Without one, OpenSSL would ask at the terminal.
        context.load_cert_chain(certificate, key, password=lambda: password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            reason = f"this is not the key of the certificate in {certificate}"
            raise ConfigError(KEY, key, f"{reason}; give the files that belong together") from None
        if b"ENCRYPTED" in private:
            reason = "the password is wrong, or OpenSSL does not support the encryption of the key"
            raise ConfigError(KEY, key, f"{reason}; convert it with {convert}") from None
        reason = f"OpenSSL cannot use it with the key in {key} ({error.reason})"
        raise ConfigError(CERTIFICATE, certificate, f"{reason}; create both again") from None


def load_trust(context: ssl.SSLContext, trust: str) -> None:
    """Trust the issuers in a file.

    Args:
        context: The context.
        trust: The path of a PEM file with certificates of issuers.

    Raises:
        ConfigError: The file is missing or has no certificate.
    """
    pem = content(TRUST, trust)
    if _PEM not in pem:
        raise ConfigError(TRUST, trust, "the file has no certificate in PEM format")
    try:
        context.load_verify_locations(cadata=pem.decode("ascii", "replace"))
    except ssl.SSLError as error:
        reason = f"OpenSSL cannot read it ({error.reason})"
        raise ConfigError(TRUST, trust, f"{reason}; create it again") from None


def check_private(name: str, path: str) -> None:
    """Refuse a file with a secret that others than its owner may read or write.

    Args:
        name: The description of the file, for errors.
        path: Its path.

    Raises:
        ConfigError: Others may read or write it.
        OSError: There is no such file.
    """
    files, file = SYSTEM.files, Path(path)
    if not files.is_private(file):
        mode = files.private_mode(file)
        raise ConfigError(name, path, f"others can read the secret; run 'chmod {mode} {path}'")


def content(name: str, path: str) -> bytes:
    """Return the content of a file.

    Args:
        name: The description of the file, for errors.
        path: Its path.

    Raises:
        ConfigError: The file cannot be read.
    """
    try:
        return SYSTEM.files.read(Path(path))
    except FileNotFoundError:
        raise ConfigError(name, path, "the file does not exist; check the path") from None
    except OSError as error:
        reason = f"the file cannot be read ({error.strerror})"
        raise ConfigError(name, path, f"{reason}; check its permissions") from None
