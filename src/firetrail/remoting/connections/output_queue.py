"""The bytes for a peer that its transport has not taken yet.

A transport copies bytes that it cannot write at once, and TLS copies all bytes. So a connection
keeps its output unchanged, often as views of the log, which take no memory, and passes no more than
one unread portion to a transport.
"""

from collections import deque
from collections.abc import Iterable

PORTION = 256 << 10
"""Bytes that are given to a transport at once. Answers to pulls are rarely longer, and each portion
takes about three times its size for a moment: joined, encrypted, and in the transport."""

FramePiece = bytes | memoryview


class OutputQueue:
    """Pieces of output in their order.

    Attributes:
        size: The bytes of all pieces.
    """

    __slots__ = ("_pieces", "size")

    def __init__(self) -> None:
        self._pieces: deque[FramePiece] = deque()
        self.size = 0

    def add(self, pieces: Iterable[FramePiece], size: int) -> None:
        """Append pieces, which have ``size`` bytes together."""
        self._pieces.extend(pieces)
        self.size += size

    def take(self) -> list[FramePiece]:
        """Remove and return the next portion; nothing if the queue is empty."""
        pieces = self._pieces
        if self.size <= PORTION:
            taken = list(pieces)
            self.clear()
            return taken
        taken, room = [], PORTION
        while room and pieces:
            piece = pieces.popleft()
            if len(piece) > room:
                view = memoryview(piece)
                pieces.appendleft(released(view[room:]))
                piece = released(view[:room])
            taken.append(piece)
            room -= len(piece)
        self.size -= PORTION - room
        return taken

    def clear(self) -> None:
        """Remove everything."""
        self._pieces.clear()
        self.size = 0


def released(view: memoryview) -> memoryview:
    """Return a view of the same bytes that keeps at most twice as many bytes in memory.

    A view keeps all bytes of its object. A peer that reads all but the end of an answer would make
    a server keep the whole answer, while only the end is counted. Views of files are not copied:
    the system frees their memory.
    """
    whole = view.obj
    if isinstance(whole, bytes | bytearray) and 2 * len(view) < len(whole):
        return memoryview(bytes(view))
    return view
