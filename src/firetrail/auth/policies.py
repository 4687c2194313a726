"""Users and their policies, and the one function that decides whether a user may do something.

A user has at most two policies: ``Custom``, and ``Default``, which is used if no entry of the first
applies. A policy has at most one entry per resource.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from firetrail.auth.resources import (
    NAME_MAX,
    Action,
    MatchKind,
    Requirement,
    Resource,
    ResourceType,
)
from firetrail.auth.signature import Verifier
from firetrail.errors import ConfigError

SUBJECT_PREFIX = "User:"
"""The prefix of user names where requests and messages name a subject."""
PASSWORD_MIN, PASSWORD_MAX = 12, 256
"""The length of a new password, in bytes."""
SAMPLE_PASSWORDS = frozenset({"12345678", "rocketmq", "rocketmq2", "RocketMQ", "123456789012"})
"""Passwords of RocketMQ's examples, which attackers try first."""
ENTRIES_MAX = 1_000
"""Maximum number of entries of a policy."""
GRANTS_MAX = 1_000
"""Maximum number of grants that are cached for a user."""

IPAddress = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class UserType(StrEnum):
    """The type of a user: normal, or super user."""

    SUPER = "Super"
    """Everything."""
    NORMAL = "Normal"
    """A user who may do what its policies allow."""


_SUPER = UserType.SUPER  # a member of an enum takes longer to find than a global name


class UserStatus(StrEnum):
    """Whether a user may connect."""

    ENABLED = "enable"
    DISABLED = "disable"


class Decision(StrEnum):
    """The decision of an entry of a policy."""

    ALLOW = "Allow"
    DENY = "Deny"


class PolicyType(StrEnum):
    """The type of a policy; a user has one of each."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """One line of a policy.

    Attributes:
        resource: The subject.
        actions: The actions that are allowed or denied.
        decision: Whether they are allowed or denied.
        sources: The addresses and networks of clients it applies to; none means all.
    """

    resource: Resource
    actions: frozenset[Action]
    decision: Decision
    sources: tuple[Network, ...] = ()

    def applies(self, wanted: Requirement, source: str) -> bool:
        """Return whether the entry decides about one of the actions, for a client's address."""
        if Action.ALL not in self.actions and self.actions.isdisjoint(wanted.actions):
            return False
        if not self.sources:
            return True
        address = parse_address(source)
        return address is not None and any(address in network for network in self.sources)


class Policy:
    """The entries of a policy, by their resources. An instance never changes.

    Raises:
        ConfigError: There are more than ``ENTRIES_MAX`` entries.
    """

    __slots__ = ("_everything", "_literals", "_prefixes", "_types", "entries")

    def __init__(self, entries: Iterable[PolicyEntry] = ()) -> None:
        by_resource = {entry.resource: entry for entry in entries}  # a later one replaces
        self.entries = tuple(by_resource.values())
        if len(self.entries) > ENTRIES_MAX:
            raise ConfigError("entries", len(self.entries), f"at most {ENTRIES_MAX} per policy")
        self._literals: dict[tuple[ResourceType, str], PolicyEntry] = {}
        self._prefixes: dict[ResourceType, list[PolicyEntry]] = {}
        self._types: dict[ResourceType, PolicyEntry] = {}
        self._everything: PolicyEntry | None = None
        for entry in self.entries:
            resource = entry.resource
            if resource.kind is None:
                self._everything = entry
            elif resource.match is MatchKind.LITERAL:
                self._literals[resource.kind, resource.name] = entry
            elif resource.match is MatchKind.PREFIX:
                self._prefixes.setdefault(resource.kind, []).append(entry)
            else:
                self._types[resource.kind] = entry
        for prefixes in self._prefixes.values():
            prefixes.sort(key=lambda entry: -len(entry.resource.name))

    def deciding(self, wanted: Requirement, source: str) -> PolicyEntry | None:
        """Return the most specific entry that applies; None if none does."""
        literal = self._literals.get((wanted.kind, wanted.name))
        if literal is not None and literal.applies(wanted, source):
            return literal
        for entry in self._wider(wanted):
            is_counted = entry.resource.name.startswith(wanted.explicit)
            if is_counted and entry.applies(wanted, source):
                return entry
        return None

    def _wider(self, wanted: Requirement) -> Iterator[PolicyEntry]:
        """Yield the entries for more than one name: longer prefixes, the type, everything."""
        for entry in self._prefixes.get(wanted.kind, ()):
            if wanted.name.startswith(entry.resource.name):
                yield entry
        if (of_type := self._types.get(wanted.kind)) is not None:
            yield of_type
        if self._everything is not None:
            yield self._everything

    def with_entries(self, entries: Iterable[PolicyEntry]) -> Policy:
        """Return the policy with more entries; they replace those with the same resource."""
        return Policy((*self.entries, *entries))

    def without(self, resource: Resource) -> Policy:
        """Return the policy without the entry for a resource."""
        return Policy(entry for entry in self.entries if entry.resource != resource)


