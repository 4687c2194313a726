"""The header of a frame in RocketMQ's binary form.

::

    code       int16
    language   1 byte
    version    int16
    opaque     int32
    flag       int32
    remark     int32 length, then UTF-8
    fields     int32 length of all, then for each: int16 length, name, int32 length, value

Codes above 32767 (POP) cannot be encoded in this form.
"""

from struct import Struct
from struct import error as StructError

from firetrail.errors import ProtocolError
from firetrail.remoting.wire.codes import Serialize
from firetrail.remoting.wire.command import RemotingCommand

_HEAD = Struct(">hBhiii")
_INT = Struct(">i")
_SHORT = Struct(">h")
_unpack_int = _INT.unpack_from


def decode(header: bytes, body: bytes) -> RemotingCommand:
    """Decode a command from its header and body."""
    if len(header) < _HEAD.size + _INT.size:
        raise ProtocolError(f"a binary header of {len(header)} bytes is cut off")
    code, language, version, opaque, flag, remark_size = _HEAD.unpack_from(header)
    at = _HEAD.size
    remark_end = _end(header, at, remark_size, "the remark")
    remark = _text(header[at:remark_end], "the remark") if remark_size else None
    if len(header) - remark_end < _INT.size:
        raise ProtocolError("a binary header ends after its remark")
    (fields_size,) = _INT.unpack_from(header, remark_end)
    at = remark_end + _INT.size
    end = _end(header, at, fields_size, "the fields")
    fields = _fields(header, at, end)
    return RemotingCommand(
        code=code,
        fields=fields,
        body=body,
        remark=remark,
        opaque=opaque,
        flag=flag,
        language=language,
        version=version,
        serialize=Serialize.ROCKETMQ,
    )


def _fields(header: bytes, at: int, end: int) -> dict[str, str]:
    found = {}
    try:
        while at < end:
            value_at = at + 6 + (header[at] << 8 | header[at + 1])
            (size,) = _unpack_int(header, value_at - 4)
            name = header[at + 2 : value_at - 4].decode()
            at = value_at + size
            if size < 0 or at > end:
                raise ProtocolError(f"the field {name:.50} has {size} bytes, more than are left")
            found[name] = header[value_at:at].decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a field in the header is not UTF-8: {error.reason}") from None
    except (IndexError, StructError):
        raise ProtocolError("a field in the header is cut off") from None
    return found


def _end(header: bytes, at: int, size: int, what: str) -> int:
    if not 0 <= size <= len(header) - at:
        raise ProtocolError(f"{what} has {size} bytes where {len(header) - at} are left")
    return at + size


def _text(raw: bytes, what: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"{what} in the header is not UTF-8: {error.reason}") from None


def encode(command: RemotingCommand) -> bytes:
    """Encode the header of a command; raise ProtocolError if it has no binary form."""
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
        raise ProtocolError(f"code {command.code} does not fit into a binary header; use JSON")
    head = _HEAD.pack(
        command.code, command.language, command.version, command.opaque, command.flag, len(remark)
    )
    return b"".join((head, remark, _INT.pack(len(fields)), fields))
