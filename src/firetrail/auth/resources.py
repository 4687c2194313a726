"""Resources, and the actions on them that policies allow or deny.

A resource is written as ``Topic:orders`` (one name), ``Topic:ord*`` (a prefix), ``Topic:*`` (all
names of a type) or ``*`` (everything).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Self

from firetrail.errors import ConfigError

NAME_MAX = 255
"""Maximum length of a resource name: no topic or group has a longer one."""
WHOLE = "*"
"""The name of a need for all resources of a type, such as the list of all topics."""


class ResourceType(StrEnum):
    """The type of a resource."""

    CLUSTER = "Cluster"
    TOPIC = "Topic"
    GROUP = "Group"


class Action(StrEnum):
    """An action on a resource."""

    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"
    ALL = "All"
    """In a policy: every action."""

    @classmethod
    def parse(cls, text: str) -> Action:
        """Return the action with this name, in any case; raise ConfigError if there is none."""
        found = _ACTIONS.get(text.strip().lower())
        if found is None:
            raise ConfigError("action", text, f"must be one of {', '.join(cls)}")
        return found


_ACTIONS = {action.lower(): action for action in Action}
_TYPES = {kind.lower(): kind for kind in ResourceType}


class MatchKind(StrEnum):
    """The way in which a policy entry names resources; the first is the most specific."""

    LITERAL = "literal"
    PREFIX = "prefix"
    TYPE = "type"
    EVERYTHING = "everything"


@dataclass(frozen=True, slots=True)
class Resource:
    """The resources that an entry of a policy is about.

    Attributes:
        match: How they are named.
        kind: Their type; None for everything.
        name: The name or the prefix; empty for a whole type and for everything.
    """

    match: MatchKind
    kind: ResourceType | None = None
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a resource; raise ConfigError if it is not one."""
        text = text.strip()
        if text == WHOLE:
            return cls(MatchKind.EVERYTHING)
        word, colon, name = text.partition(":")
        kind = _TYPES.get(word.strip().lower())
        if not colon or kind is None:
            raise ConfigError("resource", text, f"must be * or {', '.join(ResourceType)}:name")
        if not name or len(name) > NAME_MAX or not name.isprintable() or " " in name:
            raise ConfigError("resource", text, f"the name must have 1 to {NAME_MAX} characters")
        if name == WHOLE:
            return cls(MatchKind.TYPE, kind)
        if WHOLE in name[:-1]:
            raise ConfigError("resource", text, "an asterisk is allowed only at the end")
        if name.endswith(WHOLE):
            return cls(MatchKind.PREFIX, kind, name[:-1])
        return cls(MatchKind.LITERAL, kind, name)

    def __str__(self) -> str:
        if self.kind is None:
            return WHOLE
        ending = "" if self.match is MatchKind.LITERAL else WHOLE
        return f"{self.kind}:{self.name}{ending}"


@dataclass(frozen=True)
class Requirement:
    """A permission that a request requires: at least one of several actions on one resource.

    Attributes:
        kind: The type of the resource.
        name: Its name; ``*`` for all resources of the type.
        actions: The actions, of which one has to be allowed.
        explicit: The prefix that the resource of an entry must have to count: internal topics are
            not part of ``Topic:*``. Default: every entry counts.
        otherwise: Another need that is sufficient as well, unless an entry denies the first.
    """

    kind: ResourceType
    name: str
    actions: frozenset[Action]
    explicit: str = ""
    otherwise: Requirement | None = None

    @cached_property
    def resource(self) -> str:
        """The resource as text, for messages."""
        return f"{self.kind}:{self.name}"

    @cached_property
    def described(self) -> str:
        """The requirement as a text for people: ``Sub or Get on Topic:orders``."""
        actions = " or ".join(action for action in Action if action in self.actions)
        other = f", or {self.otherwise.described}" if self.otherwise is not None else ""
        return f"{actions} on {self.resource}{other}"


def need(kind: ResourceType, name: str, *actions: Action) -> Requirement:
    """Return the need for one of the actions on a resource.

    The last 4,096 are kept, but none with a name that is too long for a topic or a group: clients
    choose the names.
    """
    return (_kept_need if len(name) <= NAME_MAX else _new_need)(kind, name, *actions)


def _new_need(kind: ResourceType, name: str, *actions: Action) -> Requirement:
    return Requirement(kind, name, frozenset(actions))


_kept_need = lru_cache(4096)(_new_need)
