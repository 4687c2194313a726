"""Frames: how commands stand on a connection.

::

    length   int32, of all that follows
    mark     1 byte: how the header is written (Serialize), 3 bytes: its length
    header
    body     the rest

A :class:`FrameReader` is fed with whatever arrives and gives back whole commands; the pieces in
which the bytes came make no difference. Lengths are checked before anything is kept for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct

from firetrail.errors import ProtocolError
from firetrail.remoting import binary_header, json_header
from firetrail.remoting.codes import Serialize
from firetrail.remoting.command import Command
from firetrail.remoting.kernels.wire import cut_frames

FRAME_MAX = 16 << 20
HEADER_MAX = 256 << 10
"""The longest properties (32 KiB) of control characters, each written as six in JSON, fit."""

_PREFIX = Struct(">iI")
_LENGTH_SIZE = 4
_MARK_SIZE = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """What a peer may send."""

    frame: int = FRAME_MAX
    """Bytes behind the length."""
    header: int = HEADER_MAX


class FrameReader:
    """Takes bytes as they come, and makes commands of them.

    After a ProtocolError nothing that follows on the connection can be made sense of.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._rest = bytearray()

    @property
    def waiting(self) -> int:
        """How many bytes of an unfinished frame are kept."""
        return len(self._rest)

    def feed(self, data: bytes) -> Iterator[Command]:
        """The commands that ``data`` completes, in order. Go through all of them."""
        if self._rest:
            self._rest += data
            if not self._is_whole(self._rest):
                return
            data, self._rest = bytes(self._rest), bytearray()
        frames, rest_at = cut_frames(data, self._limits.frame, self._limits.header)
        for mark, header, body in frames:
            yield _decode(mark, header, body)
        if rest_at < len(data):
            rest = data[rest_at:]
            self._is_whole(rest)  # or more than is allowed
            self._rest += rest

    def _is_whole(self, data: bytes | bytearray) -> bool:
        """Whether a frame that begins ``data`` is there completely; ProtocolError if too long."""
        if len(data) < _PREFIX.size:
            return False
        length, mark = _PREFIX.unpack_from(data)
        self._limits_hold(length, mark & 0xFFFFFF)
        whole: bool = len(data) - _LENGTH_SIZE >= length
        return whole

    def _limits_hold(self, length: int, header: int) -> None:
        if not _MARK_SIZE <= length <= self._limits.frame:
            raise ProtocolError(
                f"a frame of {length} bytes; {_MARK_SIZE} to {self._limits.frame} are allowed"
            )
        if header > min(length - _MARK_SIZE, self._limits.header):
            raise ProtocolError(
                f"a header of {header} bytes in a frame of {length}; "
                f"at most {self._limits.header} are allowed"
            )


def decode_frame(frame: bytes | memoryview) -> Command:
    """The command in one whole frame, its length included."""
    if len(frame) < _PREFIX.size:
        raise ProtocolError(f"a frame of {len(frame)} bytes is cut off")
    _, mark = _PREFIX.unpack_from(frame)
    header_end = _PREFIX.size + (mark & 0xFFFFFF)
    return _decode(mark >> 24, bytes(frame[_PREFIX.size : header_end]), bytes(frame[header_end:]))


def _decode(mark: int, header: bytes, body: bytes) -> Command:
    if mark == Serialize.JSON:
        return json_header.decode(header, body)
    if mark == Serialize.ROCKETMQ:
        return binary_header.decode(header, body)
    raise ProtocolError(f"a header of kind {mark}; known are 0 (JSON) and 1 (binary)")


def encode_frame(command: Command) -> list[bytes | memoryview]:
    """The pieces of the frame, to be written one behind the other.

    Raises ProtocolError for a command that has no form on the wire.
    """
    body = command.body
    if isinstance(body, bytes | memoryview):
        size = len(body)
        pieces: Sequence[bytes | memoryview] = (body,) if size else ()
    else:
        size = sum(map(len, body))
        pieces = [piece for piece in body if len(piece)]
    if command.serialize is Serialize.JSON:
        quick = json_header.encode_frame(command, size)
        if quick is not None:
            return [quick, *pieces]
    codec = json_header if command.serialize is Serialize.JSON else binary_header
    header = codec.encode(command)
    length = _MARK_SIZE + len(header) + size
    if length > 0x7FFFFFFF or len(header) > 0xFFFFFF:
        raise ProtocolError(f"a frame of {length} bytes, {len(header)} of them header, is too long")
    prefix = _PREFIX.pack(length, command.serialize << 24 | len(header))
    return [prefix + header, *pieces]
