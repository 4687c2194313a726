"""Typed bodies: the JSON bodies of commands, declared once and used for encoding and decoding.

A body is a frozen dataclass. In JSON its fields have the camel-case form of their names (or the
name given with :func:`named`), in alphabetical order, as fastjson writes them; fields that are None
are left out. If a member is missing or null, its field gets the default. Without a default, or with
a value of another type, the body is rejected. Unknown members are ignored, so that newer peers may
send more.

Some peers write numbers and truth values as text, and enums as ordinals, which is accepted. Maps
may have whole bodies as keys, which only fastjson reads and writes.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import StrEnum
from typing import (
    Any,
    ClassVar,
    NamedTuple,
    NoReturn,
    Self,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from firetrail.errors import FormatError, ProtocolError
from firetrail.format.files import config_json
from firetrail.format.files.config_json import ObjectKey
from firetrail.format.values.integers import INT64_MAX, INT64_MIN, number_in
from firetrail.format.values.truths import truth_of_peer
from firetrail.text import camel

Read = Callable[[Any, str], Any]
"""Converts a parsed JSON value; the text is its place, for error messages."""

DIALECT_MAX = 64 << 10
"""Bytes of a body in fastjson's dialect. Only a parser in Python reads it, at up to 1.6 s per MiB,
so a larger body in a request would stop the event loop."""

_PLANS: dict[type[Body], tuple[_Member, ...]] = {}
_ORDERS: dict[type[Body], tuple[tuple[str, str], ...]] = {}
_PLAIN = frozenset({int, str})  # types whose values need no conversion


class _Member(NamedTuple):
    name: str
    wire: str
    read: Read
    declared: Field[Any]


def named(wire: str) -> Any:
    """Declare a field whose name on the wire is not the camel-case form of its own."""
    return field(metadata={"wire": wire})


@dataclass(frozen=True, slots=True)
class Body:
    """The base class of all bodies, and of the objects in them."""

    dialect_max: ClassVar[int] = DIALECT_MAX
    """Bytes that are parsed if the body is not standard JSON. Tables with numbers or objects as
    keys, which servers send to clients, allow more."""

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Decode the body of a command; raise ProtocolError if it is invalid."""
        return cls.from_json(loads(raw, cls.__name__, cls.dialect_max))

    @classmethod
    def from_json(cls, value: Any, where: str = "") -> Self:
        """Convert parsed JSON; ``where`` is its place, for error messages."""
        where = where or cls.__name__
        if not isinstance(value, dict):
            _reject(value, where, "an object")
        values = []
        for member in _plan(cls):
            found = value.get(member.wire)
            if found is not None:
                values.append(member.read(found, f"{where}.{member.wire}"))
            else:
                values.append(_default(member, where))
        return cls(*values)

    def encode(self, *, standard: bool = False) -> bytes:
        """Encode the body of a command, without spaces.

        The result is fastjson's dialect, which has integer keys without quotes. With ``standard``
        it is plain JSON, which cannot represent a body with objects as keys.
        """
        value = self.to_json()
        return (_STANDARD(value) if standard else config_json.compact(value)).encode(
            "utf-8", "replace"
        )

    def to_json(self) -> dict[str, Any]:
        """Convert to dicts, lists and plain values, which ``config_json`` can write."""
        found = {}
        for wire, name in _ORDERS.get(type(self)) or _order(type(self)):
            value = getattr(self, name)
            if value is not None:
                found[wire] = value if type(value) in _PLAIN else _plain(value)
        return found


@dataclass(frozen=True, slots=True)
class ServerBody(Body):
    """A body that a client or a slave reads from the server that it has connected to.

    It may be in fastjson's dialect, however large it is: with numbers or objects as keys.
    """

    dialect_max: ClassVar[int] = 1 << 30


_STANDARD = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def loads(raw: bytes, what: str, dialect_max: int = DIALECT_MAX) -> Any:
    """Parse JSON of either dialect; raise ProtocolError, which names ``what`` was expected.

    More than ``dialect_max`` bytes have to be standard JSON.
    """
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as invalid:  # the slower parser knows fastjson
        if len(raw) > dialect_max:
            is_deep = isinstance(invalid, RecursionError)
            reason = "nested deeper than the parser can follow" if is_deep else str(invalid)
            raise ProtocolError(
                f"{what}: {len(raw)} bytes that are not standard JSON; at most {dialect_max} may "
                f"be in fastjson's dialect. {reason}"
            ) from None
        try:
            return config_json.loads(raw.rstrip(b"\0"))
        except FormatError as error:
            raise ProtocolError(f"{what}: {error}") from None


