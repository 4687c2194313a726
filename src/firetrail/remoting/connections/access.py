"""The access of a client to servers: the credentials that it signs with, and TLS.

Programs give an :class:`Access` to a client. Without one, the environment decides::

    FIRETRAIL_ACCESS_KEY        name of the user
    FIRETRAIL_SECRET_KEY        its secret key, or
    FIRETRAIL_SECRET_KEY_FILE   a file with it, which only its owner can read
    FIRETRAIL_TLS               on, verify-ca (names are not checked), insecure or off
    FIRETRAIL_TLS_CA            issuers of server certificates; also turns TLS on
    FIRETRAIL_TLS_CERT          certificate of the client
    FIRETRAIL_TLS_KEY           its private key

A file of access has the same in the format of Java's properties, with the keys ``accessKey``,
``secretKey``, ``securityToken``, ``tls``, ``tlsCa``, ``tlsCert`` and ``tlsKey``. So RocketMQ's
``tools.yml`` is such a file.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from firetrail.auth.credentials import Credentials
from firetrail.errors import ConfigError
from firetrail.format.files.java_properties import parse_properties
from firetrail.system import SYSTEM, System
from firetrail.text import os_reason
from firetrail.tls.certificates import check_private
from firetrail.tls.client_tls import ClientTls

ACCESS_KEY = "FIRETRAIL_ACCESS_KEY"
SECRET_KEY = "FIRETRAIL_SECRET_KEY"
SECRET_KEY_FILE = "FIRETRAIL_SECRET_KEY_FILE"
TLS = "FIRETRAIL_TLS"
TLS_CA = "FIRETRAIL_TLS_CA"
TLS_CERT = "FIRETRAIL_TLS_CERT"
TLS_KEY = "FIRETRAIL_TLS_KEY"
VARIABLES = (ACCESS_KEY, SECRET_KEY, SECRET_KEY_FILE, TLS, TLS_CA, TLS_CERT, TLS_KEY)

FILE_KEYS = ("accessKey", "secretKey", "securityToken", "tls", "tlsCa", "tlsCert", "tlsKey")

_ON, _CA_ONLY, _INSECURE, _OFF = "on", "verify-ca", "insecure", "off"
_FILE_BYTES_MAX = 64 << 10
"""Maximum size of a file with a secret; a larger file is another one."""


@dataclass(frozen=True, slots=True)
class Access:
    """The access of a client to servers. Its text shows no secrets.

    Args:
        credentials: The credentials that sign requests. Default: None, for unsigned requests.
        tls: How TLS is used. Default: plaintext.
    """

    credentials: Credentials | None = None
    tls: ClientTls | None = None

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] | None = None) -> Self:
        """Return the access that environment variables describe.

        Args:
            variables: The variables. Default: those of the process.

        Raises:
            ConfigError: A value is not allowed, or the file of the secret key cannot be used.
        """
        given = os.environ if variables is None else variables
        access_key, secret = given.get(ACCESS_KEY, ""), given.get(SECRET_KEY, "")
        path = given.get(SECRET_KEY_FILE, "")
        if path and secret:
            remedy = f"remove it, or remove {SECRET_KEY}: only one of them can count"
            raise ConfigError(SECRET_KEY_FILE, path, remedy)
        if path:
            secret = secret_content(SECRET_KEY_FILE, path).strip()
        tls = _tls(TLS, given.get(TLS, ""), *(given.get(key, "") for key in VARIABLES[4:]))
        return cls(_credentials(ACCESS_KEY, access_key, SECRET_KEY, secret), tls)

    @classmethod
    def from_file(cls, path: str) -> Self:
        """Return the access that a file describes.

        Args:
            path: The file. Only its owner may be able to read it.

        Raises:
            ConfigError: The file cannot be used, or a value in it is not allowed.
        """
        name = "file of access"
        entries = parse_properties(secret_content(name, path), path)
        unknown = sorted(entries.keys() - set(FILE_KEYS))
        if unknown:
            remedy = f"it has the key {unknown[0]!r}; the keys are {', '.join(FILE_KEYS)}"
            raise ConfigError(name, path, remedy)
        given = {key: entry.text.strip() for key, entry in entries.items()}
        access_key, secret = given.get("accessKey", ""), given.get("secretKey", "")
        credentials = _credentials("accessKey", access_key, "secretKey", secret)
        if credentials is not None and given.get("securityToken"):
            credentials = Credentials(access_key, secret, given["securityToken"])
        tls = _tls("tls", given.get("tls", ""), *(given.get(key, "") for key in FILE_KEYS[4:]))
        return cls(credentials, tls)


def secret_content(name: str, path: str, system: System = SYSTEM) -> str:
    """Return the text of a file with a secret.

    Args:
        name: The name of the setting, for errors.
        path: The file.
        system: Reads the file. Default: that of the machine.

    Raises:
        ConfigError: The file cannot be read, is too large, or others can read it.
    """
    files, file = system.files, Path(path)
    try:
        check_private(name, path)
        if files.size(file) > _FILE_BYTES_MAX:
            raise ConfigError(name, path, "the file is too large for a secret; check the path")
        return files.read(file).decode("utf-8-sig", "replace")
    except OSError as error:
        raise ConfigError(name, path, f"cannot be read ({os_reason(error)})") from None


def _credentials(
    access_name: str, access_key: str, secret_name: str, secret: str
) -> Credentials | None:
    if not access_key and not secret:
        return None
    if not access_key:
        raise ConfigError(access_name, "", f"is missing, but there is a secret key ({secret_name})")
    if not secret:
        raise ConfigError(secret_name, "", f"is missing, but {access_name} is {access_key!r}")
    return Credentials(access_key, secret)


def _tls(name: str, mode: str, ca: str, certificate: str, key: str) -> ClientTls | None:
    mode = mode.lower() or (_ON if ca or certificate or key else _OFF)
    if mode not in (_ON, _CA_ONLY, _INSECURE, _OFF):
        raise ConfigError(name, mode, f"must be {_ON}, {_CA_ONLY}, {_INSECURE} or {_OFF}")
    if mode == _OFF:
        return None
    return ClientTls(
        ca=ca, certificate=certificate, key=key, check_names=mode == _ON, insecure=mode == _INSECURE
    )
