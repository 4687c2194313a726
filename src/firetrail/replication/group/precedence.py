"""The precedence of members that may campaign: those with complete, good logs come first."""

import logging
from collections.abc import Iterable
from typing import NamedTuple

from firetrail.replication.group.group_view import GroupView

YIELD_S = 2.0
"""The time for which a member with damaged records lets the others campaign. They do so within half
a second of the end of a lease."""
SHORT_YIELD_S = 20.0
"""The time for which a member does so whose log lacks, or may lack, confirmed messages. After a
power failure, the others may need it to start again."""

_log = logging.getLogger(__name__)


class LogCondition(NamedTuple):
    """The condition of a member's log.

    Attributes:
        end: Its end.
        damaged: The number of damaged places. Default: 0.
        shortfall: The reason why it lacks, or may lack, messages that were confirmed. Default:
            empty, it has all of them.
    """

    end: int
    damaged: int = 0
    shortfall: str = ""


class Precedence:
    """Decides whether a member that may campaign leaves that to others for a moment.

    A member with damaged records cannot serve them, and can repair them only while another member
    has them. A member whose log lacks confirmed messages would give them up if it was elected. It
    reports the end of its log to the others: if all members of the in-sync set have done so, the
    longest log wins at once. If no other member of the set campaigns, such a member is elected
    nevertheless: it has everything else that was acknowledged.
    """

    def __init__(self, member: int) -> None:
        """Prepare; ``member`` is the number of the member."""
        self._member = member
        self._since: float | None = None  # since when the member has left it to the others

    def forget(self) -> None:
        """Note that there is nothing to campaign for."""
        self._since = None

    def is_left_to_others(self, now: float, log: LogCondition, view: GroupView) -> bool:
        """Return whether the member waits before it campaigns.

        Args:
            now: The time, in seconds.
            log: The condition of its log.
            view: The state of the group.
        """
        others = view.in_sync.members - {self._member} if view.in_sync is not None else ()
        if not (log.damaged or log.shortfall) or not others or view.successor == self._member:
            return False
        if log.shortfall and self._is_longest(log.end, others, view):
            return False
        wait_s = SHORT_YIELD_S if log.shortfall else YIELD_S
        if self._since is None:
            self._since = now
            _log.warning(
                "%s. Other in-sync members may be elected first, for %g s",
                log.shortfall or f"damaged places in the log: {log.damaged}",
                wait_s,
            )
        return now - self._since < wait_s

    def _is_longest(self, end: int, others: Iterable[int], view: GroupView) -> bool:
        """Return whether all others lack messages, too, and none of them has a longer log."""
        ends = {n: view.reports[n].end for n in others if n in view.reports}
        if len(ends) < len([*others]):
            return False
        return all((end, -self._member) > (other, -number) for number, other in ends.items())
