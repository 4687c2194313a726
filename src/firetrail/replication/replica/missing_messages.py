"""Old messages that a replica has deleted, and its master still has."""

import logging
from collections.abc import Callable

from firetrail.replication.replica.follower_status import FollowerStatus

MISSING_S = 60.0
"""The time for which a replica may lack old messages of its master before it warns: both delete
expired files by themselves, one of them some seconds earlier."""

_log = logging.getLogger(__name__)


class MissingMessages:
    """Warns once if the log of a replica begins later than its master's for long."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Prepare; ``now`` is a monotonic clock, in seconds."""
        self._now = now
        self._since: float | None = None
        self._has_warned = False

    def note(self, status: FollowerStatus) -> None:
        """Note the present beginnings of both logs."""
        now = self._now()
        if not status.missing:
            self._since = None
        elif self._since is None:
            self._since, self._has_warned = now, False
        elif now - self._since >= MISSING_S and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "this replica has deleted %d bytes of messages that its master still has: its log "
                "begins at %d, that of the master at %d; if the replica becomes the master, "
                "consumers can no longer read them",
                status.missing,
                status.own_min,
                status.master_min,
            )
