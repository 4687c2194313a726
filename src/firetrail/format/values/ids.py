"""Message ids: the offset id that a store assigns, and the unique id that a client assigns.

::

    offset id   store host 8 or 20   physical offset 8                        32 or 56 hex digits
    unique id   ip 4 or 16   pid 2   loader hash 4   ms in month 4   counter 2       the same

Both are upper-case hex and look alike: only the context of an id shows which one it is. Page:
``docs/format/message-ids.md``.
"""

import re
from typing import NamedTuple

from firetrail.errors import FormatError
from firetrail.format.layout import Layout
from firetrail.format.values.hosts import HOST_V4, HOST_V6, Host, decode_host, encode_host, pack_ip

PHYSICAL_OFFSET = Layout(physical_offset="q")
UNIQUE_TAIL = Layout(
    pid="H",  # low 16 bits of the process id
    loader_hash="I",  # tells apart class loaders of one process
    ms_since_month_start="I",
    counter="H",
)
ID_LENGTHS = tuple(2 * (host.size + PHYSICAL_OFFSET.size) for host in (HOST_V4, HOST_V6))
"""Numbers of hex digits of an id: with an IPv4 address, with an IPv6 address."""

_HEX = re.compile(r"[0-9a-fA-F]+")

assert UNIQUE_TAIL.size == PHYSICAL_OFFSET.size + 4  # both ids have the same two lengths


class MessageId(NamedTuple):
    """The parts of an offset id: the store that has the message, and its place in the log."""

    host: Host
    physical_offset: int


def encode_message_id(store_host: Host, physical_offset: int) -> str:
    """Return the offset id of the message at ``physical_offset`` of the store at ``store_host``."""
    if not 0 <= physical_offset < 1 << 63:
        at = 2 * (HOST_V6 if store_host.is_v6 else HOST_V4).size
        raise FormatError("message id physical offset", at, f"{physical_offset} is not in int64")
    offset = PHYSICAL_OFFSET.struct.pack(physical_offset)
    return (encode_host(store_host) + offset).hex().upper()


def decode_message_id(text: str) -> MessageId:
    """Return the host and the offset that an offset id contains."""
    raw = _unhex("message id", text)
    at = len(raw) - PHYSICAL_OFFSET.size
    (physical_offset,) = PHYSICAL_OFFSET.struct.unpack_from(raw, at)
    if physical_offset < 0:
        raise FormatError("message id physical offset", 2 * at, f"{physical_offset} is negative")
    return MessageId(decode_host(raw, 0, at == HOST_V6.size), physical_offset)


def encode_unique_id(
    ip: str, pid: int, loader_hash: int, ms_since_month_start: int, counter: int
) -> str:
    """Return a unique id. As in Java, values wider than their field lose their high bits."""
    tail = UNIQUE_TAIL.struct.pack(
        pid & 0xFFFF, loader_hash & 0xFFFFFFFF, ms_since_month_start & 0xFFFFFFFF, counter & 0xFFFF
    )
    return (pack_ip(ip) + tail).hex().upper()


def _unhex(what: str, text: str) -> bytes:
    if len(text) not in ID_LENGTHS:
        allowed = " or ".join(map(str, ID_LENGTHS))
        raise FormatError(what, 0, f"has {len(text)} characters, not {allowed}")
    digits = _HEX.match(text)
    end = digits.end() if digits else 0
    if end < len(text):
        raise FormatError(what, end, f"{text[end]!r} is not a hex digit")
    return bytes.fromhex(text)
