"""The entry of the engine with an offset up to which the log of the group was confirmed.

The offset of the in-sync set is as old as the set. A member whose whole folder was restored from a
copy could be newer than that, and would be elected if it was alone. So the holder of the lease
writes down, from time to time, what was confirmed a moment ago. It is not the newest offset:
without SYNC_FLUSH, a power failure of all members takes what they have not synced, and the group
must be able to go on without it.
"""

from collections.abc import Callable
from functools import partial

from firetrail.replication.group.election import Coordinator
from firetrail.replication.group.group_view import ConfirmedNote, GroupView

AGE_S = 15.0
"""The age of an offset when it is written, which is also the pause between two writes. By then it
is on the disks of all members, whatever the settings of their flushes are."""


class ConfirmedEntry:
    """Decides what the holder of the lease writes, and when."""

    def __init__(self, coordinator: Coordinator) -> None:
        """Prepare; ``coordinator`` is the consensus engine."""
        self._coordinator = coordinator
        self._epoch = 0  # of the lease
        self._seen = 0.0, 0  # a time, and what was confirmed then

    def request(
        self, now: float, epoch: int, view: GroupView, confirmed_end: int
    ) -> Callable[[], GroupView] | None:
        """Return the request that writes the entry; None if there is nothing to write now.

        Args:
            now: The time, in seconds.
            epoch: The epoch of the own lease; 0 if the member does not hold it.
            view: The state of the group.
            confirmed_end: The end of the part of the log that is confirmed now.
        """
        is_new, self._epoch = epoch != self._epoch, epoch
        at, offset = self._seen
        if is_new or now - at >= AGE_S:
            self._seen = now, confirmed_end
        if is_new or now - at < AGE_S or not epoch or offset <= view.confirmed_offset:
            return None
        assert view.in_sync is not None
        lineage = view.in_sync.lineage
        note = ConfirmedNote(lineage.group, lineage.version, offset)
        return partial(self._coordinator.note_confirmed, epoch, note)
