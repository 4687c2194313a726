"""Values as text: numbers, dates and times in strings of JSON, in CSV and in CDC events.

::

    number     = ["-"|"+"] digits and at most one "." [("e"|"E") ["-"|"+"] digits]
    date       = YYYY-MM-DD
    timestamp  = date [("T"|" ") HH [":" MM [":" SS ["." digits]]] [zone]]
    zone       = "Z" | ("+"|"-") HH [[":"] MM]

Tables keep µs; further digits of a second are cut off. A timestamp without a zone is in the zone of
the options. Where clocks are set back, it is the earlier of the two instants.
"""

import base64
import binascii
import re
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Any

import pyarrow as pa

from firetrail.format.values.integers import INT64_MAX
from firetrail.format.values.truths import truth_in
from firetrail.pipeline.decoding.schema.arrow_types import (
    EXACT_WHOLE,
    INSTANT,
    LOCAL_TIME,
    WHOLE_LIMITS,
    ddl_type,
)

SHOWN_MAX = 60
"""Maximum length of a value in a reason, so that rejects of bulk data stay small."""
FLOAT_MAX = 3.4028235677973366e38
"""Numbers from here on are not finite as a ``float`` of 32 bits."""

FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The limits of times, in µs: the years 1 to 9999, as in Python and SQL."""

_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,5})?")
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIMESTAMP = re.compile(
    _DATE.pattern + r"(?:[T ]([0-9]{2})(?::([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?)?"
    r"(Z|[-+][0-9]{2}(?::?[0-9]{2})?)?)?"
)
_EPOCH = datetime(1970, 1, 1)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)


class BodyError(Exception):
    """A value does not fit its column. The text is the reason, without the name of the column."""


def quoted_value(value: object) -> str:
    """Return a value as text for a reason; for arrays and objects, only the kind."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | dict):
        return "an array" if isinstance(value, list) else "an object"
    text = repr(value) if isinstance(value, str | bytes) else str(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def type_error(value: object, kind: pa.DataType, why: str = "") -> BodyError:
    """Return the error for a value that is not of a type."""
    name = ddl_type(kind)
    article = "an" if name[0] in "aeiou" else "a"
    return BodyError(f"{quoted_value(value)} is not {article} {name}{why and ': '}{why}")


def in_range(value: int, kind: pa.DataType) -> int:
    """Return a whole number in the range of a type."""
    limit: int = WHOLE_LIMITS[kind]
    if value < -limit or value >= limit:
        raise type_error(value, kind, "it is out of range")
    return value


def exact_decimal(value: Decimal | int, kind: pa.DataType) -> Decimal:
    """Return a number as a decimal, never rounded."""
    number = Decimal(value)
    if not number.is_finite():
        raise type_error(value, kind)
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    if not any(digits):
        return Decimal(0)
    if exponent < -kind.scale and any(digits[kind.scale + exponent :]):
        raise type_error(value, kind, f"it has more than {kind.scale} digits after the point")
    if len(digits) + exponent > kind.precision - kind.scale:
        raise type_error(
            value, kind, f"it has more than {kind.precision - kind.scale} whole digits"
        )
    shift = exponent + kind.scale
    unscaled = digits[:shift] if shift < 0 else digits + (0,) * shift
    return Decimal((sign, unscaled or (0,), -kind.scale))


def finite(value: float | int | Decimal, kind: pa.DataType) -> float:
    """Return the nearest float.

    A number that is too large for it does not fit, nor does a whole number that would be rounded:
    it may be an id.
    """
    try:
        number = float(value)
    except OverflowError:
        number = float("inf")
    limit = FLOAT_MAX if kind == pa.float32() else float("inf")
    if not abs(number) < limit:
        raise type_error(value, kind, "it is out of range")
    if type(value) is int and abs(value) > EXACT_WHOLE[kind]:
        held = number if kind == pa.float64() else struct.unpack("f", struct.pack("f", number))[0]
        if int(held) != value:
            raise type_error(value, kind, "it would be rounded")
    return number


def number(text: str, kind: pa.DataType) -> Decimal:
    """Parse a number."""
    if not _NUMBER.fullmatch(text):
        raise type_error(text, kind)
    return Decimal(text)


def integral(value: Decimal, kind: pa.DataType) -> int:
    """Return a number that has a point or an exponent, but no fraction, as a whole number."""
    if abs(value) > INT64_MAX + 1 or value != int(value):
        raise type_error(value, kind)
    return in_range(int(value), kind)


def day(text: str, kind: pa.DataType) -> int:
    """Return a date as days since 1970."""
    match = _DATE.fullmatch(text)
    try:
        if match is not None:
            return date(int(match[1]), int(match[2]), int(match[3])).toordinal() - _EPOCH_DAY
    except ValueError:
        pass
    raise type_error(text, kind, "expected YYYY-MM-DD")


def microseconds(text: str, kind: pa.DataType, zone: tzinfo) -> int:
    """Return a time as µs since 1970.

    Args:
        text: The time. One in a ``timestamp_ntz`` must not name a zone.
        kind: ``timestamp`` or ``timestamp_ntz``.
        zone: The time zone of texts that name none.
    """
    match = _TIMESTAMP.fullmatch(text)
    try:
        if match is not None and (kind == INSTANT or match[8] is None):
            return in_calendar(_microseconds(match, kind, zone), kind)
    except (ValueError, OverflowError):
        pass
    form = "YYYY-MM-DD HH:MM:SS" + (" and an offset or none" if kind == INSTANT else "")
    raise type_error(text, kind, f"expected {form}")


def _microseconds(match: re.Match[str], kind: pa.DataType, zone: tzinfo) -> int:
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    fraction = int((match[7] or "").ljust(6, "0")[:6])
    local = datetime(year, month, day, hour, minute, second, fraction)
    if kind == LOCAL_TIME or match[8] == "Z":
        return (local - _EPOCH) // _MICROSECOND
    if match[8] is None:
        return local_instant(local, zone)
    hours, minutes = int(match[8][1:3]), int(match[8][3:].lstrip(":") or 0)
    if hours > 23 or minutes > 59:
        raise ValueError(match[8])
    offset = timedelta(hours=hours, minutes=minutes) * (-1 if match[8][0] == "-" else 1)
    return (local - offset - _EPOCH) // _MICROSECOND


def in_calendar(number: int, kind: pa.DataType) -> int:
    """Return a time in µs that is within the limits."""
    if not FIRST <= number <= LAST:
        raise type_error(number, kind, "it is not in the years 1 to 9999")
    return number


def local_instant(local: datetime, zone: tzinfo) -> int:
    """Return a local time of a zone as µs since 1970."""
    return (local.replace(tzinfo=zone) - _EPOCH.replace(tzinfo=UTC)) // _MICROSECOND


def base64_bytes(text: str, kind: pa.DataType) -> bytes:
    """Return the bytes that a text in base64 denotes."""
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise type_error(text, kind, "expected base64") from None


Converter = Callable[[Any], Any]
"""A function that returns a value for Arrow, or raises :class:`BodyError`."""


def from_text(kind: pa.DataType, zone: tzinfo) -> Converter | None:
    """Return the function that reads values of a scalar type from text; None for nested types.

    Args:
        kind: The type. Booleans are ``true`` and ``false``, binary is base64.
        zone: The time zone of times that name none.
    """
    if kind == pa.string():
        return lambda text: text
    if kind == pa.bool_():
        return lambda text: _boolean(text, kind)
    if kind in WHOLE_LIMITS:
        return lambda text: integral(number(text, kind), kind)
    if kind in (pa.float32(), pa.float64()):
        return lambda text: finite(number(text, kind), kind)
    if pa.types.is_decimal(kind):
        return lambda text: exact_decimal(number(text, kind), kind)
    if kind == pa.date32():
        return lambda text: day(text, kind)
    if kind in (INSTANT, LOCAL_TIME):
        return lambda text: microseconds(text, kind, zone)
    return (lambda text: base64_bytes(text, kind)) if kind == pa.binary() else None


def _boolean(text: str, kind: pa.DataType) -> bool:
    value = truth_in(text)
    if value is None:
        raise type_error(text, kind)
    return value
