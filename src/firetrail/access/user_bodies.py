"""The bodies of the requests about users and policies, which are also the form of their file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from firetrail.auth.policies import (
    PASSWORD_MAX,
    PASSWORD_MIN,
    SAMPLE_PASSWORDS,
    SUBJECT_PREFIX,
    Decision,
    Policy,
    PolicyEntry,
    PolicyType,
    User,
    UserStatus,
    UserType,
    parse_source,
    source_text,
)
from firetrail.auth.resources import Action, Resource
from firetrail.errors import ConfigError, ProtocolError
from firetrail.format.names import USER_NAME
from firetrail.remoting.messages.typed_body import Body
from firetrail.settings.settings_table import HIDDEN

Word = TypeVar("Word", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class UserInfo(Body):
    """A user. Only requests and the file contain the password, never an answer.

    Args:
        username: The name of the user. Default: none; the header of a request has it, too.
        password: The password. Default: None, which changes nothing.
        user_type: ``Super`` or ``Normal``. Default: None, which changes nothing.
        user_status: ``enable`` or ``disable``. Default: None, which changes nothing.
    """

    username: str = ""
    # Not declared as text, because a message about another type would show the value.
    password: Any = field(default=None, repr=False)
    user_type: str | None = None
    user_status: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyEntryInfo(Body):
    """One entry of a policy.

    Args:
        resource: The subject, such as ``Topic:orders``.
        actions: The names of the actions. Default: none.
        source_ips: The addresses and networks of clients that it is for. Default: None, all.
        decision: ``Allow`` or ``Deny``. Default: empty, which is invalid.
    """

    resource: str
    actions: list[str] = field(default_factory=list)
    source_ips: list[str] | None = None
    decision: str = ""

    @classmethod
    def of(cls, entry: PolicyEntry) -> PolicyEntryInfo:
        """Return the body of an entry.

        Args:
            entry: The entry.
        """
        return cls(
            str(entry.resource),
            [action for action in Action if action in entry.actions],
            [source_text(source) for source in entry.sources] or None,
            entry.decision,
        )

    def entry(self) -> PolicyEntry:
        """Return the entry; raise ConfigError, in RocketMQ's words, if it is invalid."""
        if not self.actions:
            raise ConfigError("actions", self.actions, "The actions is empty.")
        decision = _word(Decision, self.decision)
        if decision is None:
            raise ConfigError("decision", self.decision, "The decision is null or illegal.")
        return PolicyEntry(
            Resource.parse(self.resource),
            frozenset(Action.parse(word) for word in self.actions),
            decision,
            tuple(parse_source(text) for text in self.source_ips or ()),
        )


@dataclass(frozen=True, slots=True)
class PolicyInfo(Body):
    """A policy.

    Args:
        policy_type: ``Custom`` or ``Default``. Default: None, which means ``Custom``.
        entries: The entries. Default: none.
    """

    policy_type: str | None = None
    entries: list[PolicyEntryInfo] = field(default_factory=list)

    @property
    def type(self) -> PolicyType:
        """The type of the policy; Custom if the request does not say."""
        return policy_type(self.policy_type)


