"""The folder of ``firetrail up --secure``: certificates, the first user, and files for clients.

::

    ca.pem  ca.key            the authority that the certificate of the server is from
    server.pem  server.key    certificate of all ports
    admin.secret              password of the super user ``admin``
    env                       variables for Firetrail's commands and clients, for the shell
    client.properties         TLS of Java clients
    tools.yml                 credentials of mqadmin
    store                     the store, unless another folder is given

The files and the folder are readable by their owner only.
"""

import secrets
import shlex
from collections.abc import Iterable
from pathlib import Path

from firetrail.access.user_store import UserStore
from firetrail.auth.credentials import Credentials
from firetrail.cli.running_cluster import NAMESRV
from firetrail.errors import ConfigError
from firetrail.remoting.connections.access import (
    ACCESS_KEY,
    SECRET_KEY_FILE,
    TLS_CA,
    secret_content,
)
from firetrail.system import SYSTEM
from firetrail.tls.certificate_issuer import (
    AUTHORITY_DAYS,
    SERVER_DAYS,
    IssuedCertificate,
    is_usable,
    issue,
)
from firetrail.tls.certificates import check_private
from firetrail.tls.tls_config import TlsConfig, TlsMode
from firetrail.tls.validity import RENEWED_DAYS

ADMIN = "admin"
STORE = "store"
AUTHORITY_KEY = "key of the authority"
PASSWORD_BYTES = 24
"""Random bytes in the generated password."""


class SecureFolder:
    """The files of a server with TLS and access control, which are created if they are missing.

    Attributes:
        path: The folder.
        admin: The first super user.
        tls: The settings of TLS.
    """

    def __init__(self, path: Path, hosts: Iterable[str], store: Path | None = None) -> None:
        """Create the missing files.

        Args:
            path: The folder; created if missing.
            hosts: The host names and addresses that clients may connect to.
            store: The folder of the store, which has the users. Default: the one in ``path``.

        Raises:
            ConfigError: A file with a secret cannot be used, or others can read it, or they can
                write to the folder.
            OSError: A file cannot be written.
            ModuleNotFoundError: The package ``cryptography`` is not installed.
        """
        self.path = path.resolve()
        SYSTEM.files.make_folder(self.path)
        if SYSTEM.files.is_shared(self.path):
            remedy = f"others can replace the files in it; run 'chmod 700 {self.path}'"
            raise ConfigError("--secure", str(self.path), remedy)
        if self.file("ca.key").exists():
            check_private(AUTHORITY_KEY, str(self.file("ca.key")))
        self._store = store or self.file(STORE)
        self._certify(sorted(set(hosts)))
        self.admin = Credentials(ADMIN, self._password())
        self.tls = TlsConfig(
            mode=TlsMode.ENFORCING.value,
            certificate=str(self.file("server.pem")),
            key=str(self.file("server.key")),
        )

    def file(self, name: str) -> Path:
        """Return the path of a file."""
        return self.path / name

    def _password(self) -> str:
        file = self.file("admin.secret")
        if not file.exists():
            self._refuse_other_password(file)
            self._write("admin.secret", secrets.token_urlsafe(PASSWORD_BYTES).encode() + b"\n")
        return secret_content(f"password of {ADMIN}", str(file)).strip()

    def _refuse_other_password(self, file: Path) -> None:
        """Raise ConfigError if the super user exists: a new password here would not be its own."""
        users = UserStore(SYSTEM, self._store)
        users.load()
        if users.find(ADMIN) is not None:
            remedy = (
                f"the file is missing, but the user {ADMIN} exists; put the file back, or write a "
                f"new password to it, run 'chmod 600 {file}', and then 'firetrail user update "
                f"{ADMIN} --store {self._store} --password-file {file}'"
            )
            raise ConfigError(f"password of {ADMIN}", str(file), remedy)

    def _certify(self, hosts: list[str]) -> None:
        """Issue the certificate of the server, unless it is for these hosts and still valid."""
        certificate, key = self.file("server.pem"), self.file("server.key")
        if certificate.exists() and key.exists():
            secret_content("key of the server", str(key))
            if is_usable(SYSTEM.files.read(certificate), hosts, RENEWED_DAYS):
                return
        issued = issue("firetrail server", hosts, SERVER_DAYS, self._authority())
        self._write("server.key", issued.key)
        self._write("server.pem", issued.certificate)

    def _authority(self) -> IssuedCertificate:
        certificate, key = self.file("ca.pem"), self.file("ca.key")
        if certificate.exists() and not key.exists():
            remedy = (
                "the file is missing, but the certificate of the server has to be issued again for"
                " another address or because it expires; put the file back for this start"
            )
            raise ConfigError(AUTHORITY_KEY, str(key), remedy)
        if not certificate.exists():
            issued = issue("firetrail authority", (), AUTHORITY_DAYS, is_authority=True)
            self._write("ca.key", issued.key)
            self._write("ca.pem", issued.certificate)
        pem = secret_content(AUTHORITY_KEY, str(key)).encode()
        return IssuedCertificate(SYSTEM.files.read(certificate), pem)

    def _write(self, name: str, content: bytes) -> None:
        SYSTEM.files.replace(self.file(name), content)

    def guide(self, namesrv: str, grpc: str) -> list[str]:
        """Write the files for clients; return the lines that say how to connect.

        Args:
            namesrv: The address of the name server.
            grpc: The address for gRPC clients; empty if there is none.

        Raises:
            OSError: A file cannot be written.
        """
        trust, secret = self.file("ca.pem"), self.file("admin.secret")
        variables = {
            NAMESRV: namesrv,
            ACCESS_KEY: ADMIN,
            SECRET_KEY_FILE: str(secret),
            TLS_CA: str(trust),
        }
        exports = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
        self._write("env", "".join(exports).encode())
        lines = ("tls.test.mode.enable=false", "tls.client.authServer=true")
        properties = "\n".join((*lines, f"tls.client.trustCertPath={trust}", ""))
        self._write("client.properties", properties.encode())
        tools = f"accessKey: {ADMIN}\nsecretKey: {self.admin.secret_key}\n"
        self._write("tools.yml", tools.encode())
        config = shlex.quote(f"-Dtls.config.file={self.file('client.properties')}")
        found = [
            f"TLS and access control are on; the password of the super user {ADMIN} is in {secret}",
            "Firetrail's commands and clients:",
            f"  . {shlex.quote(str(self.file('env')))}",
            "  firetrail user create shop",
            "  firetrail acl create shop Topic:orders Group:shop --actions Pub,Sub",
            "Java clients, with new AclClientRPCHook(new SessionCredentials(user, password)):",
            f"  java -Dtls.enable=true {config} …",
            f"mqadmin: these options in JAVA_OPT, and {self.file('tools.yml')} as conf/tools.yml",
        ]
        if grpc:
            found += [
                "gRPC clients in Python:",
                f"  export GRPC_DEFAULT_SSL_ROOTS_FILE_PATH={shlex.quote(str(trust))}",
                f'  Producer(ClientConfiguration("{grpc}", Credentials("{ADMIN}", password)),'
                ' ["orders"], tls_enable=True)',
            ]
        return found
