"""A self-signed certificate for the gRPC port of a broker without a certificate."""

import secrets
import ssl
import tempfile

from firetrail.tls.certificate_issuer import issue
from firetrail.tls.certificates import server_context

_VALID_DAYS = 3650
_HOST = "firetrail"


def self_signed_context() -> ssl.SSLContext:
    """Return a context with a new certificate, which encrypts and proves nothing."""
    password = secrets.token_hex(16)
    context = server_context()
    issued = issue(_HOST, ("localhost", _HOST), _VALID_DAYS, password=password)
    # OpenSSL loads keys from files only. The file is gone at once, and the key in it is encrypted.
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(issued.certificate + issued.key)
        file.flush()
        context.load_cert_chain(file.name, password=password)
    return context
