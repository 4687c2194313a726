"""Typed headers: the fields of a request or response besides its body, declared once.

A header is a frozen dataclass. On the wire its fields are text, under the camel-case form of their
names; a field without a default is required. ``int`` is a 32-bit number, ``Long`` a 64-bit number,
``bool`` is "true" or "false". The text fields of a request say whether they are the name of a
topic, of a group or of something else, so that the audit log can contain the names in a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_args, get_type_hints

from firetrail.errors import RequestError
from firetrail.format.values.integers import INT32_MAX, INT32_MIN, INT64_MIN, parse_whole
from firetrail.format.values.truths import is_true_field
from firetrail.remoting.kernels.fields import BOOL, INT32, INT64, TEXT, fill_header
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.text import camel

Long = Annotated[int, "64 bits"]
TopicName = Annotated[str, "topic"]
GroupName = Annotated[str, "group"]
ShownName = Annotated[str, "a name that the audit log has under that of its field"]
OtherText = Annotated[str, "text that the audit log does not have"]
_PLANS: dict[type[Header], tuple[_Field, ...]] = {}
_QUICK: dict[type[Header], tuple[tuple[str, str, int, bool, Any], ...]] = {}


class _Field(NamedTuple):
    name: str
    wire: str
    kind: Any
    default: Any


_PARSERS: dict[Any, Callable[[str], Any]] = {
    str: str,
    int: lambda text: parse_whole(text, INT32_MIN, INT32_MAX),
    Long: lambda text: parse_whole(text, INT64_MIN),
    bool: is_true_field,
    **dict.fromkeys((TopicName, GroupName, ShownName, OtherText), str),
}
_SHOWN_AS = {TopicName: "topic", GroupName: "group"}
_QUICK_KINDS = {int: INT32, Long: INT64, bool: BOOL}
_KINDS = {int: "a 32-bit number", Long: "a 64-bit number"}


def _plan(kind: type[Header]) -> tuple[_Field, ...]:
    """Return the encoding of a header's fields; computed once per class."""
    plan = _PLANS.get(kind)
    if plan is None:
        plan = _PLANS[kind] = tuple(_fields(kind))
    return plan


def _fields(kind: type[Header]) -> Iterator[_Field]:
    hints = get_type_hints(kind, include_extras=True)
    for position, declared in enumerate(fields(kind)):
        hint = hints[declared.name]
        value = get_args(hint)[0] if hint not in _PARSERS else hint  # without "or None"
        wire = kind.SHORT[position] if kind.SHORT else camel(declared.name)
        yield _Field(declared.name, wire, value, declared.default)


def _quick_plan(kind: type[Header]) -> tuple[tuple[str, str, int, bool, Any], ...]:
    """Return the plan of a header in the form that the kernel takes."""
    plan = _QUICK[kind] = tuple(
        (
            field.name,
            field.wire,
            _QUICK_KINDS.get(field.kind, TEXT),
            field.default is MISSING,
            field.default,
        )
        for field in _plan(kind)
    )
    return plan


@dataclass(frozen=True, slots=True)
class Header:
    """The base class of all headers."""

    SHORT: ClassVar[str] = ""
    """One letter per field, for headers with abbreviated names."""

    @classmethod
    def wire_name(cls, name: str) -> str:
        """Return the name of a field on the wire."""
        return next(field.wire for field in _plan(cls) if field.name == name)

    @classmethod
    def shown_names(cls) -> dict[str, str]:
        """Return the fields with names of topics, groups and other subjects, as events call them.

        Raises:
            ValueError: A field does not say whether its text is such a name.
        """
        plain = [field.name for field in _plan(cls) if field.kind is str]
        if plain:
            kinds = "a TopicName, GroupName, ShownName or OtherText"
            raise ValueError(f"declare each of {plain} of {cls.__name__} as {kinds}")
        return {
            field.wire: _SHOWN_AS.get(field.kind, camel(field.name))
            for field in _plan(cls)
            if field.kind in (TopicName, GroupName, ShownName)
        }

    @classmethod
    def decode(cls, wire: Mapping[str, str]) -> Self:
        """Decode the fields of a command; raise RequestError if one is missing or invalid."""
        if type(wire) is TypedFields and type(wire.header) is cls:
            return wire.header
        header = cls.__new__(cls)
        if fill_header(header, _QUICK.get(cls) or _quick_plan(cls), wire):
            return header
        return cls._decode_carefully(wire)

    @classmethod
    def _decode_carefully(cls, wire: Mapping[str, str]) -> Self:
        """Decode without the kernel, with an error message that names the invalid field."""
        values = []
        for field in _plan(cls):
            text = wire.get(field.wire)
            if text is None:
                if field.default is MISSING:
                    raise _invalid(cls, field, "is missing")
                values.append(field.default)
                continue
            try:
                values.append(_PARSERS[field.kind](text))
            except ValueError:
                raise _invalid(cls, field, f"is {text!r:.50}") from None
        return cls(*values)

    def encode(self) -> dict[str, str]:
        """Return the fields of a command; fields that are None are left out."""
        found = {}
        for name, wire, _, _ in _PLANS.get(type(self)) or _plan(type(self)):
            value = getattr(self, name)
            if value is None:
                continue
            if value is True:
                value = "true"
            elif value is False:
                value = "false"
            found[wire] = value if type(value) is str else str(value)
        return found


@dataclass(frozen=True, slots=True)
class NoHeader(Header):
    """The header of a request without fields."""


class TypedFields(Mapping[str, str]):
    """The fields of a command of this process, which are only encoded if anyone reads them.

    Args:
        header: The header.
    """

    __slots__ = ("_encoded", "header")

    def __init__(self, header: Header) -> None:
        self.header = header
        self._encoded: dict[str, str] | None = None

    @property
    def encoded(self) -> dict[str, str]:
        """The fields as they are sent to other processes."""
        if self._encoded is None:
            self._encoded = self.header.encode()
        return self._encoded

    def __getitem__(self, name: str) -> str:
        return self.encoded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.encoded)

    def __len__(self) -> int:
        return len(self.encoded)


def _invalid(kind: type[Header], field: _Field, what: str) -> RequestError:
    expected = _KINDS.get(field.kind, "text")
    return RequestError(
        ResponseCode.SYSTEM_ERROR,
        f"the field {field.wire} of {kind.__name__} {what}; it must be {expected}",
    )
