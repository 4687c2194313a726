"""Attributes of topics, as RocketMQ 5.x has them: ``+message.type=FIFO,-reserve.time``.

A request says what to add or change (``+``) and what to drop (``-``). What a topic has is kept and
told without the signs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from firetrail.errors import RequestError
from firetrail.format.config_json import INT64_MAX
from firetrail.remoting.codes import ResponseCode

ADD, DROP = "+", "-"


class Attribute(NamedTuple):
    """Which values an attribute takes, and whether they can be changed later."""

    values: frozenset[str] = frozenset()
    """None at all stands for numbers."""
    changeable: bool = True
    known: frozenset[str] = frozenset()
    """Further values of RocketMQ, which Firetrail does not support."""

    def refusal(self, value: str) -> str:
        """Why it does not take this value, nothing if it does."""
        if value in self.known:
            return "is not supported by Firetrail"
        if not self.values:
            number = int(value) if value.removeprefix("-").isdecimal() and value.isascii() else -2
            return "" if -1 <= number <= INT64_MAX else "has to be a number from -1 on"
        return "" if value in self.values else f"has to be one of {', '.join(sorted(self.values))}"


ATTRIBUTES: Mapping[str, Attribute] = {
    "queue.type": Attribute(frozenset({"SimpleCQ"}), False, frozenset({"BatchCQ", "RocksDBCQ"})),
    "cleanup.policy": Attribute(frozenset({"DELETE"}), False, frozenset({"COMPACTION"})),
    "message.type": Attribute(
        frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"}),
        known=frozenset({"PRIORITY", "LITE"}),
    ),
    "reserve.time": Attribute(),
}


def unsupported_value(attributes: Mapping[str, str]) -> str | None:
    """``name=value`` of what keeps messages out of the topic, None if nothing does.

    Such a topic is one that a Java broker has made, with a log or queues of another kind.
    """
    for name in ("cleanup.policy", "queue.type"):
        value = attributes.get(name)
        if value in ATTRIBUTES[name].known:
            return f"{name}={value}"
    return None


def parse(text: str | None) -> dict[str, str]:
    """The changes that the field of a request asks for, by name with sign."""
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
    """The attributes of a topic after the changes, None for none; RequestError if refused."""
    found = dict(current or {})
    for signed, value in changes.items():
        sign, name = signed[:1], signed[1:]
        attribute = ATTRIBUTES.get(name)
        if sign not in (ADD, DROP):
            raise _refused(f"wrong format key: {signed:.100}; write +name=value or -name")
        if attribute is None:
            raise _refused(f"unsupported key: {name:.100}; known are {', '.join(ATTRIBUTES)}")
        if not is_new and not attribute.changeable and found.get(name) != value:
            raise _refused(f"attempt to update an unchangeable attribute. key: {name}")
        if sign == ADD:
            if refusal := attribute.refusal(value):
                raise _refused(f"{name}={value:.100} {refusal}")
            found[name] = value
        elif found.pop(name, None) is None:
            raise _refused(f"attempt to delete a nonexistent key: {name}")
    return found or None


def _refused(why: str) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, f"attributes of the topic: {why}")
