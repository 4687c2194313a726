"""The header of a frame in RocketMQ's binary form.

::

    code       int16
    language   1 byte
    version    int16
    opaque     int32
    flag       int32
    remark     int32 length, then UTF-8
    fields     int32 length of all, then for each: int16 length, name, int32 length, value

Codes beyond 32767 (POP) have no binary form.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from firetrail.errors import ProtocolError
from firetrail.remoting.codes import Serialize
from firetrail.remoting.command import Command

_HEAD = Struct(">hBhiii")
_INT = Struct(">i")
_SHORT = Struct(">h")


def decode(header: bytes, body: bytes) -> Command:
    """The command with this header and body."""
    if len(header) < _HEAD.size + _INT.size:
        raise ProtocolError(f"a binary header of {len(header)} bytes is cut off")
    code, language, version, opaque, flag, remark_size = _HEAD.unpack_from(header)
    at = _HEAD.size
    remark_end = _end(header, at, remark_size, "the remark")
    remark = _text(header[at:remark_end], "the remark") if remark_size else None
    if len(header) - remark_end < _INT.size:
        raise ProtocolError("a binary header ends behind its remark")
    (fields_size,) = _INT.unpack_from(header, remark_end)
    at = remark_end + _INT.size
    end = _end(header, at, fields_size, "the fields")
    fields = dict(_fields(header, at, end))
    return Command(code, fields, body, remark, opaque, flag, language, version, Serialize.ROCKETMQ)


def _fields(header: bytes, at: int, end: int) -> Iterator[tuple[str, str]]:
    while at < end:
        if end - at < _SHORT.size:
            raise ProtocolError("a field is cut off")
        name_at = at + _SHORT.size
        name_end = _end(header[:end], name_at, _SHORT.unpack_from(header, at)[0], "a field's name")
        if end - name_end < _INT.size:
            raise ProtocolError("a field has no value")
        value_at = name_end + _INT.size
        size = _INT.unpack_from(header, name_end)[0]
        at = _end(header[:end], value_at, size, "a field's value")
        yield _text(header[name_at:name_end], "a name"), _text(header[value_at:at], "a value")


def _end(header: bytes, at: int, size: int, what: str) -> int:
    """Where ``size`` bytes from ``at`` on end."""
    if not 0 <= size <= len(header) - at:
        raise ProtocolError(f"{what} has {size} bytes where {len(header) - at} are left")
    return at + size


def _text(raw: bytes, what: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"{what} in the header is no UTF-8: {error.reason}") from None


def encode(command: Command) -> bytes:
    """The header of a command; ProtocolError if it has no binary form."""
    remark = (command.remark or "").encode("utf-8", "replace")
    parts = []
    for name, value in command.fields.items():
        raw_name = name.encode("utf-8", "replace")
        raw_value = value.encode("utf-8", "replace")
        if len(raw_name) > 0x7FFF:
            raise ProtocolError(f"the field name {name:.20}... is too long for a binary header")
        parts += [_SHORT.pack(len(raw_name)), raw_name, _INT.pack(len(raw_value)), raw_value]
    fields = b"".join(parts)
    if not -0x8000 <= command.code <= 0x7FFF:
        raise ProtocolError(f"code {command.code} has no place in a binary header; use JSON")
    head = _HEAD.pack(
        command.code,
        command.language,
        command.version,
        command.opaque,
        command.flag,
        len(remark),
    )
    return b"".join((head, remark, _INT.pack(len(fields)), fields))
