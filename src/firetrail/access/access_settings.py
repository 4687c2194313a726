"""The settings of access control, with RocketMQ's keys, for brokers and name servers."""

# ruff: noqa: RUF009  (the calls in the class body create fields, one value for each instance)

import json
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

from firetrail.access.guard import PLAIN_REMARKS, AccessPolicy
from firetrail.access.user_bodies import check_password, check_user_name
from firetrail.auth.credentials import Credentials
from firetrail.errors import ConfigError
from firetrail.settings.settings_table import HIDDEN, Flag, Group, Kind, Text

ACCESS = Group(
    "Broker: access control",
    "Users and their policies are RocketMQ's ACL 2.0. They are changed with `mqadmin`,"
    " and kept in `config/firetrailUsers.json`. With `aclEnable`, the accounts of ACL 1.0 in"
    " `plain_acl.yml` are used instead.",
)


PLAIN_FILE = "conf/plain_acl.yml"
"""The file with the accounts of ACL 1.0, below RocketMQ's home."""


@dataclass(frozen=True, slots=True)
class SecretPair(Kind[Credentials | None]):
    """A user name and its password as JSON, which are never shown."""

    is_secret: ClassVar[bool] = True
    name_key: str
    password_key: str

    @property
    def allowed(self) -> str:
        return f'JSON such as {{"{self.name_key}":"…","{self.password_key}":"…"}}, or nothing'

    def parse(self, text: str) -> Credentials | None:
        if not text:
            return None
        try:
            value = json.loads(text)
            pair = value[self.name_key], value[self.password_key]
            token = value.get("securityToken")
        except (ValueError, LookupError, TypeError, RecursionError):
            raise self.refusal() from None
        if not all(isinstance(each, str) for each in pair) or not isinstance(token, str | None):
            raise self.refusal()
        try:
            return Credentials(check_user_name(pair[0]), check_password(pair[1]), token or None)
        except ConfigError as error:
            raise ValueError(f"{error.key}: {error.allowed}") from None

    def check(self, value: Credentials | None) -> Credentials | None:
        if value is not None and not isinstance(value, Credentials):
            raise ValueError("must be Credentials or None")
        return value

    def show(self, value: Credentials | None) -> str:
        return "" if value is None else HIDDEN


def java_class(*names: str) -> Text:
    """Return the kind of a setting that selects one of RocketMQ's own classes."""
    return Text(rf"(?:(?:\w+\.)*(?:{'|'.join(names)}))?", f"{' or '.join(names)}, or nothing")


