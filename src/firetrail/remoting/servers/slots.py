"""The connections that a server may have open, and the strangers that give way to newcomers.

A stranger is a connection that is not proven: no request of it has succeeded, or none that was
authenticated (:func:`~firetrail.auth.caller.proves`). A client that only connects would hold its
slot for minutes, so the oldest stranger is closed when all slots are taken. A newcomer is refused
only if all of them are proven.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import count
from typing import ClassVar, Protocol
from weakref import WeakSet

from firetrail.settings.descriptors import connections_max


class Occupant(Protocol):
    """A connection that has a slot."""

    def drop(self, reason: str) -> None:
        """Close the connection at once, and log the reason."""


class ConnectionSlots:
    """The slots of a server, which also count for all servers of the process.

    Args:
        most: The number of connections that the server may have.
        descriptors: Returns how many descriptors the process may have.
    """

    _of_process: ClassVar[WeakSet[ConnectionSlots]] = WeakSet()
    _arrivals: ClassVar[count[int]] = count()

    def __init__(self, most: int, descriptors: Callable[[], int]) -> None:
        self._most = most
        self._descriptors = descriptors
        self._occupants: set[Occupant] = set()
        # In the order of arrival. The first one of a dict is found slowly after many deletions.
        self._strangers: OrderedDict[Occupant, int] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._of_process.add(self)

    def __len__(self) -> int:
        """Return the number of taken slots."""
        return len(self._occupants)

    def take(self, newcomer: Occupant) -> str | None:
        """Give a slot to a connection, if necessary that of a stranger; return why there is none.

        Args:
            newcomer: The connection, which is not proven yet.
        """
        self._loop = asyncio.get_running_loop()
        if len(self) >= self._most:
            lack = f"the limit of {self._most} connections is reached"
            if not _close_oldest([self], lack):
                return lack
        descriptors = self._descriptors()
        most = connections_max(descriptors)
        if sum(map(len, self._of_process)) >= most:
            lack = (
                f"all servers of this process have {most} connections, the limit with "
                f"{descriptors} file descriptors, half of which are for the queues of a "
                "store; raise the limit of descriptors (LimitNOFILE of systemd, or ulimit -n)"
            )
            # A connection can be closed only by its own event loop.
            if not _close_oldest([s for s in self._of_process if s._loop is self._loop], lack):
                return lack
        self._occupants.add(newcomer)
        self._strangers[newcomer] = next(self._arrivals)
        return None

    def prove(self, occupant: Occupant) -> None:
        """Note that a connection is no longer a stranger."""
        self._strangers.pop(occupant, None)

    def free(self, occupant: Occupant) -> None:
        """Free the slot of a connection, if it has one."""
        self._occupants.discard(occupant)
        self._strangers.pop(occupant, None)

    @property
    def _oldest(self) -> int:
        return next(iter(self._strangers.values()))

    def _close_first(self, lack: str) -> None:
        stranger = next(iter(self._strangers))
        self.free(stranger)  # the newcomer needs it before the event loop closes the socket
        stranger.drop(f"it is the oldest on which no request has succeeded, and {lack}")


def _close_oldest(servers: Iterable[ConnectionSlots], lack: str) -> bool:
    """Close the oldest stranger of some servers; return False if there is none."""
    candidates = [each for each in servers if each._strangers]
    if not candidates:
        return False
    min(candidates, key=lambda each: each._oldest)._close_first(lack)
    return True