AllowedRequest = tuple[int, str, tuple[str, ...]]
"""The code of a request, the IP address of the client, and the names in the request."""


@dataclass(frozen=True, slots=True)
class User:
    """A user.

    Attributes:
        name: The name, which is the access key of its clients.
        password: The secret key of its clients.
        type: Whether it may do everything.
        status: Whether it may connect.
        policies: Its policies; a super user needs none.
        verifier: Checks its signatures.
        grants: Requests that its policies allow, for :meth:`keep`. A user whose policies change
            becomes a new object, which has none.
    """

    name: str
    password: str = field(repr=False)
    type: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLED
    policies: tuple[Policy, Policy] = field(default=(Policy(), Policy()), repr=False)
    """The custom policy and the default policy."""
    verifier: Verifier = field(init=False, repr=False, compare=False)
    grants: set[AllowedRequest] = field(init=False, repr=False, compare=False, default_factory=set)

    def __post_init__(self) -> None:
        object.__setattr__(self, "verifier", Verifier(self.password))

    @property
    def subject(self) -> str:
        """The name in policies and messages."""
        return SUBJECT_PREFIX + self.name

    @property
    def is_super(self) -> bool:
        """Whether the user may do everything."""
        return self.type is _SUPER

    def keep(self, grant: AllowedRequest) -> None:
        """Note that the policies allow a request; nothing about it is checked again."""
        if any(len(name) > NAME_MAX for name in grant[2]):
            return
        if len(self.grants) >= GRANTS_MAX:
            self.grants.clear()
        self.grants.add(grant)

    def denial(self, wanted: Requirement, source: str, why: str) -> str:
        """Return the text of a refusal: RocketMQ's, and the permission that the request needs.

        Args:
            wanted: The permission that the user does not have.
            source: The IP address that the request came from.
            why: The reason why it does not have it.
        """
        return (
            f"{self.subject} has no permission to access {wanted.resource} from {source or '?'},"
            f" {why} The request needs {wanted.described}."
        )


def refusal(user: User, wanted: Requirement, source: str) -> str | None:
    """Return why a user may not do something; None if it may. This is the one decision.

    Args:
        user: The user.
        wanted: The permission that the request requires.
        source: The IP address that the request came from.
    """
    if user.is_super:
        return None
    for policy in user.policies:
        entry = policy.deciding(wanted, source)
        if entry is not None and entry.decision is Decision.ALLOW:
            return None
        if entry is not None:
            return user.denial(wanted, source, "the decision is deny.")
    if wanted.otherwise is not None and refusal(user, wanted.otherwise, source) is None:
        return None
    return user.denial(wanted, source, "no matched policies.")


@lru_cache(4096)
def parse_address(text: str) -> IPAddress | None:
    """Return an IP address, without the IPv6 form of an IPv4 address; None if it is invalid.

    The last 4,096 are kept.
    """
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


def parse_source(text: str) -> Network:
    """Return the network of an address or a CIDR; raise ConfigError if it is neither."""
    try:
        return ip_network(text.strip(), strict=False)
    except ValueError:
        raise ConfigError(
            "source ip", text, "must be an address or a network such as 10.0.0.0/8"
        ) from None


def source_text(network: Network) -> str:
    """Return a network as text; that of one address without its length."""
    return str(network.network_address if network.num_addresses == 1 else network)
