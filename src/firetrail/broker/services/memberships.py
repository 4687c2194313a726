"""The groups that clients belong to, and how many those may be.

A heartbeat can name any producer group, without a permission, so the number of groups needs limits:
for a connection, and in all, of which each user (or address, if there are no users) has a share.
"""

from collections.abc import Callable, Set

from firetrail.auth.caller import Caller
from firetrail.errors import RequestError
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.servers.fair_shares import FairShares, ShareHolder, holder_of
from firetrail.remoting.wire.codes import ResponseCode

CONNECTION_MAX = 10_000
"""Maximum number of groups of one connection, producers and consumers together. A proxy has one per
topic."""
TOTAL_MAX = 200_000
"""Maximum number of groups of all connections. Each takes up to 1 KiB of memory."""

GroupMembership = tuple[str, str]
"""The kind, ``producer`` or ``consumer``, and the name of a group."""


class Memberships:
    """The groups of each connection. ``now`` is a monotonic clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._groups: dict[Connection, set[GroupMembership]] = {}
        self._holders: dict[Connection, ShareHolder] = {}
        remedy = "Unregister unused groups, or use fewer groups or clients."
        self._shares = FairShares("groups of clients", remedy, lambda: TOTAL_MAX, now)

    @property
    def total(self) -> int:
        """Their number."""
        return self._shares.total

    def check(
        self, connection: Connection, caller: Caller | None, wanted: Set[GroupMembership]
    ) -> None:
        """Raise RequestError, before any group is created, if the limit would be exceeded."""
        known = self._groups.get(connection, set())
        more = len(wanted - known)
        if not more:
            return
        if len(known) + more > CONNECTION_MAX:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"the clients of one connection would be in {len(known) + more} groups; at most "
                f"{CONNECTION_MAX} are allowed. Use fewer groups, or more connections",
            )
        holder = self._holders.get(connection) or holder_of(connection.host, caller)
        if (excess := self._shares.excess(holder, more)) is not None:
            raise RequestError(ResponseCode.SYSTEM_BUSY, excess)
        self._holders[connection] = holder

    def add(self, connection: Connection, group: GroupMembership) -> None:
        """Note a group of a connection, which :meth:`check` has allowed."""
        groups = self._groups.setdefault(connection, set())
        if group not in groups:
            groups.add(group)
            self._shares.take(self._holders[connection])

    def remove(self, connection: Connection, group: GroupMembership) -> None:
        """Forget a group of a connection."""
        groups = self._groups.get(connection, set())
        if group in groups:
            groups.discard(group)
            self._shares.give_back(self._holders[connection])

    def leave(self, connection: Connection) -> list[GroupMembership]:
        """Return the groups of a connection, and forget it once they are removed."""
        groups = list(self._groups.get(connection, ()))
        for group in groups:
            self.remove(connection, group)
        self._groups.pop(connection, None)
        self._holders.pop(connection, None)
        return groups
