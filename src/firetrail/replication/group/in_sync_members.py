"""The members that a master waits for, and its proposals of another in-sync set.

The rule behind every decision: a message is acknowledged only if all members of the in-sync set in
the engine have it. A member that leaves is therefore waited for until the engine has confirmed the
smaller set, and a member that joins is waited for before the engine is asked. Whichever member of
the set wins the next election has everything that was acknowledged, regardless of clocks.
"""

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass

from firetrail.replication.group.group_view import InSyncSet, SetChange

JOIN_LAG_S = 1.0
"""A member joins the set when it was caught up at most this long ago."""
ABSENT_S = 2.0
"""A member that is not connected leaves the set after this time, if enough others are connected.

After the loss of a master, its successor has to wait for it until then. A member that only connects
again usually needs less time. One that leaves without need joins again as soon as it has caught up.
"""
SILENT_S = 5.0
"""A connected member that is behind and confirms nothing for this time counts as not connected.

If its machine has lost power, or if packets are dropped, the connection stays open for long.
"""
PAUSE_S = 2.0
"""If two steps are further apart, the holder was paused: members may have confirmed meanwhile."""


@dataclass(slots=True)
class _CatchUp:
    """The lag of a member: it is *caught up* to the time at which ``end`` was the log's."""

    end: int
    at: float
    caught_up_at: float


