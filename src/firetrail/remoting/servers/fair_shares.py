"""Fair shares of a limit for all, so that no caller can take everything.

A caller may take more only while it has less than is still free, as ports of a switch share its
buffer. So one greedy caller gets at most half, two get a third each, and however many there are,
some room is left for the next one. No caller has a limit of its own that would have to be chosen.
"""

import logging
import sys
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from firetrail.auth.caller import Caller
from firetrail.pace.limited_log import LimitedLog
from firetrail.remoting.servers.addresses import counted_as

RESERVED = 50
"""One in this many is kept for super users: administrators get in even if many users are greedy."""
UNKNOWN = "a caller before the restart"

K = TypeVar("K")

_log = logging.getLogger(__name__)


class ShareHolder(NamedTuple):
    """The name under which something is counted.

    Attributes:
        name: The user or the address, in the words of messages.
        is_super: Whether the user has no share: only the limit for all applies to it.
        group: The group that it is for. The groups of a holder share what it may have by the same
            rule, so that a group whose consumers acknowledge nothing leaves room for the others.
            Empty: There are no groups.
    """

    name: str
    is_super: bool = False
    group: str = ""

    def __str__(self) -> str:
        return f"group {self.group} of {self.name}" if self.group else self.name


def holder_of(host: str, caller: Caller | None, group: str = "") -> ShareHolder:
    """Return the name under which the sender of a request is counted.

    Args:
        host: The IP address that the request came from.
        caller: The sender; None if there is no access control.
        group: The group that the request is for. Default: empty, one share for all groups.
    """
    if caller is not None and caller.user is not None:
        return ShareHolder(sys.intern(f"user {caller.user.name}"), caller.is_super, group)
    return ShareHolder(sys.intern(f"address {counted_as(host)}"), group=group)


def unknown_holder(group: str) -> ShareHolder:
    """Return the holder of something from before a restart: who took it was not recorded."""
    return ShareHolder(UNKNOWN, group=group)


class FairShares:
    """A count per holder of something that has a common limit.

    Args:
        what: The counted subject, in the plural.
        remedy: The advice to a holder that gets no more, as a sentence.
        most: Returns the limit for all holders together.
        now: A monotonic clock in seconds.

    Attributes:
        total: The sum of all holders.
    """

    def __init__(
        self, what: str, remedy: str, most: Callable[[], int], now: Callable[[], float]
    ) -> None:
        self._what = what
        self._remedy = remedy
        self._most = most
        self._held: dict[str, int] = {}
        self._of_groups: dict[tuple[str, str], int] = {}  # by name and group
        self._log = LimitedLog(_log, now)
        self.total = 0

    def __len__(self) -> int:
        """Return the number of holders, with their groups."""
        return len(self._held) + len(self._of_groups)

    def held(self, holder: ShareHolder) -> int:
        """Return the count of a holder, or of its group if it has one."""
        if holder.group:
            return self._of_groups.get((holder.name, holder.group), 0)
        return self._held.get(holder.name, 0)

    def excess(self, holder: ShareHolder, more: int = 1) -> str | None:
        """Return why a holder may not take more, which is also logged; None if it may.

        Args:
            holder: The holder that takes them.
            more: How many it wants, one after the other. Default: one.
        """
        most = self._most()
        others = more - 1
        room = most - self.total - others
        if not holder.is_super:
            room -= most // RESERVED + self._held.get(holder.name, 0) + others
        of_group = others + self.held(holder) if holder.group else 0
        return None if of_group < room else self._refused(holder, most)

    def _refused(self, holder: ShareHolder, most: int) -> str:
        text = (
            f"{holder} has {self.held(holder)} {self._what}, and all callers have {self.total} of "
            f"at most {most}; a caller gets more only while it has fewer than are free. "
            f"{self._remedy}"
        )
        self._log.log(logging.WARNING, holder.name, text)
        return text

    def take(self, holder: ShareHolder, count: int = 1) -> None:
        """Add to the count of a holder."""
        self.total += count
        name = holder.name
        self._held[name] = self._held.get(name, 0) + count
        if holder.group:
            key = (name, holder.group)
            self._of_groups[key] = self._of_groups.get(key, 0) + count

    def give_back(self, holder: ShareHolder, count: int = 1) -> None:
        """Subtract from the count of a holder."""
        self.total -= count
        _subtract(self._held, holder.name, count)
        if holder.group:
            _subtract(self._of_groups, (holder.name, holder.group), count)


def _subtract(counts: dict[K, int], key: K, count: int) -> None:
    left = counts[key] - count
    if left:
        counts[key] = left
    else:
        del counts[key]