FLAG = Flag()
WHITE_LIST = Text(
    r"\s*(?:[\w.]+\s*(?:,\s*[\w.]+\s*)*)?", "request codes or gRPC messages, separated by ','"
)
INIT_USER = SecretPair("username", "password")
INNER_CREDENTIALS = SecretPair("accessKey", "secretKey")
_ONLY = "Only RocketMQ's own class is supported."
_STRATEGY = "Every request is checked, with either of the two."


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """The settings of access control that are part of a broker's settings."""

    authentication: bool = ACCESS(
        False,
        "authenticationEnabled",
        FLAG,
        "Require every request to be signed by a known user.",
    )
    authorization: bool = ACCESS(
        False,
        "authorizationEnabled",
        FLAG,
        "Require a permission for every request. It needs `authenticationEnabled`.",
    )
    init_user: Credentials | None = ACCESS(
        None,
        "initAuthenticationUser",
        INIT_USER,
        "A super user that is created at the start if there is none with this name. A password"
        " that is changed here later has no effect.",
    )
    inner_credentials: Credentials | None = ACCESS(
        None,
        "innerClientAuthenticationCredentials",
        INNER_CREDENTIALS,
        "The super user with which brokers sign their own requests. It is created at the start if"
        " there is none with this name.",
    )
    authentication_whitelist: str = ACCESS(
        "",
        "authenticationWhitelist",
        WHITE_LIST,
        "Requests that need no valid signature. Requests of administrators are not allowed here.",
    )
    authorization_whitelist: str = ACCESS(
        "",
        "authorizationWhitelist",
        WHITE_LIST,
        "Requests whose permission is not checked. Requests of administrators are not allowed"
        " here.",
    )
    authentication_provider: str = ACCESS(
        "", "authenticationProvider", java_class("DefaultAuthenticationProvider"), _ONLY
    )
    authorization_provider: str = ACCESS(
        "", "authorizationProvider", java_class("DefaultAuthorizationProvider"), _ONLY
    )
    authentication_metadata_provider: str = ACCESS(
        "",
        "authenticationMetadataProvider",
        java_class("LocalAuthenticationMetadataProvider"),
        _ONLY,
    )
    authorization_metadata_provider: str = ACCESS(
        "",
        "authorizationMetadataProvider",
        java_class("LocalAuthorizationMetadataProvider"),
        _ONLY,
    )
    authentication_strategy: str = ACCESS(
        "",
        "authenticationStrategy",
        java_class("StatelessAuthenticationStrategy", "StatefulAuthenticationStrategy"),
        _STRATEGY,
    )
    authorization_strategy: str = ACCESS(
        "",
        "authorizationStrategy",
        java_class("StatelessAuthorizationStrategy", "StatefulAuthorizationStrategy"),
        _STRATEGY,
    )

    return_passwords: bool = ACCESS(
        False,
        "",
        FLAG,
        "Return the passwords of users to super users that use TLS. RocketMQ always returns them;"
        " `mqadmin copyUser` and the login of RocketMQ's dashboard need them.",
    )

    acl: bool = ACCESS(
        False,
        "aclEnable",
        FLAG,
        "Check every request with the accounts of ACL 1.0. It needs the extra `auth`, and cannot be"
        " combined with `authenticationEnabled`.",
    )
    acl_file: str = ACCESS(
        "",
        "rocketmq.acl.plain.file",
        Text(".*", "a path, or nothing"),
        "The file with the accounts of ACL 1.0; more files may be in the folder `acl` beside it."
        f" The default is `{PLAIN_FILE}` below the folder in the environment variable"
        " `ROCKETMQ_HOME`.",
    )
    migrate_acl: bool = ACCESS(
        False,
        "migrateAuthFromV1Enabled",
        FLAG,
        "At the start, create a user with policies for every account of ACL 1.0 that is not a user"
        " yet. It needs `authenticationEnabled`.",
    )

    @property
    def plain_file(self) -> Path:
        """The main file of ACL 1.0; raise ConfigError if it is not known."""
        home = os.environ.get("ROCKETMQ_HOME", "")
        if not self.acl_file and not home:
            raise ConfigError(
                "rocketmq.acl.plain.file",
                "",
                "must name the file with the accounts of ACL 1.0, unless ROCKETMQ_HOME is set",
            )
        return Path(self.acl_file or Path(home) / PLAIN_FILE)

    def access_policy(self, cluster: str) -> AccessPolicy:
        """Return the checks of a server's guard; raise ConfigError for a wrong combination."""
        if self.acl and self.authentication:
            raise ConfigError(
                "aclEnable",
                True,
                "cannot be combined with authenticationEnabled=true: use one of the two;"
                " migrateAuthFromV1Enabled=true copies the accounts of ACL 1.0 to users",
            )
        if self.migrate_acl and not self.authentication:
            raise ConfigError(
                "migrateAuthFromV1Enabled", True, "it needs authenticationEnabled=true"
            )
        if self.acl:
            return AccessPolicy(cluster=cluster, remarks=PLAIN_REMARKS)
        policy = AccessPolicy(
            self.authorization,
            _words(self.authentication_whitelist),
            _words(self.authorization_whitelist),
            cluster,
        )
        return checked_policy(policy, authentication=self.authentication)


def checked_policy(policy: AccessPolicy, *, authentication: bool) -> AccessPolicy:
    """Return the checks; raise ConfigError for permissions without signatures."""
    if policy.authorization and not authentication:
        raise ConfigError(
            "authorizationEnabled",
            True,
            "it needs authenticationEnabled=true: permissions of a user who is not authenticated"
            " would be those of anybody who knows the name",
        )
    return policy


def _words(text: str) -> frozenset[str]:
    return frozenset(word.strip() for word in text.split(",") if word.strip())


SECRET_KEYS = frozenset(
    key
    for each in fields(AccessSettings)
    if each.metadata["kind"].is_secret
    for key in (each.name, *each.metadata["keys"])
)
"""The keys of a file whose values are secrets."""