@dataclass(frozen=True, slots=True)
class AclInfo(Body):
    """The policies of a user.

    Args:
        subject: The user, as ``User:name``. Default: none; the header of a request has it, too.
        policies: The policies. Default: none.
    """

    subject: str = ""
    policies: list[PolicyInfo] = field(default_factory=list)

    @classmethod
    def of(cls, user: User) -> AclInfo | None:
        """Return the body of a user's policies; None if there are none.

        Args:
            user: The user.
        """
        policies = [
            PolicyInfo(kind, [PolicyEntryInfo.of(entry) for entry in policy.entries])
            for kind, policy in zip(PolicyType, user.policies, strict=True)
            if policy.entries
        ]
        return cls(user.subject, policies) if policies else None

    @classmethod
    def granting(
        cls,
        name: str,
        resources: Iterable[str],
        actions: Iterable[str],
        decision: str,
        sources: Iterable[str],
        kind: str,
    ) -> AclInfo:
        """Return the body that adds an entry for each resource to a policy of a user.

        Args:
            name: The name of the user.
            resources: The resources.
            actions: The names of the actions.
            decision: ``Allow`` or ``Deny``.
            sources: The addresses and networks of clients; none for all.
            kind: ``Custom`` or ``Default``.

        Raises:
            ConfigError: There is no resource, or something is invalid.
        """
        words, networks = list(actions), list(sources) or None
        entries = [PolicyEntryInfo(each, words, networks, decision) for each in resources]
        if not entries:
            raise ConfigError("resources", [], "is empty")
        for each in entries:
            each.entry()
        subject = SUBJECT_PREFIX + name.removeprefix(SUBJECT_PREFIX)
        return cls(subject, [PolicyInfo(policy_type(kind), entries)])

    def merged(self, policies: tuple[Policy, Policy]) -> tuple[Policy, Policy]:
        """Return policies with these entries added; raise ConfigError if one is invalid.

        Args:
            policies: The policies.
        """
        found = dict(zip(PolicyType, policies, strict=True))
        for policy in self.policies:
            entries = [each.entry() for each in policy.entries]
            found[policy.type] = found[policy.type].with_entries(entries)
        return found[PolicyType.CUSTOM], found[PolicyType.DEFAULT]


@dataclass(frozen=True, slots=True)
class UserFileBody(Body):
    """The file: all users and their policies."""

    users: list[UserInfo] = field(default_factory=list)
    acls: list[AclInfo] = field(default_factory=list)


def listed(content: bytes) -> list[Any]:
    """Return the list in an answer about users or policies; none if the body is empty.

    Args:
        content: The body.

    Raises:
        ProtocolError: It is not a list.
    """
    try:
        found = json.loads(content or b"[]")
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise ProtocolError("the answer is not a list")
    return found


def policy_type(text: str | None) -> PolicyType:
    """Return the type of a policy; raise ConfigError if the word is unknown."""
    found = _word(PolicyType, text or PolicyType.CUSTOM)
    if found is None:
        raise ConfigError("policyType", text, f"must be one of {', '.join(PolicyType)}")
    return found


def user_type(text: str | None, default: UserType = UserType.NORMAL) -> UserType:
    """Return the type of a user; raise ConfigError if the word is unknown."""
    found = _word(UserType, text or default)
    if found is None:
        raise ConfigError("userType", text, f"must be one of {', '.join(UserType)}")
    return found


def user_status(text: str | None, default: UserStatus = UserStatus.ENABLED) -> UserStatus:
    """Return the status of a user; raise ConfigError if the word is unknown."""
    found = _word(UserStatus, text or default)
    if found is None:
        raise ConfigError("userStatus", text, f"must be one of {', '.join(UserStatus)}")
    return found


def check_user_name(name: str) -> str:
    """Return the name of a user; raise ConfigError if it is not allowed."""
    if not USER_NAME.fullmatch(name):
        raise ConfigError(
            "username", name, "a user name must have 1 to 64 letters, digits and . _ @ -"
        )
    return name


def check_password(password: object) -> str:
    """Return a new password; raise ConfigError, which does not show it, if it is not allowed."""
    if not isinstance(password, str) or not password:
        raise ConfigError("password", "", "password can not be blank")
    size = len(password.encode("utf-8", "replace"))
    if not PASSWORD_MIN <= size <= PASSWORD_MAX or not password.isprintable():
        allowed = f"a password must have {PASSWORD_MIN} to {PASSWORD_MAX} printable characters"
        raise ConfigError("password", HIDDEN, allowed)
    if password in SAMPLE_PASSWORDS or len(set(password)) == 1:
        raise ConfigError("password", HIDDEN, "choose a password that is not easy to guess")
    return password


def _word(kind: type[Word], text: str) -> Word | None:
    """Return the member of an enumeration with this value, in any case; None if there is none."""
    return next((member for member in kind if member.lower() == text.strip().lower()), None)
