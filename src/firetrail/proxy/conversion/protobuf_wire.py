"""The wire format of protobuf, for common responses that are encoded without its objects."""

from functools import lru_cache

from firetrail.proxy.schema.messages import ProtoMessage

_REMEMBERED = 4096
"""Maximum number of cached encodings of numbers."""
_UINT64_MAX = 2**64 - 1
_LENGTH_DELIMITED = 2
"""The wire type of texts, bytes and messages. That of numbers is 0."""


class EncodedMessage(bytes):
    """An encoded message, in the place of its object."""

    def SerializeToString(self) -> bytes:
        """Return the encoded message."""
        return self


def int64(number: int) -> bytes:
    """Return a signed number as protobuf encodes it: 7 bits per byte, the lowest first."""
    number &= _UINT64_MAX
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


@lru_cache(maxsize=_REMEMBERED)
def varint(number: int) -> bytes:
    """Return the result of :func:`int64`, for numbers that occur often, such as lengths."""
    return int64(number)


def key_of(kind: type[ProtoMessage], name: str) -> bytes:
    """Return the bytes that begin a field of a message: its number and its wire type."""
    field = kind.DESCRIPTOR.fields_by_name[name]
    is_number = field.type in (field.TYPE_INT32, field.TYPE_INT64)
    return varint(field.number << 3 | (0 if is_number else _LENGTH_DELIMITED))


def field(key: bytes, content: bytes) -> bytes:
    """Return a field with a text, bytes or a message; ``key`` is the result of :func:`key_of`."""
    return key + varint(len(content)) + content
