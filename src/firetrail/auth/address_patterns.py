"""The patterns of client addresses in the white lists of RocketMQ's ACL 1.0.

========================================== =====================================================
``*``, ``*.*.*.*``, ``*:*:*:*:*:*:*:*``    every address
``10.1.2.3``, ``fe80::1``                  one address
``10.1.2.3,10.1.2.4,::1``                  several
``10.1.2.{3,4}``, ``fe80::{a,b}``          several that differ in the last part
``10.1.*``, ``10.1.2-9.*``, ``10.1.2.3-9`` a range: everything after the first ``*`` or ``-`` counts
                                           as ``*``
``fe80::5:*``, ``fe80::5:1-200``           the same with eight groups, in hexadecimal
========================================== =====================================================

Every pattern is a list of ranges of addresses. An empty pattern matches no address.
"""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple, Self

from firetrail.auth.policies import IPAddress, parse_address
from firetrail.errors import ConfigError

PATTERN_MAX = 1_000
"""Maximum length of a pattern."""
EVERYBODY = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
_EXAMPLES = "an address, or a pattern such as 10.1.*.*, 10.1.2.3-9 or 10.1.2.{3,4}"
_LAST_PARTS = re.compile(r"(.+[.:])\{([^{}]+)\}")


class _AddressFamily(NamedTuple):
    """The notation of the addresses of a version."""

    parts: int
    base: int
    part_max: int
    separator: str
    digits: re.Pattern[str]


_V4 = _AddressFamily(4, 10, 255, ".", re.compile("[0-9]{1,3}"))
_V6 = _AddressFamily(8, 16, 0xFFFF, ":", re.compile("[0-9a-fA-F]{1,4}"))


class AddressRange(NamedTuple):
    """All addresses of a version from the first to the last."""

    first: IPAddress
    last: IPAddress


@dataclass(frozen=True, slots=True)
class AddressPattern:
    """Addresses of clients.

    Attributes:
        text: The pattern as it was written.
        ranges: The addresses; None for all.
    """

    text: str
    ranges: tuple[AddressRange, ...] | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a pattern; raise ConfigError if it is not one."""
        text = text.strip()
        if text in EVERYBODY:
            return cls(text, None)
        try:
            if len(text) > PATTERN_MAX:
                raise ValueError
            return cls(text, tuple(_range(each) for each in _alternatives(text)))
        except ValueError:
            raise ConfigError("white address", text, f"must be {_EXAMPLES}") from None

    def matches(self, source: str) -> bool:
        """Return whether the IP address of a client is one of them."""
        if self.ranges is None:
            return True
        address = parse_address(source) if self.ranges else None
        return address is not None and any(
            int(first) <= int(address) <= int(last)
            for first, last in self.ranges
            if first.version == address.version
        )


def _alternatives(text: str) -> list[str]:
    if not text:
        return []
    last_parts = _LAST_PARTS.fullmatch(text)
    if last_parts is None:
        return [each.strip() for each in text.split(",")]
    start, ends = last_parts.groups()
    return [start + each.strip() for each in ends.split(",")]


def _range(text: str) -> AddressRange:
    """Return the range of one pattern; raise ValueError if it is not one."""
    if "*" not in text and "-" not in text:
        address = parse_address(str(ip_address(text)))
        assert address is not None
        return AddressRange(address, address)
    family = _V6 if ":" in text else _V4
    low: list[int] = []
    high: list[int] = []
    is_open = False
    for number, part in enumerate(_parts(text, family)):
        first, last = _bounds(part, family)
        if number == 0 and not family.digits.fullmatch(part):
            raise ValueError
        low.append(0 if is_open else first)
        high.append(family.part_max if is_open else last)
        is_open = is_open or not family.digits.fullmatch(part)
    missing = family.parts - len(low)
    low += [0] * missing
    high += [family.part_max] * missing
    return AddressRange(_address(low, family), _address(high, family))


def _parts(text: str, family: _AddressFamily) -> list[str]:
    """Return the parts of a pattern; those that ``::`` leaves out are zeros."""
    left, gap, right = text.partition("::") if family is _V6 else (text, "", "")
    parts = left.split(family.separator) if left else []
    if gap:
        ending = right.split(family.separator) if right else []
        parts += ["0"] * (family.parts - len(parts) - len(ending)) + ending
    if len(parts) > family.parts or (len(parts) < family.parts and parts[-1] != "*"):
        raise ValueError
    return parts


def _bounds(part: str, family: _AddressFamily) -> tuple[int, int]:
    """Return the smallest and the largest value of a part."""
    if part == "*":
        return 0, family.part_max
    first, dash, last = part.partition("-")
    if not dash:
        last = first
    if not family.digits.fullmatch(first) or not family.digits.fullmatch(last):
        raise ValueError
    bounds = int(first, family.base), int(last, family.base)
    if not bounds[0] <= bounds[1] <= family.part_max:
        raise ValueError
    return bounds


def _address(parts: list[int], family: _AddressFamily) -> IPAddress:
    value = 0
    for part in parts:
        value = value * (family.part_max + 1) + part
    return IPv6Address(value) if family is _V6 else IPv4Address(value)
