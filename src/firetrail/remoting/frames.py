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

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

from firetrail.errors import ProtocolError
from firetrail.remoting import binary_header, json_header
from firetrail.remoting.codes import Serialize
from firetrail.remoting.command import Command

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
            data = self._take_whole()
        at = 0
        with memoryview(data) as view:
            while True:
                end = self._frame_end(view, at)
                if end is None:
                    break
                yield decode_frame(view[at:end], self._limits)
                at = end
            self._rest += view[at:]

    def _take_whole(self) -> bytes:
        """What was kept, if it holds a whole frame by now; nothing if not."""
        with memoryview(self._rest) as view:
            if self._frame_end(view, 0) is None:
                return b""
        data, self._rest = bytes(self._rest), bytearray()
        return data

    def _frame_end(self, view: memoryview, at: int) -> int | None:
        """Where the frame at ``at`` ends, None if not all of it is there."""
        if len(view) - at < _PREFIX.size:
            return None
        length, mark = _PREFIX.unpack_from(view, at)
        self._limits_hold(length, mark & 0xFFFFFF)
        end: int = at + _LENGTH_SIZE + length
        return end if end <= len(view) else None

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


def decode_frame(frame: bytes | memoryview, limits: Limits | None = None) -> Command:
    """The command in one whole frame, its length included."""
    limits = limits or Limits()
    if len(frame) < _PREFIX.size:
        raise ProtocolError(f"a frame of {len(frame)} bytes is cut off")
    _, mark = _PREFIX.unpack_from(frame)
    header_end = _PREFIX.size + (mark & 0xFFFFFF)
    header = bytes(frame[_PREFIX.size : header_end])
    body = bytes(frame[header_end:])
    if mark >> 24 == Serialize.JSON:
        return json_header.decode(header, body)
    if mark >> 24 == Serialize.ROCKETMQ:
        return binary_header.decode(header, body)
    raise ProtocolError(f"a header of kind {mark >> 24}; known are 0 (JSON) and 1 (binary)")


def encode_frame(command: Command) -> list[bytes | memoryview]:
    """The pieces of the frame, to be written one behind the other.

    Raises ProtocolError for a command that has no form on the wire.
    """
    codec = json_header if command.serialize is Serialize.JSON else binary_header
    header = codec.encode(command)
    body = command.body
    pieces = [body] if isinstance(body, bytes | memoryview) else list(body)
    length = _MARK_SIZE + len(header) + sum(map(len, pieces))
    if length > 0x7FFFFFFF or len(header) > 0xFFFFFF:
        raise ProtocolError(f"a frame of {length} bytes, {len(header)} of them header, is too long")
    prefix = _PREFIX.pack(length, command.serialize << 24 | len(header))
    return [prefix + header, *(piece for piece in pieces if len(piece))]
