"""The mapping of gRPC's messages, deadlines and statuses to HTTP/2."""

import zlib
from struct import Struct
from urllib.parse import quote_from_bytes

from firetrail.errors import GrpcError
from firetrail.proxy.http2.response_headers import encode_block
from firetrail.proxy.transport.call import StatusCode

CONTENT_TYPE = "application/grpc"
ENCODINGS = "identity,gzip"
"""Compressions of requests that the server understands."""
STATUS_TEXT_MAX = 1000
"""Maximum length of the text of a status, which may be three times as long in a header; clients
refuse headers above 8 KiB."""
_PREFIX = Struct(">BL")
_PREFIX_SIZE = 5
_UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_SAFE = "".join(chr(c) for c in range(0x20, 0x7F) if chr(c) != "%")
_GZIP = 31  # zlib's number for gzip with the largest window

HEADERS = b"\x88" + encode_block([("content-type", CONTENT_TYPE)])
"""The headers of every response: status 200 and the type."""
TRAILERS_OK = encode_block([("grpc-status", "0")])


def frame_message(payload: bytes) -> bytes:
    """Return a message with its prefix: not compressed, length."""
    return _PREFIX.pack(0, len(payload)) + payload


def trailers(code: StatusCode, text: str) -> bytes:
    """Return the block that ends a call after headers."""
    if code is StatusCode.OK and not text:
        return TRAILERS_OK
    return encode_block(_status(code, text))


def trailers_only(code: StatusCode, text: str) -> bytes:
    """Return the block that ends a call without any message."""
    fields = _status(code, text)
    if code is StatusCode.UNIMPLEMENTED:
        fields.append(("grpc-accept-encoding", ENCODINGS))
    return HEADERS + encode_block(fields)


def _status(code: StatusCode, text: str) -> list[tuple[str, str]]:
    fields = [("grpc-status", str(int(code)))]
    if text:
        fields.append(("grpc-message", percent_encoded(text)))
    return fields


def percent_encoded(text: str) -> str:
    """Return a text as the header ``grpc-message`` carries it."""
    data = text.encode("utf-8", "replace")
    if len(data) > STATUS_TEXT_MAX:
        data = data[:STATUS_TEXT_MAX].decode("utf-8", "ignore").encode("utf-8")
    return quote_from_bytes(data, safe=_SAFE)


def timeout_s(text: str) -> float:
    """Return the seconds of the header ``grpc-timeout``."""
    unit = _UNITS_S.get(text[-1:])
    digits = text[:-1]
    if unit is None or not (digits.isascii() and digits.isdigit() and len(digits) <= 8):
        raise GrpcError(StatusCode.INTERNAL, f"grpc-timeout is malformed: {text[:20]!r}")
    return int(digits) * unit


class MessageReader:
    """Cuts the data of one call into messages."""

    __slots__ = ("_buffer", "_encoding", "_inflated_max", "_message_max", "inflated_bytes")

    def __init__(self, encoding: str, message_max: int, inflated_max: int) -> None:
        if encoding not in ("identity", "gzip"):
            raise GrpcError(
                StatusCode.UNIMPLEMENTED, f"the compression {encoding!r} is not supported"
            )
        self._encoding = encoding
        self._message_max = message_max
        self._inflated_max = inflated_max
        self._buffer = bytearray()
        self.inflated_bytes = 0
        """Length of the messages that were decompressed."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes of a message that has not arrived completely."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that are complete with these bytes."""
        size = len(data) - _PREFIX_SIZE
        is_in_limit = 0 <= size <= self._message_max
        if is_in_limit and not self._buffer and _PREFIX.unpack_from(data) == (0, size):
            return [data[_PREFIX_SIZE:]]  # one whole message, as in nearly every call
        buffer: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            buffer = self._buffer
        messages = []
        at, end = 0, len(buffer)
        while end - at >= _PREFIX_SIZE:
            flag, size = _PREFIX.unpack_from(buffer, at)
            if size > self._message_max:
                raise GrpcError(
                    StatusCode.RESOURCE_EXHAUSTED,
                    f"a message of {size} bytes is longer than {self._message_max} bytes",
                )
            start = at + _PREFIX_SIZE
            if start + size > end:
                break
            at = start + size
            payload = bytes(memoryview(buffer)[start:at])
            messages.append(self._inflated(payload) if flag else payload)
        if buffer is self._buffer:
            if at:
                del self._buffer[:at]
        elif at < end:
            self._buffer += data[at:]
        return messages

    def _inflated(self, payload: bytes) -> bytes:
        if self._encoding != "gzip":
            raise GrpcError(
                StatusCode.INTERNAL,
                "a message is compressed, but grpc-encoding names no compression",
            )
        inflater = zlib.decompressobj(_GZIP)
        try:
            message = inflater.decompress(payload, self._inflated_max)
        except zlib.error:
            raise GrpcError(StatusCode.INTERNAL, "a message cannot be decompressed") from None
        if inflater.unconsumed_tail:
            raise GrpcError(
                StatusCode.RESOURCE_EXHAUSTED,
                f"a decompressed message is longer than {self._inflated_max} bytes",
            )
        if not inflater.eof:
            raise GrpcError(StatusCode.INTERNAL, "a compressed message is incomplete")
        self.inflated_bytes += len(message)
        return message
