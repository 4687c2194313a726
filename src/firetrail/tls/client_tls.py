"""TLS towards servers."""

import ssl
from dataclasses import dataclass, field

from firetrail.tls.certificates import load_certificate, load_trust
from firetrail.tls.tls_session import TlsSession


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """The TLS settings of a client. The text of an instance does not show the password.

    Args:
        ca: The path of a PEM file with the issuers of server certificates. Default: those that the
            system trusts.
        certificate: The path of a PEM file with the certificate of the client. Default: none.
        key: The path of a PEM file with its private key. Default: none.
        key_password: The password of the key. Default: empty, for an unencrypted key.
        check_names: Whether the address of a server must be in its certificate. RocketMQ's clients
            do not check this. Default: True.
        insecure: Accept every certificate, so that anybody on the way can read and change
            everything. Default: False.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""
    key_password: str = field(default="", repr=False)
    check_names: bool = True
    insecure: bool = False

    def session(self, host: str) -> TlsSession:
        """Return a session with a server; the files are read each time.

        Args:
            host: The name or the address of the server.

        Raises:
            ConfigError: A file is missing or cannot be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.check_names and not self.insecure
        if self.insecure:
            context.verify_mode = ssl.CERT_NONE
        elif self.ca:
            load_trust(context, self.ca)
        else:
            context.load_default_certs()
        if self.certificate or self.key:
            remedy = "give both files: the certificate and its key"
            load_certificate(context, self.certificate, self.key, self.key_password, remedy=remedy)
        return TlsSession(context, host)
