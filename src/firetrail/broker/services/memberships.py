"""The groups that clients belong to, and how many those may be.

A heartbeat can name any producer group, without a permission, so the number of groups needs limits:
for a connection, for a user (or an address, if there are no users), and in all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set

from firetrail.auth.caller import Caller
from firetrail.errors import RequestError
from firetrail.remoting.addresses import counted_as
from firetrail.remoting.codes import ResponseCode
from firetrail.remoting.connection import Connection

CONNECTION_MAX = 10_000
"""Groups of one connection, producers and consumers together. A proxy has one per topic."""
CALLER_MAX = 50_000
"""Groups of all connections of a user, or of an address without users. Super users, such as
proxies, have no limit of their own."""
TOTAL_MAX = 200_000
"""Groups of all connections. Each takes up to 1 KiB of memory."""

GroupMembership = tuple[str, str]
"""The kind, ``producer`` or ``consumer``, and the name of a group."""


class Memberships:
    """The groups of each connection."""

    def __init__(self) -> None:
        self._groups: dict[Connection, set[GroupMembership]] = {}
        self._callers: dict[Connection, str] = {}
        self._by_caller: Counter[str] = Counter()
        self.total = 0
        """How many there are."""

    def check(
        self, connection: Connection, caller: Caller | None, wanted: Set[GroupMembership]
    ) -> None:
        """Raise RequestError, before anything is created, if more groups would be too many."""
        known = self._groups.get(connection, set())
        more = len(wanted - known)
        if not more:
            return
        _check("one connection", len(known) + more, CONNECTION_MAX, ResponseCode.INVALID_PARAMETER)
        name = self._callers.get(connection) or _name_of(connection, caller)
        if caller is None or not caller.is_super:
            _check(name, self._by_caller[name] + more, CALLER_MAX, ResponseCode.SYSTEM_BUSY)
        _check("this broker", self.total + more, TOTAL_MAX, ResponseCode.SYSTEM_BUSY)
        self._callers[connection] = name

    def add(self, connection: Connection, group: GroupMembership) -> None:
        """Note a group of a connection, which :meth:`check` has allowed."""
        groups = self._groups.setdefault(connection, set())
        if group not in groups:
            groups.add(group)
            self._count(connection, 1)

    def remove(self, connection: Connection, group: GroupMembership) -> None:
        """Forget a group of a connection."""
        groups = self._groups.get(connection, set())
        if group in groups:
            groups.discard(group)
            self._count(connection, -1)

    def leave(self, connection: Connection) -> list[GroupMembership]:
        """Return the groups of a connection, and forget it once they are removed."""
        groups = list(self._groups.get(connection, ()))
        for group in groups:
            self.remove(connection, group)
        self._groups.pop(connection, None)
        self._callers.pop(connection, None)
        return groups

    def _count(self, connection: Connection, change: int) -> None:
        name = self._callers.get(connection, "")
        self.total += change
        self._by_caller[name] += change
        if not self._by_caller[name]:
            del self._by_caller[name]


def _name_of(connection: Connection, caller: Caller | None) -> str:
    if caller is not None and caller.user is not None:
        return f"user {caller.user.name}"
    return f"address {counted_as(connection.host)}"


def _check(whose: str, count: int, most: int, code: ResponseCode) -> None:
    if count > most:
        raise RequestError(
            code,
            f"the clients of {whose} would be in {count} groups; at most {most} are allowed. "
            "Unregister unused groups, or use fewer groups or clients",
        )
