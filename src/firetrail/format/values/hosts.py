"""Hosts as records and message ids hold them: the address, then the port as an int32.

::

    IPv4   address 4   port 4      8 bytes
    IPv6   address 16  port 4     20 bytes

The bytes do not show which of the two it is: a record has that in its sys flag, a message id in its
length.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import TYPE_CHECKING, NamedTuple

from firetrail.errors import FormatError
from firetrail.format.layout import HOST_V4_SIZE, HOST_V6_SIZE, Layout
from firetrail.format.values.integers import number_in
from firetrail.format.values.layout_codec import unpack_fields

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

HOST_V4 = Layout(address="4s", port="i")
HOST_V6 = Layout(address="16s", port="i")
PORT_MAX = 65535

_MAPPED_V4 = bytes(10) + b"\xff\xff"

assert (HOST_V4.size, HOST_V6.size) == (HOST_V4_SIZE, HOST_V6_SIZE)


class Host(NamedTuple):
    """An IP address and a port.

    Attributes:
        ip: The IPv4 or IPv6 address as text.
        port: The port, from 0 to 65535.
    """

    ip: str
    port: int

    @property
    def is_v6(self) -> bool:
        return ":" in self.ip

    def __str__(self) -> str:
        return format_host(self)


@lru_cache(maxsize=1024)
def encode_host(host: Host) -> bytes:
    """Return the 8 bytes of an IPv4 host or the 20 bytes of an IPv6 host.

    The results are cached, because most messages come from few hosts.
    """
    layout = HOST_V6 if host.is_v6 else HOST_V4
    port = _checked_port(host.port, layout.offsets["port"])
    return layout.struct.pack(pack_ip(host.ip), port)


def decode_host(buffer: ReadableBuffer, at: int, is_v6: bool) -> Host:
    """Return the host whose bytes start at ``at``."""
    layout = HOST_V6 if is_v6 else HOST_V4
    address, port = unpack_fields(layout, "host", buffer, at)
    return Host(unpack_ip(address), _checked_port(port, at + layout.offsets["port"]))


def parse_host(text: str) -> Host:
    """Return the host that a text such as ``1.2.3.4:10911`` or ``[::1]:10911`` names."""
    ip, colon, port = text.rpartition(":")
    bracketed = ip.startswith("[") and ip.endswith("]")
    if not colon or bracketed != (":" in ip):
        raise FormatError("host", 0, f"{text!r} is not ip:port or [ipv6]:port")
    port_at = len(ip) + 1
    number = number_in(port, 0)
    if number is None:
        raise FormatError("port", port_at, f"{port!r} is not a number in 0..{PORT_MAX}")
    ip = ip[1:-1] if bracketed else ip
    return Host(unpack_ip(pack_ip(ip)), _checked_port(number, port_at))


def format_host(host: Host) -> str:
    """Return the text of a host in the form that :func:`parse_host` reads."""
    return f"[{host.ip}]:{host.port}" if host.is_v6 else f"{host.ip}:{host.port}"


def pack_ip(ip: str) -> bytes:
    """Return the 4 or 16 bytes of an address that is given as text."""
    try:
        if "%" in ip:  # a scope is not part of the bytes
            raise AddressValueError
        return (IPv6Address(ip) if ":" in ip else IPv4Address(ip)).packed
    except AddressValueError:
        raise FormatError("address", 0, f"{ip!r} is not an IPv4 or IPv6 address") from None


def unpack_ip(address: bytes) -> str:
    """Return the text of an address that is given as 4 or 16 bytes."""
    if len(address) == 4:
        return _dotted(address)
    if address.startswith(_MAPPED_V4):  # Python versions differ in how they write these
        return f"::ffff:{_dotted(address[len(_MAPPED_V4) :])}"
    return str(IPv6Address(address))


def _dotted(address: bytes) -> str:
    return ".".join(map(str, address))


def _checked_port(port: int, at: int) -> int:
    if not 0 <= port <= PORT_MAX:
        raise FormatError("port", at, f"{port} is not in 0..{PORT_MAX}")
    return port
