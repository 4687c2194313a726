"""Attributes of topics and groups, as RocketMQ 5.x has them: ``+message.type=FIFO,-reserve.time``.

A request marks attributes to add or change with ``+`` and attributes to delete with ``-``. The
attributes are stored and returned without these signs.
"""

from collections.abc import Mapping
from typing import NamedTuple

from firetrail.errors import RequestError
from firetrail.format.message_types import TYPE_ATTRIBUTE, MessageType
from firetrail.format.values.integers import number_in
from firetrail.remoting.wire.codes import ResponseCode

ADD, DROP = "+", "-"
PRIORITY_FACTOR = 100
"""The default of a group's attribute ``priority.factor``."""


class Attribute(NamedTuple):
    """The allowed values of an attribute, and whether they can be changed later."""

    values: frozenset[str] = frozenset()
    """The allowed words; empty for an attribute whose values are numbers."""
    changeable: bool = True
    known: frozenset[str] = frozenset()
    """Further values of RocketMQ, which Firetrail does not support."""

    def refusal(self, value: str) -> str:
        """Return why this value is not allowed; empty if it is allowed."""
        if value in self.known:
            return "is not supported by Firetrail"
        if not self.values:
            return "must be a number, at least -1" if number_in(value, -1) is None else ""
        return "" if value in self.values else f"must be one of {', '.join(sorted(self.values))}"


ATTRIBUTES: Mapping[str, Attribute] = {
    "queue.type": Attribute(frozenset({"SimpleCQ"}), False, frozenset({"BatchCQ", "RocksDBCQ"})),
    "cleanup.policy": Attribute(frozenset({"DELETE"}), False, frozenset({"COMPACTION"})),
    TYPE_ATTRIBUTE: Attribute(
        frozenset(MessageType) - {MessageType.LITE}, known=frozenset({MessageType.LITE})
    ),
    "reserve.time": Attribute(),
}


def unsupported_value(attributes: Mapping[str, str]) -> str | None:
    """Return ``name=value`` of an attribute that makes the broker refuse sends; None without one.

    Such a topic was created by a Java broker, with a log or queues of another kind.
    """
    for name in ("cleanup.policy", "queue.type"):
        value = attributes.get(name)
        if value in ATTRIBUTES[name].known:
            return f"{name}={value}"
    return None


def parse(text: str | None) -> dict[str, str]:
    """Return the changes in the field of a request: values by signed name."""
    changes: dict[str, str] = {}
    for word in (text or "").split(","):
        name, equals, value = word.strip().partition("=")
        if not name:
            continue
        if bool(equals) != name.startswith(ADD) or not name.startswith((ADD, DROP)):
            raise _refused(f"{word!r:.100} is neither +name=value nor -name")
        if name in changes:
            raise _refused(f"{name:.100} is given twice")
        changes[name] = value
    return changes


def altered(
    current: Mapping[str, str] | None, changes: Mapping[str, str], *, is_new: bool
) -> dict[str, str] | None:
    """Return the attributes of a topic after the changes; None if there are none.

    A change that is not allowed raises RequestError.
    """
    found = dict(current or {})
    for signed, value in changes.items():
        sign, name = signed[:1], signed[1:]
        attribute = ATTRIBUTES.get(name)
        if sign not in (ADD, DROP):
            raise _refused(f"wrong format key: {signed:.100}; write +name=value or -name")
        if attribute is None:
            raise _refused(f"unsupported key: {name:.100}; known keys are {', '.join(ATTRIBUTES)}")
        if not is_new and not attribute.changeable and found.get(name) != value:
            raise _refused(f"attempt to update an unchangeable attribute. key: {name}")
        if sign == ADD:
            if refusal := attribute.refusal(value):
                raise _refused(f"{name}={value:.100} {refusal}")
            found[name] = value
        elif found.pop(name, None) is None:
            raise _refused(f"attempt to delete a nonexistent key: {name}")
    return found or None


def altered_of_group(
    current: Mapping[str, str] | None, changes: Mapping[str, str] | None
) -> dict[str, str] | None:
    """Return the attributes of a consumer group after the changes; None if there are none.

    Only ``priority.factor`` has an effect here, but every name and value is kept. A name without a
    sign counts as one with ``+``: tools send attributes back as they have read them.
    """
    found = dict(current or {})
    for signed, value in (changes or {}).items():
        if signed.startswith(DROP):
            found.pop(signed[1:], None)
        else:
            found[signed.removeprefix(ADD)] = value
    return found or None


def priority_factor(attributes: Mapping[str, str] | None) -> int:
    """Return the percentage of a group's pops that take messages with high priorities first."""
    factor = number_in((attributes or {}).get("priority.factor"), 0)
    return PRIORITY_FACTOR if factor is None else factor


def _refused(why: str) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, f"attributes of the topic: {why}")