class InSyncMembers:
    """The in-sync set as the holder of the lease sees it. It does no I/O.

    Attributes:
        committed: The set in the engine.
        epoch: The epoch of the holder.
    """

    def __init__(
        self, member: int, epoch: int, committed: InSyncSet, lag_s: float, now: float
    ) -> None:
        """Begin as the holder of a lease.

        Args:
            member: The number of the holder.
            epoch: Its epoch.
            committed: The set in the engine.
            lag_s: A member is removed from the set if it was not caught up for this long.
            now: The time.
        """
        self._member = member
        self.epoch = epoch
        self._lag_s = lag_s
        self._change: SetChange | None = None
        self._joining: dict[int, int | None] = {}  # the offset to reach, None if not yet determined
        self._progress: dict[int, _CatchUp] = {}
        self._seen_at: dict[int, float] = {}  # when a member was last connected
        self._moved_at: dict[int, float] = {}  # when a member last confirmed anything, or all
        self._confirmed: dict[int, int] = {}
        self._stepped_at = now
        self._began_at = now
        self.committed = committed

    @property
    def required(self) -> frozenset[int]:
        """The other members that must confirm a message before it is acknowledged.

        The caller applies a change of it before it calls :meth:`step` again.
        """
        members = self.committed.members | self._joining.keys()
        if self._change is not None:  # the engine may have executed it, or may do so later
            members |= self._change.members
        return frozenset(members - {self._member})

    def observe(self, in_sync: InSyncSet) -> None:
        """Note the set in the engine."""
        if in_sync.revision <= self.committed.revision:
            return
        self.committed = in_sync
        self._change = None
        for member in in_sync.members:
            self._joining.pop(member, None)

    def step(
        self,
        now: float,
        end: int,
        acks: Mapping[int, int],
        least: int,
        leaving: Set[int] = frozenset(),
    ) -> SetChange | None:
        """Decide; return the change to ask the engine for, or None.

        A change whose outcome is unknown is returned again: the engine executes it at most once.

        Args:
            now: The time.
            end: The end of the log, read after :attr:`required` was applied.
            acks: The ends of the logs of the connected members, by number.
            least: How many members the set must keep. With fewer copies, nothing is acknowledged.
            leaving: The connected members that are about to stop. They leave the set at once, if
                enough others are connected. Default: none.
        """
        self._note_progress(now, end, acks)
        if self._change is None:
            members = self._joined(now, end, acks, leaving)
            members = members or self._remaining(now, acks, least, leaving)
            if members is not None:
                after = self.committed.next(members, self._common_offset(members, end, acks))
                self._change = SetChange(self.epoch, self.committed, after)
        return self._change

    def leave(self, acks: Mapping[int, int], least: int) -> SetChange | None:
        """Return the change by which the holder leaves the set, None if too few would remain.

        Its successor then need not wait for it. The holder must no longer acknowledge anything.

        Args:
            acks: The ends of the logs of the connected members, by number.
            least: The number of members that the set must keep.
        """
        remaining = self.committed.members - {self._member}
        may_leave = len(remaining) >= least and remaining <= acks.keys()
        if self._change is None and may_leave and remaining != self.committed.members:
            after = self.committed.next(remaining, self.committed.offset)
            self._change = SetChange(self.epoch, self.committed, after)
        return self._change

    def _note_progress(self, now: float, end: int, acks: Mapping[int, int]) -> None:
        for gone in self._progress.keys() - acks.keys() - self.committed.members:
            del self._progress[gone]
        self._seen_at |= dict.fromkeys(acks, now)
        self._note_moves(now, end, acks)
        for member, offset in acks.items():
            progress = self._progress.get(member)
            if progress is None:
                is_known = member in self.committed.members
                progress = _CatchUp(end, now, self._began_at if is_known else -math.inf)
                self._progress[member] = progress
            if offset >= progress.end:
                progress.caught_up_at = progress.at if offset < end else now
                progress.end, progress.at = end, now

    def _note_moves(self, now: float, end: int, acks: Mapping[int, int]) -> None:
        was_paused = now - self._stepped_at > PAUSE_S
        self._stepped_at = now
        for member, offset in acks.items():
            before = self._confirmed.get(member)
            if was_paused or offset >= end or before is None or offset > before:
                self._moved_at[member] = now
            self._confirmed[member] = offset
        for gone in self._confirmed.keys() - acks.keys():
            del self._confirmed[gone]

    def _joined(
        self, now: float, end: int, acks: Mapping[int, int], leaving: Set[int]
    ) -> frozenset[int] | None:
        """Return the set with the members that have caught up, None if there are none.

        The holder is not in the set if it has left for a hand-over that has failed.
        """
        reached: set[int] = {self._member} - self.committed.members
        for member, mark in list(self._joining.items()):
            is_gone = member not in acks or member in leaving
            if is_gone or self._lag(member, now) > self._lag_s:
                del self._joining[member]
                continue
            if mark is None:  # nothing is acknowledged without the member since the last step
                mark = self._joining[member] = end
            if acks[member] >= mark:
                reached.add(member)
        for member in acks.keys() - self.committed.members - leaving - {self._member}:
            if self._lag(member, now) <= JOIN_LAG_S:
                self._joining.setdefault(member, None)
        return self.committed.members | reached if reached else None

    def _remaining(
        self, now: float, acks: Mapping[int, int], least: int, leaving: Set[int]
    ) -> frozenset[int] | None:
        """Return the set without members that are absent or lag for too long, None if none is.

        Those that are not connected are removed first, then those that lag the longest.
        """
        others = self.committed.members - {self._member}
        absent = self._absent(now, acks, least, leaving)
        lagging = [m for m in others if m in absent or self._lag(m, now) > self._lag_s]
        lagging.sort(
            key=lambda member: (
                member not in absent and member in acks,
                -self._lag(member, now),
                member,
            )
        )
        removable = lagging[: max(len(self.committed.members) - least, 0)]
        return self.committed.members.difference(removable) if removable else None

    def _absent(
        self, now: float, acks: Mapping[int, int], least: int, leaving: Set[int]
    ) -> set[int]:
        """Return the members whose absence alone keeps messages from being acknowledged.

        Those that are about to stop will do so. If too few others are connected, nothing is gained
        by removing a member. A master that no member is connected to may be the one that is cut
        off. If all members stop in order, the set keeps two of them, either of which can be elected
        later.
        """
        others = self.committed.members - {self._member}
        staying = (others & acks.keys()) - leaving
        silent = {m for m in staying if now - self._moved_at[m] > SILENT_S}
        connected = staying - silent
        if not connected or 1 + len(connected) < least:
            return set()
        seen_at = self._seen_at
        gone = {m for m in others - acks.keys() if now - seen_at.get(m, self._began_at) > ABSENT_S}
        return silent | gone | (others & acks.keys() & leaving)

    def _lag(self, member: int, now: float) -> float:
        """Return for how many seconds a member has not been caught up."""
        progress = self._progress.get(member)
        return now - (progress.caught_up_at if progress is not None else self._began_at)

    def _common_offset(self, members: frozenset[int], end: int, acks: Mapping[int, int]) -> int:
        """Return an offset up to which all members have the log."""
        others = [acks.get(member, 0) for member in members - {self._member}]
        return max(self.committed.offset, min([end, *others]))
