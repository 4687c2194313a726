"""The bytes that a server keeps for its connections: unfinished frames and unread answers.

Each connection reports how many bytes it keeps. If all together keep more than the limit, the
slowest connections are dropped: those that have made no progress for the longest time. Connections
on which no request has succeeded yet have a smaller limit of their own, so that strangers cannot
use up the memory, nor make the server drop clients that it knows.
"""

from collections.abc import Iterable
from itertools import chain
from typing import Protocol

SMALL = 4 << 10
"""The number of bytes below which a connection is not dropped, because that would free no
memory."""
RELIEF = 7 / 8
"""The share of the limit that is left after connections were dropped, so that not every further
byte leads to another search."""


class BufferOwner(Protocol):
    """A connection, as the budget sees it."""

    is_proven: bool
    """Whether a request of the peer has succeeded."""

    @property
    def kept_bytes(self) -> int:
        """The bytes that are kept for it now."""

    def drop(self, reason: str) -> None:
        """Close the connection at once, and free its bytes."""


class BufferBudget:
    """Counts kept bytes, and drops the slowest connections if there are too many.

    Args:
        most: Limit for the bytes of all connections.
        strangers_most: Limit for those of connections on which no request has succeeded.
        remedy: The advice to the operator when a connection is dropped.
    """

    def __init__(
        self, most: int, strangers_most: int, remedy: str = "raise the limit if this is normal"
    ) -> None:
        self._most = most
        self._strangers_most = strangers_most
        self._remedy = remedy
        self._known: dict[BufferOwner, int] = {}  # in the order of their last progress
        self._strangers: dict[BufferOwner, int] = {}
        self.total = 0
        """Bytes of all connections."""
        self.strangers = 0
        """Bytes of connections on which no request has succeeded."""

    def note(self, owner: BufferOwner, size: int, *, progress: bool) -> None:
        """Note the number of bytes that a connection keeps.

        Args:
            owner: The connection.
            size: The bytes.
            progress: Whether a frame was completed, or bytes were read by the peer.
        """
        table = self._known if owner.is_proven else self._strangers
        before = table.pop(owner, 0) if progress or not size else table.get(owner, 0)
        if size:
            table[owner] = size
        self.total += size - before
        if not owner.is_proven:
            self.strangers += size - before
        if self.total > self._most or self.strangers > self._strangers_most:
            self._relieve()

    def prove(self, owner: BufferOwner) -> None:
        """Count the connection among the known ones from now on: a request has succeeded."""
        size = self._strangers.pop(owner, 0)
        owner.is_proven = True
        self.strangers -= size
        if size:
            self._known[owner] = size

    def _relieve(self) -> None:
        """Count again, as peers may have read meanwhile, and drop the slowest if necessary."""
        for table in (self._strangers, self._known):
            for owner in table:
                table[owner] = owner.kept_bytes
        self.strangers = sum(self._strangers.values())
        self.total = self.strangers + sum(self._known.values())
        if self.strangers > self._strangers_most:
            self._drop(self._strangers, self.strangers - int(self._strangers_most * RELIEF))
        if self.total > self._most:
            self._drop(chain(self._strangers, self._known), self.total - int(self._most * RELIEF))

    def _drop(self, owners: Iterable[BufferOwner], excess: int) -> None:
        victims = []
        for owner in owners:
            if excess <= 0:
                break
            if (size := owner.kept_bytes) >= SMALL:
                victims.append((owner, size))
                excess -= size
        for owner, size in victims:
            del (self._known if owner.is_proven else self._strangers)[owner]
            self.total -= size
            if not owner.is_proven:
                self.strangers -= size
            owner.drop(
                f"it keeps {size} bytes of unfinished frames and unread answers and has made no "
                f"progress for longest, while connections keep too many bytes ({self._remedy})"
            )
