"""A leader entry in the engine that no member wrote, and that blocks every election.

Members bind the entry to a lease. One without a lease was written by hand, or by a tool, and stays
for ever. It makes nobody the holder: a master whose entry was replaced by it stops acknowledging as
soon as it sees that. A master that does not reach the engine cannot renew its lease either. So
after the time of a lease nobody acknowledges, and the entry can be deleted as if its lease had
expired. The in-sync set decides who may be elected then, as always.
"""

import logging
from collections.abc import Callable

from firetrail.replication.group.election import Coordinator
from firetrail.replication.group.group_view import GroupView

_log = logging.getLogger(__name__)


class StrayEntry:
    """Deletes a stray entry that has existed for the time of a lease."""

    def __init__(self, coordinator: Coordinator, ttl_s: float) -> None:
        """Prepare.

        Args:
            coordinator: The consensus engine.
            ttl_s: The time for which a lease lasts.
        """
        self._coordinator = coordinator
        self._ttl_s = ttl_s
        self._created = 0
        self._since = 0.0

    def removal(self, now: float, view: GroupView) -> Callable[[], GroupView] | None:
        """Return the operation that deletes the entry; None if there is none, or too early.

        Args:
            now: The time, in seconds.
            view: The state of the group.
        """
        if view.unleased != self._created:
            self._created, self._since = view.unleased, now
            if view.unleased:
                _log.error(
                    "etcd has an entry 'leader' of the group that is bound to no lease, so no "
                    "member wrote it. Nobody can be elected while it is there; it is deleted in "
                    "%g s",
                    self._ttl_s,
                )
        if not self._created or now - self._since < self._ttl_s:
            return None
        created, self._since = self._created, now
        return lambda: self._coordinator.remove_unleased(created)
