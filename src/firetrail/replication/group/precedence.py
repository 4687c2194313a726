"""The precedence of members whose logs are good: one with damaged records campaigns later."""

import logging

from firetrail.replication.group.group_view import GroupView

YIELD_S = 2.0
"""The time for which a member with damaged records lets the others campaign. They do so within half
a second of the end of a lease."""

_log = logging.getLogger(__name__)


class Precedence:
    """Decides whether a member that may campaign leaves that to others for a moment.

    A member with damaged records cannot serve them, and can repair them only while another member
    has them. If no other member of the in-sync set campaigns, it is elected nevertheless: it has
    everything else that was acknowledged.
    """

    def __init__(self, member: int) -> None:
        """Prepare; ``member`` is the number of the member."""
        self._member = member
        self._since: float | None = None  # since when the member has left it to the others

    def forget(self) -> None:
        """Note that there is nothing to campaign for."""
        self._since = None

    def is_left_to_others(self, now: float, damaged: int, view: GroupView) -> bool:
        """Return whether the member waits before it campaigns.

        Args:
            now: The time, in seconds.
            damaged: The number of damaged places in the log of the member.
            view: The state of the group.
        """
        others = view.in_sync.members - {self._member} if view.in_sync is not None else ()
        if not damaged or not others or view.successor == self._member:
            return False
        if self._since is None:
            self._since = now
            _log.warning(
                "damaged places in the log: %d. Other in-sync members may be elected first, "
                "for %g s",
                damaged,
                YIELD_S,
            )
        return now - self._since < YIELD_S
