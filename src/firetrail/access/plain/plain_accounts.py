"""The accounts of RocketMQ's ACL 1.0, as users with policies.

An account is converted into a user, so that the rules and the decision of ACL 2.0 apply to it:

- ``admin: true`` is a super user.
- ``PUB`` allows Pub and Get, ``SUB`` allows Sub and Get, and ``DENY`` denies everything.
- A listed name is decided by its own permission alone, every other one by the default.
- Every account may send to the topics of message traces and of replies, and look up the topic that
  new topics are copied from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from firetrail.access.user_bodies import check_user_name
from firetrail.auth.address_patterns import AddressPattern
from firetrail.auth.policies import (
    PASSWORD_MAX,
    SAMPLE_PASSWORDS,
    Decision,
    Policy,
    PolicyEntry,
    User,
    UserType,
)
from firetrail.auth.resources import Action, MatchKind, Requirement, Resource, ResourceType
from firetrail.errors import ConfigError
from firetrail.format.names import AUTO_CREATE_TOPIC, TRACE_TOPIC, group_of_retries, reply_topic
from firetrail.format.values.truths import is_true
from firetrail.settings.settings_table import HIDDEN

KEY_MIN = 7
"""Minimum length of access keys and secret keys, as in RocketMQ."""


class PlainPermission(StrEnum):
    """A permission of an account for a topic or a group."""

    DENY = "DENY"
    PUB = "PUB"
    SUB = "SUB"
    BOTH = "PUB|SUB"

    @classmethod
    def parse(cls, text: str) -> PlainPermission:
        """Return the permission that a file names; an unknown word is DENY, as in RocketMQ."""
        return _PERMISSIONS.get(text.strip(), cls.DENY)

    @classmethod
    def checked(cls, text: str) -> PlainPermission:
        """Return the permission that a request names; raise ConfigError if it is unknown."""
        found = _PERMISSIONS.get(text.strip())
        if found is None:
            raise ConfigError("permission", text, f"must be one of {', '.join(cls)}")
        return found

    @property
    def actions(self) -> frozenset[Action]:
        """The actions that it allows; none for DENY."""
        return _ACTIONS[self]


_PERMISSIONS = {**{each.value: each for each in PlainPermission}, "SUB|PUB": PlainPermission.BOTH}
_ACTIONS = {
    PlainPermission.DENY: frozenset[Action](),
    PlainPermission.PUB: frozenset({Action.PUB, Action.GET}),
    PlainPermission.SUB: frozenset({Action.SUB, Action.GET}),
    PlainPermission.BOTH: frozenset({Action.PUB, Action.SUB, Action.GET}),
}
_ALL = frozenset({Action.ALL})
_ALWAYS = {TRACE_TOPIC: frozenset({Action.PUB}), AUTO_CREATE_TOPIC: frozenset({Action.GET})}
"""The permissions of every account for some topics."""

Permissions = Mapping[str, PlainPermission]


@dataclass(frozen=True, slots=True)
class PlainUser(User):
    """A user of ACL 1.0, which is refused with the texts of ACL 1.0."""

    def denial(self, wanted: Requirement, source: str, why: str) -> str:
        kind, name = wanted.kind, wanted.name
        if kind is ResourceType.CLUSTER or not wanted.actions & _ACTIONS[PlainPermission.BOTH]:
            return f"Need admin permission for {wanted.resource}, but accessKey={self.name} is not"
        literal = Resource(MatchKind.LITERAL, kind, name)
        is_listed = any(entry.resource == literal for entry in self.policies[1].entries)
        default = "" if is_listed else "default "
        return f"No {default}permission for {kind.lower()}:{name}"


@dataclass(frozen=True, slots=True)
class PlainAccount:
    """An account of ACL 1.0.

    Attributes:
        access_key: The name of the user.
        secret_key: The key of its signatures.
        white_address: Addresses from which its requests are not checked.
        is_admin: Whether it may do everything.
        default_topic: Its permissions for topics that are not listed.
        default_group: Its permissions for groups that are not listed.
        topics: Its permissions for some topics.
        groups: Its permissions for some groups.
    """

    access_key: str
    secret_key: str = field(repr=False)
    white_address: AddressPattern = field(default_factory=lambda: AddressPattern.parse(""))
    is_admin: bool = False
    default_topic: PlainPermission = PlainPermission.DENY
    default_group: PlainPermission = PlainPermission.DENY
    topics: Permissions = field(default_factory=dict)
    groups: Permissions = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_user_name(self.access_key)
        if len(self.access_key) < KEY_MIN:
            raise ConfigError("accessKey", self.access_key, f"needs {KEY_MIN} characters")
        if not KEY_MIN <= len(self.secret_key) <= PASSWORD_MAX:
            raise ConfigError(
                "secretKey",
                HIDDEN,
                f"{KEY_MIN} to {PASSWORD_MAX} characters are allowed (account {self.access_key})",
            )
        if self.secret_key in SAMPLE_PASSWORDS:
            raise ConfigError(
                "secretKey",
                HIDDEN,
                f"the key of account {self.access_key} is the one of RocketMQ's example, which"
                " attackers try first: choose another",
            )

    @classmethod
    def of(cls, value: Any) -> PlainAccount:
        """Return the account in a file; raise ConfigError if it is not valid."""
        if not isinstance(value, dict):
            raise ConfigError("accounts", "", "each account must be a mapping with an accessKey")
        return cls(
            _text(value, "accessKey"),
            _text(value, "secretKey"),
            AddressPattern.parse(_text(value, "whiteRemoteAddress")),
            is_true(_text(value, "admin").strip()),
            PlainPermission.parse(_text(value, "defaultTopicPerm")),
            PlainPermission.parse(_text(value, "defaultGroupPerm")),
            _listed(value, "topicPerms", PlainPermission.parse),
            _listed(value, "groupPerms", PlainPermission.parse),
        )

    def changed(self, fields: Mapping[str, str]) -> PlainAccount:
        """Return the account with the fields of a request; absent fields keep their values."""
        value = {**self.to_yaml(), **{key: fields[key] for key in _SCALARS if key in fields}}
        for key in ("defaultTopicPerm", "defaultGroupPerm"):
            if key in fields:
                PlainPermission.checked(fields[key])
        for key in _LISTS:
            if key in fields:
                value[key] = [each for each in fields[key].split(",") if each.strip()]
                _listed(value, key, PlainPermission.checked)
        value["admin"] = str(value["admin"])
        return PlainAccount.of(value)

    def to_yaml(self) -> dict[str, Any]:
        """Return the account as it is written to a file, with its secret key."""
        return {
            "accessKey": self.access_key,
            "secretKey": self.secret_key,
            "whiteRemoteAddress": self.white_address.text,
            "admin": self.is_admin,
            "defaultTopicPerm": self.default_topic.value,
            "defaultGroupPerm": self.default_group.value,
            "topicPerms": [f"{name}={perm}" for name, perm in self.topics.items()],
            "groupPerms": [f"{name}={perm}" for name, perm in self.groups.items()],
        }

    def user(self, cluster: str) -> User:
        """Return the user that has the permissions of the account.

        Args:
            cluster: The cluster of the broker. Every account may reply to the requests of its
                clients, as in RocketMQ.
        """
        kind = UserType.SUPER if self.is_admin else UserType.NORMAL
        always = {**_ALWAYS, reply_topic(cluster): frozenset({Action.PUB})}
        policies = self._policies(always)
        return PlainUser(self.access_key, self.secret_key, kind, policies=policies)

    def _policies(self, always: Mapping[str, frozenset[Action]]) -> tuple[Policy, Policy]:
        """Return the policy for the names that are listed, and the default one.

        The default policy denies the listed names, because an action that their own entry does not
        mention would otherwise be decided by the default for all names.
        """
        allowed = {(ResourceType.TOPIC, name): actions for name, actions in always.items()}
        denied = set()
        for kind, names in ((ResourceType.TOPIC, self.topics), (ResourceType.GROUP, self.groups)):
            for name, permission in names.items():
                resource = _resource(kind, name)
                allowed[resource] = allowed.get(resource, frozenset()) | permission.actions
                denied.add(resource)
        custom = [_entry(*resource, actions) for resource, actions in allowed.items() if actions]
        default = [_entry(*resource, frozenset()) for resource in denied]
        for kind, perm in (
            (ResourceType.TOPIC, self.default_topic),
            (ResourceType.GROUP, self.default_group),
        ):
            default.append(_entry(kind, "", perm.actions))
        return Policy(custom), Policy(default)


_SCALARS = (
    *("secretKey", "whiteRemoteAddress", "admin"),
    *("defaultTopicPerm", "defaultGroupPerm"),
)
_LISTS = ("topicPerms", "groupPerms")


def _resource(kind: ResourceType, name: str) -> tuple[ResourceType, str]:
    """Return the resource of a name; that of a retry topic is its group."""
    group = group_of_retries(name)
    return (kind, name) if group is None else (ResourceType.GROUP, group)


def _entry(kind: ResourceType, name: str, actions: frozenset[Action]) -> PolicyEntry:
    """Return the entry that allows some actions, or denies all if there are none."""
    match = MatchKind.LITERAL if name else MatchKind.TYPE
    decision = Decision.ALLOW if actions else Decision.DENY
    return PolicyEntry(Resource(match, kind, name), actions or _ALL, decision)


def _text(value: dict[str, Any], key: str) -> str:
    """Return the text of a member; raise ConfigError, without the value, if it is not text."""
    text = value.get(key, "")
    if isinstance(text, bool):
        return str(text)
    if not isinstance(text, str):
        raise ConfigError(key, HIDDEN, "must be text")
    return text


def _listed(value: dict[str, Any], key: str, permission: Any) -> Permissions:
    """Return the permissions in a list such as ``[orders=PUB, other=DENY]``."""
    lines: Iterable[Any] = value.get(key) or ()
    if not isinstance(lines, list | tuple):
        raise ConfigError(key, "", "must be a list of name=permission")
    found: dict[str, PlainPermission] = {}
    for line in lines:
        name, equals, word = line.partition("=") if isinstance(line, str) else ("", "", "")
        name = name.strip()
        if not equals or not name:
            raise ConfigError(key, line, "must be name=permission")
        Resource.parse(f"{ResourceType.TOPIC}:{name}")
        if name.endswith("*"):
            raise ConfigError(key, line, "names are exact: a permission for all is a default")
        found[name] = permission(word)
    return found