def _plan(kind: type[Body]) -> tuple[_Member, ...]:
    """Return the encoding of a body's fields; computed once per class."""
    plan = _PLANS.get(kind)
    if plan is None:
        plan = _PLANS[kind] = tuple(_members(kind))
    return plan


def _order(kind: type[Body]) -> tuple[tuple[str, str], ...]:
    """Return the names of the members, on the wire and here, in the order of the former."""
    order = _ORDERS[kind] = tuple(sorted((member.wire, member.name) for member in _plan(kind)))
    return order


def _members(kind: type[Body]) -> Iterator[_Member]:
    hints = get_type_hints(kind)
    for declared in fields(kind):
        wire = declared.metadata.get("wire") or camel(declared.name)
        yield _Member(declared.name, wire, _reader(hints[declared.name]), declared)


def _default(member: _Member, where: str) -> Any:
    declared = member.declared
    if declared.default is not MISSING:
        return declared.default
    if declared.default_factory is not MISSING:
        return declared.default_factory()
    raise ProtocolError(f"{where} has no {member.wire}, which is required")


def _plain(value: Any) -> Any:
    if isinstance(value, Body):
        return value.to_json()
    if isinstance(value, dict):
        return {_plain_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, StrEnum) else value


def _plain_key(key: Any) -> str | int | ObjectKey:
    if isinstance(key, Body):
        return ObjectKey(tuple(key.to_json().items()))
    return key  # type: ignore[no-any-return]


# -- reading ----------------------------------------------------------------------------------


def _reader(hint: Any) -> Read:
    """Return the function that converts a value to the declared type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):  # always "or None"; null is handled by the caller
        return _reader(arguments[0])
    if origin is list:
        return _list_reader(_reader(arguments[0]))
    if origin is dict:
        return _dict_reader(_key_reader(arguments[0]), _reader(arguments[1]))
    if hint is Any:
        return lambda value, where: value
    if issubclass(hint, Body):
        return hint.from_json  # type: ignore[no-any-return]
    if issubclass(hint, StrEnum):
        return _enum_reader(hint)
    return _SIMPLE[hint]


def _list_reader(item: Read) -> Read:
    def read(value: Any, where: str) -> list[Any]:
        if not isinstance(value, list):
            _reject(value, where, "a list")
        return [item(each, f"{where}[{at}]") for at, each in enumerate(value)]

    return read


def _dict_reader(key: Read, item: Read) -> Read:
    def read(value: Any, where: str) -> dict[Any, Any]:
        if not isinstance(value, dict):
            _reject(value, where, "an object")
        return {
            key(name, f"a key of {where}"): item(each, f"{where}[{name!r:.80}]")
            for name, each in value.items()
            if each is not None
        }

    return read


def _key_reader(hint: Any) -> Read:
    if not issubclass(hint, Body):
        return _reader(hint) if hint is not str else lambda value, where: str(value)

    def read(value: Any, where: str) -> Any:
        if isinstance(value, str):  # peers whose JSON allows only text as keys
            return hint.from_json(loads(value.encode(), where), where)
        if not isinstance(value, ObjectKey):
            _reject(value, where, "an object")
        return hint.from_json(dict(value.members), where)

    return read


def _enum_reader(kind: type[StrEnum]) -> Read:
    members = list(kind)

    def read(value: Any, where: str) -> StrEnum:
        if type(value) is int and 0 <= value < len(members):
            return members[value]
        if value not in members:
            _reject(value, where, "one of " + ", ".join(members))
        return kind(value)

    return read


def _integer(value: Any, where: str) -> int:
    if isinstance(value, str):
        value = number_in(value)
    if type(value) is not int or not INT64_MIN <= value <= INT64_MAX:
        _reject(value, where, "a 64-bit number")
    return value


def _real(value: Any, where: str) -> float:
    if type(value) not in (int, float):
        _reject(value, where, "a number")
    return float(value)


def _boolean(value: Any, where: str) -> bool:
    truth = truth_of_peer(value)
    if truth is None:
        _reject(value, where, "true or false")
    return truth


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        _reject(value, where, "text")
    return value


_SIMPLE: dict[Any, Read] = {int: _integer, float: _real, bool: _boolean, str: _text}


def _reject(value: Any, where: str, expected: str) -> NoReturn:
    raise ProtocolError(f"{where} must be {expected}, not {value!r:.80}")
