"""Headers with types: what a request or response carries besides its body, declared once.

A header is a frozen dataclass. Its fields stand on the wire as text under the camel-case form of
their names; a field without a default has to be there. ``int`` is a 32-bit number, ``Long`` one of
64 bits, ``bool`` is "true" or "false".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_args, get_type_hints

from firetrail.errors import RequestError
from firetrail.remoting.codes import ResponseCode

Long = Annotated[int, "64 bits"]
_PLANS: dict[type[Header], tuple[_Field, ...]] = {}
_QUICK: dict[type[Header], Callable[..., Any]] = {}


class _Field(NamedTuple):
    name: str
    wire: str
    parse: Callable[[str], Any]
    default: Any


def _integer(bits: int) -> Callable[[str], int]:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError
        return value

    return parse


_TRUE = ("1", "true", "True", "TRUE")
"""Some clients write 1."""
_PARSERS: dict[Any, Callable[[str], Any]] = {
    str: str,
    int: _integer(32),
    Long: _integer(64),
    bool: lambda text: text in _TRUE,
}
_BITS = {_PARSERS[int]: 32, _PARSERS[Long]: 64}
_KINDS = {int: "a 32-bit number", Long: "a 64-bit number"}


def _plan(kind: type[Header]) -> tuple[_Field, ...]:
    """How the fields of a header stand on the wire; found out once."""
    plan = _PLANS.get(kind)
    if plan is None:
        plan = _PLANS[kind] = tuple(_fields(kind))
    return plan


def _fields(kind: type[Header]) -> Iterator[_Field]:
    hints = get_type_hints(kind, include_extras=True)
    for position, declared in enumerate(fields(kind)):
        hint = hints[declared.name]
        parse = _PARSERS[get_args(hint)[0] if hint not in _PARSERS else hint]  # or None
        wire = kind.SHORT[position] if kind.SHORT else camel(declared.name)
        yield _Field(declared.name, wire, parse, declared.default)


def camel(name: str) -> str:
    """The name of a field on the wire: ``queue_id`` is ``queueId``."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _quick_decoder(kind: type[Header]) -> Callable[..., Any]:
    """A function that makes a header of a class from ``wire.get``, for fields that are all right.

    It is written for the class, a line for each field, because it runs for every request. Where a
    field is missing or out of range it returns None or fails, and the careful way says why.
    """
    lines = ["def quick(kind, get):"]
    names: dict[str, Any] = {}
    for number, field in enumerate(_plan(kind)):
        value, default = f"v{number}", f"d{number}"
        names[default] = None if field.default is MISSING else field.default
        lines.append(f" {value} = get({field.wire!r})")
        if field.default is MISSING:
            lines.append(f" if {value} is None: return None")
        elif field.default is not None:
            lines.append(f" if {value} is None: {value} = {default}")
        bits = _BITS.get(field.parse)
        if bits is not None:
            guard = f" if {value} is not None and {value} is not {default}:"
            check = f"  if not {-(1 << bits - 1)} <= {value} <= {(1 << bits - 1) - 1}: return None"
            lines += [guard, f"  {value} = int({value})", check]
        elif field.parse is _PARSERS[bool]:
            lines.append(f" if type({value}) is str: {value} = {value} in TRUE")
    arguments = ", ".join(f"v{number}" for number in range(len(_plan(kind))))
    lines.append(f" return kind({arguments})")
    names["TRUE"] = _TRUE
    exec("\n".join(lines), names)
    quick: Callable[..., Any] = names["quick"]
    return quick


@dataclass(frozen=True, slots=True)
class Header:
    """The base of all headers."""

    SHORT: ClassVar[str] = ""
    """One letter a field, for the headers that save room."""

    @classmethod
    def decode(cls, wire: Mapping[str, str]) -> Self:
        """The header in the fields of a command; RequestError if one is missing or wrong."""
        quick = _QUICK.get(cls)
        if quick is None:
            quick = _QUICK[cls] = _quick_decoder(cls)
        try:
            found: Self | None = quick(cls, wire.get)
        except (TypeError, ValueError):
            found = None
        return found if found is not None else cls._decode_carefully(wire)

    @classmethod
    def _decode_carefully(cls, wire: Mapping[str, str]) -> Self:
        """The same one by one; it knows what is wrong with a field."""
        values = []
        for field in _plan(cls):
            text = wire.get(field.wire)
            if text is None:
                if field.default is MISSING:
                    raise _wrong(cls, field, "is missing")
                values.append(field.default)
                continue
            try:
                values.append(field.parse(text))
            except ValueError:
                raise _wrong(cls, field, f"is {text!r:.50}") from None
        return cls(*values)

    def encode(self) -> dict[str, str]:
        """The fields of a command; those that are None are left out."""
        found = {}
        for field in _plan(type(self)):
            value = getattr(self, field.name)
            if value is not None:
                text = ("true" if value else "false") if isinstance(value, bool) else str(value)
                found[field.wire] = text
        return found


def _wrong(kind: type[Header], field: _Field, what: str) -> RequestError:
    parser = field.parse
    expected = next((name for t, name in _KINDS.items() if _PARSERS[t] is parser), "text")
    return RequestError(
        ResponseCode.SYSTEM_ERROR,
        f"the field {field.wire} of {kind.__name__} {what}; it has to be {expected}",
    )
