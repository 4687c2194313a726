"""Frames: the encoding of commands on a connection.

::

    length   int32, bytes that follow
    mark     1 byte: the encoding of the header (Serialize), 3 bytes: its length
    header
    body     the rest

A :class:`FrameReader` takes bytes as they arrive and yields complete commands, however the bytes
are split. Lengths are checked before any memory is used for them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct

from firetrail.errors import ProtocolError
from firetrail.remoting.kernels.wire import cut_frames
from firetrail.remoting.wire import binary_header, json_header
from firetrail.remoting.wire.codes import Serialize
from firetrail.remoting.wire.command import RemotingCommand

FRAME_MAX = 16 << 20
"""Bytes of a frame, as in RocketMQ."""
HEADER_MAX = 256 << 10
"""Bytes of a header: the longest properties (32 KiB) fit even if JSON escapes every character with
six."""

_PREFIX = Struct(">iI")
_LENGTH_SIZE = 4
_MARK_SIZE = 4
_TLS_HANDSHAKE = 0x1603
"""The first two bytes of every TLS handshake: the type of its record, and the version 3."""
_SETTINGS = 4
"""The type of the first frame of every HTTP/2 peer, after the three bytes of its length. Zeros
follow: no flags, and the stream 0. A command of RocketMQ would have no header."""


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """Limits for the frames of a peer."""

    frame: int = FRAME_MAX
    """Bytes after the length field."""
    header: int = HEADER_MAX
    """Bytes of the header."""


class FrameReader:
    """Decodes the bytes of a connection into commands.

    After a ProtocolError the rest of the connection cannot be decoded.
    """

    def __init__(self, limits: FrameLimits | None = None) -> None:
        self._limits = limits or FrameLimits()
        self._rest = bytearray()

    @property
    def waiting(self) -> int:
        """The number of buffered bytes of an incomplete frame."""
        return len(self._rest)

    def discard(self) -> None:
        """Free the bytes of an incomplete frame. Nothing can be decoded after that."""
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[RemotingCommand]:
        """Yield the commands that ``data`` completes, in order. The caller must exhaust it."""
        if self._rest:
            self._rest += data
            if not self._is_whole(self._rest):
                return
            data, self._rest = bytes(self._rest), bytearray()
        frames, rest_at = cut_frames(data, self._limits.frame, self._limits.header)
        for mark, header, body in frames:
            command = _decode(mark, header, body)
            command.size = _PREFIX.size + len(header) + len(body)
            yield command
        if rest_at < len(data):
            rest = data[rest_at:]
            self._is_whole(rest)  # raises if the frame is too long
            self._rest += rest

    def _is_whole(self, data: bytes | bytearray) -> bool:
        """Return whether ``data`` contains a complete frame; raise ProtocolError if too long."""
        if len(data) < _PREFIX.size:
            return False
        length, mark = _PREFIX.unpack_from(data)
        if mark == 0 and length >> 24 == 0 and length & 0xFF == _SETTINGS:
            raise ProtocolError(
                "the peer speaks HTTP/2: this is the port for gRPC clients of RocketMQ 5, usually "
                "8081; name servers usually listen on 9876, and brokers on 10911"
            )
        self._check_limits(length, mark & 0xFFFFFF)
        whole: bool = len(data) - _LENGTH_SIZE >= length
        return whole

    def _check_limits(self, length: int, header: int) -> None:
        if not _MARK_SIZE <= length <= self._limits.frame:
            if length >> 16 == _TLS_HANDSHAKE:
                raise ProtocolError(
                    "the peer begins a TLS handshake, but this port does not serve TLS; configure "
                    "a certificate for it, or switch off TLS in the client"
                )
            raise ProtocolError(
                f"a frame of {length} bytes; {_MARK_SIZE} to {self._limits.frame} are allowed"
            )
        if header > min(length - _MARK_SIZE, self._limits.header):
            raise ProtocolError(
                f"a header of {header} bytes in a frame of {length}; "
                f"at most {self._limits.header} are allowed"
            )


def decode_frame(frame: bytes | memoryview) -> RemotingCommand:
    """Decode one complete frame, including its length field."""
    if len(frame) < _PREFIX.size:
        raise ProtocolError(f"a frame of {len(frame)} bytes is cut off")
    _, mark = _PREFIX.unpack_from(frame)
    header_end = _PREFIX.size + (mark & 0xFFFFFF)
    return _decode(mark >> 24, bytes(frame[_PREFIX.size : header_end]), bytes(frame[header_end:]))


def _decode(mark: int, header: bytes, body: bytes) -> RemotingCommand:
    if mark == Serialize.JSON:
        return json_header.decode(header, body)
    if mark == Serialize.ROCKETMQ:
        return binary_header.decode(header, body)
    raise ProtocolError(f"a header of unknown type {mark}; expected 0 (JSON) or 1 (binary)")


def encode_frame(command: RemotingCommand) -> list[bytes | memoryview]:
    """Return the pieces of a frame, to be written in this order.

    Raises ProtocolError if the command cannot be encoded.
    """
    body = command.body
    if isinstance(body, bytes | memoryview):
        size = len(body)
        pieces: Sequence[bytes | memoryview] = (body,) if size else ()
    else:
        size = sum(map(len, body))
        pieces = [piece for piece in body if len(piece)]
    codec = json_header if command.serialize is Serialize.JSON else binary_header
    header = codec.encode(command)
    length = _MARK_SIZE + len(header) + size
    if length > 0x7FFFFFFF or len(header) > 0xFFFFFF:
        raise ProtocolError(f"a frame of {length} bytes, {len(header)} of them header, is too long")
    prefix = _PREFIX.pack(length, command.serialize << 24 | len(header))
    return [prefix + header, *pieces]
