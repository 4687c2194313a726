"""The settings of TLS, by their keys in RocketMQ's ``tls.properties``."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, Self

from firetrail.errors import ConfigError
from firetrail.format.files.java_properties import Entry, parse_properties
from firetrail.settings.conf_file import read_settings, refuse_typos
from firetrail.settings.settings_table import HIDDEN, Flag, Group, Setting, Text, table
from firetrail.tls.certificates import check_private, content
from firetrail.tls.client_tls import ClientTls
from firetrail.tls.user_names import UserNames

NAME = "TLS settings"

UNUSED: Mapping[str, str] = {
    "Firetrail has no built-in certificate": "tls.test.mode.enable",
    "OpenSSL is the only provider": "tls.*provider* tls.config.file",
    "TLS 1.2 and 1.3 are used with the ciphers of OpenSSL": "tls.*ciphers tls.*protocols",
}
"""Keys of RocketMQ that have no effect: patterns of the keys by reason."""

NO_KEY = "is not a key of RocketMQ's tls.properties"

SERVER = Group(
    "TLS: ports",
    "One certificate serves the ports of a process for clients: those of broker, name server and"
    " gRPC. `--tls-config` and `tls_config_file` name the file with these settings, in the format"
    " of RocketMQ's `tls.properties`. Changed certificates are used without a restart.",
)
CLIENT = Group(
    "TLS: requests to other servers",
    "A broker uses these settings for its requests to name servers and other brokers. Clients have"
    " [arguments and environment variables](guide/tls.md).",
)
PATH = Text(".*", "a path, or nothing")
FLAG = Flag()


class TlsMode(Enum):
    """The treatment of clients that start with TLS, and of those that do not, at a port."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(Enum):
    """Whether clients have to show a certificate."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


class _Names(Text):
    def check(self, value: str) -> str:
        UserNames.parse(Text.check(self, value))
        return value


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TlsConfig:
    """The settings of TLS, as keyword arguments; ``docs/configuration.md`` lists them.

    The text of an instance does not show passwords. A value that is not allowed raises ConfigError.
    """

    mode: str = SERVER(
        "",
        "tls.server.mode",
        Text("|disabled|permissive|enforcing", "disabled, permissive, enforcing, or nothing"),
        "`enforcing` accepts only TLS, `permissive` also plaintext, `disabled` only plaintext."
        " Empty means `permissive` with a certificate, and `disabled` without one.",
    )
    certificate: str = SERVER(
        "",
        "tls.server.certPath",
        PATH,
        "PEM file with the certificate, followed by those of its issuers.",
    )
    key: str = SERVER(
        "", "tls.server.keyPath", PATH, "PEM file with the private key of the certificate."
    )
    key_password: str = SERVER(
        "",
        "tls.server.keyPassword",
        Text(".*", "any text"),
        "Password of the key. Only the owner may be able to read a file with a password.",
    )
    client_auth: str = SERVER(
        "none",
        "tls.server.need.client.auth",
        Text("none|optional|require", "none, optional or require"),
        "Whether clients show a certificate. It needs `trust`.",
    )
    verify_clients: bool = SERVER(
        True,
        "tls.server.authClient",
        FLAG,
        "Verify the certificates of clients. `false`, RocketMQ's default, is not supported together"
        " with `client_auth`: a certificate that is not verified proves nothing.",
    )
    trust: str = SERVER(
        "", "tls.server.trustCertPath", PATH, "PEM file with the issuers of client certificates."
    )
    user_names: str = SERVER(
        "",
        "",
        _Names(".*", "patterns such as CN:* or URI:spiffe://example.org/user/*, or nothing"),
        "Patterns that select the name of the user in a client certificate, in their order,"
        " separated by spaces. The kinds of names are CN, DNS, EMAIL and URI. The asterisk is the"
        " name of the user. Without patterns, a certificate names no user.",
    )

    is_client: bool = CLIENT(False, "tls.enable", FLAG, "Use TLS for requests to other servers.")
    client_certificate: str = CLIENT(
        "", "tls.client.certPath", PATH, "PEM file with the certificate to show to servers."
    )
    client_key: str = CLIENT("", "tls.client.keyPath", PATH, "PEM file with its private key.")
    client_key_password: str = CLIENT(
        "", "tls.client.keyPassword", Text(".*", "any text"), "Password of this key."
    )
    verify_servers: bool = CLIENT(
        True,
        "tls.client.authServer",
        FLAG,
        "Verify the certificates of servers, but not their names, as RocketMQ does. RocketMQ's"
        " default is false.",
    )
    client_trust: str = CLIENT(
        "",
        "tls.client.trustCertPath",
        PATH,
        "PEM file with the issuers of server certificates. Default: those that the system trusts.",
    )

    def __post_init__(self) -> None:
        for declared in fields(self):
            SETTINGS[declared.name].checked(getattr(self, declared.name))
        if self.client_auth != ClientAuth.NONE.value:
            if not self.trust:
                remedy = "name the issuers of client certificates: tls.server.trustCertPath"
                raise ConfigError("tls.server.need.client.auth", self.client_auth, remedy)
            if not self.verify_clients:
                remedy = "client certificates are always verified; set true, or remove the key"
                raise ConfigError("tls.server.authClient", "false", remedy)

    def __repr__(self) -> str:
        shown = (
            f"{name}={value!r}"
            for name, setting in SETTINGS.items()
            if (value := getattr(self, name)) != setting.default and "password" not in name
        )
        return f"TlsConfig({', '.join(shown)})"

    @classmethod
    def from_file(cls, path: str) -> tuple[Self, list[str]]:
        """Return the settings in a file, and remarks about keys that have no effect.

        Args:
            path: The file, in the format of RocketMQ's ``tls.properties``.

        Raises:
            ConfigError: The file cannot be read, a value is invalid, or others than the owner can
                read the passwords in the file.
        """
        text = content(NAME, path).decode("utf-8", "replace")
        reading = read_settings(SETTINGS, parse_properties(text, path), UNUSED, NO_KEY)
        refuse_typos(reading.unknown)
        has_password = any(reading.values.get(name) for name in PASSWORDS)
        if has_password:
            check_private(NAME, path)
        return cls(**reading.values), [str(remark) for remark in reading.remarks]

    @classmethod
    def combined(cls, path: str, **given: str) -> tuple[Self, list[str]]:
        """Return the settings in a file, with those given elsewhere, and remarks about the file.

        Args:
            path: The file; empty for none.
            given: Values by the names of the settings, which take precedence. Empty ones count as
                not given. With issuers of client certificates, these are required, unless the file
                says otherwise.

        Raises:
            ConfigError: The file cannot be read, or a value is not allowed.
        """
        config, remarks = cls.from_file(path) if path else (cls(), [])
        changes = {name: value for name, value in given.items() if value}
        if "trust" in changes and config.client_auth == ClientAuth.NONE.value:
            changes["client_auth"] = ClientAuth.REQUIRE.value
        return config.replace(**changes), remarks

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some settings changed.

        Args:
            changes: The new values by the names of the settings.

        Raises:
            ConfigError: A value is not allowed.
        """
        return replace(self, **changes)

    @property
    def server_mode(self) -> TlsMode:
        """The mode of the ports."""
        if self.mode:
            return TlsMode(self.mode)
        return TlsMode.PERMISSIVE if self.certificate or self.key else TlsMode.DISABLED

    @property
    def of_client(self) -> ClientTls:
        """The TLS of requests to other servers."""
        return ClientTls(
            ca=self.client_trust,
            certificate=self.client_certificate,
            key=self.client_key,
            key_password=self.client_key_password,
            check_names=False,
            insecure=not self.verify_servers,
        )


SETTINGS: Mapping[str, Setting] = table(TlsConfig)
"""The table: every setting by its Python name."""

PASSWORDS = ("key_password", "client_key_password")

OPTIONS: Mapping[str, str] = {
    "tls.server.mode": "--tls-mode",
    "tls.server.certPath": "--tls-cert",
    "tls.server.keyPath": "--tls-key",
    "tls.server.trustCertPath": "--tls-trust",
}
"""The options of commands that run servers, by the keys that they set."""


def refuse_misplaced(entries: Mapping[str, Entry]) -> None:
    """Raise ConfigError if the file of a server has a setting of TLS, which is not read there.

    A remark would not do: the ports would be open for plaintext although the file says otherwise.

    Args:
        entries: The keys and values of the file, ``broker.conf`` for example.
    """
    for key, entry in entries.items():
        if key.startswith("tls.") and key != "tls.config.file":
            shown = HIDDEN if "password" in key.lower() else entry.text.strip()
            option = f", or use the option {OPTIONS[key]}" if key in OPTIONS else ""
            remedy = (
                "settings of TLS are not read from this file; put it into tls.properties, the file"
                f" that the option --tls-config names{option}"
            )
            raise ConfigError(key, shown, remedy, entry.place)
