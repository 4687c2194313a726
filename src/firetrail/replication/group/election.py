"""The election of the master of a group of brokers, through a consensus engine.

The engine keeps two entries per group. The *leader entry* names the holder of the lease, and
vanishes when the lease expires. Its *epoch* is the engine's revision at which it was created. A
later holder has a larger epoch, so it is the fencing token. The *in-sync set* lists the members
whose logs have everything that was acknowledged. Only they may campaign, and only the holder of the
lease can change the set: the engine compares the epoch of the leader entry in the same transaction.

This module decides without I/O; :class:`Coordinator` is the interface to an engine. A Kubernetes
lease or ZooKeeper can implement it as well (``docs/design/failover.md`` says how).

Time: a lease lasts at least ``ttl_s`` from the moment at which the request for it, or for its
renewal, was *sent*. The holder therefore stops acknowledging at that moment plus ``ttl_s`` minus a
margin, by its own clock, without asking anyone.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from firetrail.replication.group.group_check import (
    REMEDY,
    Refusal,
    StateConflict,
    find_refusal,
    restored_set,
)
from firetrail.replication.group.group_memory import NOTHING_SEEN, GroupMemory
from firetrail.replication.group.group_view import (
    UNKNOWN,
    Candidate,
    ConfirmedNote,
    GroupView,
    InSyncSet,
    MemberReport,
    SetChange,
)
from firetrail.replication.group.lineage import next_epoch
from firetrail.replication.log.epochs import NUMBER_MAX

RENEWALS_PER_TTL = 5
"""The number of renewals within the time of a lease, so that some of them may fail."""
MARGIN_PART = 5
"""The holder stops acknowledging this part (one fifth) of the lease's time before it can expire.

The margin covers clocks of different speeds, and the time between the last look at the clock and
the moment at which an acknowledgement leaves the machine.
"""
REVISION_MAX = NUMBER_MAX // 2
"""The largest revision of the engine that an epoch exceeds, so that a million more can follow."""
NOT_FOUNDED = "the group has no in-sync set yet; the member configured as master creates it"
FORMER_MEMBER = (
    "etcd has no state of the group, but this store was a member of one under a release that did "
    f"not keep what it had seen; {REMEDY}"
)


class Coordinator(Protocol):
    """A consensus engine. All calls block; one thread may watch while another one does the rest.

    All of them raise NotReachedError if the engine cannot be reached (a request may have been
    executed nevertheless), and ElectionError if it refuses the request.
    """

    def claim(self, member: int, identity: str) -> str:
        """Bind a number to an identity for good, unless it is bound; return the bound identity."""

    def announce(self, member: int, address: str) -> None:
        """Tell the other members where the broker of a member listens."""

    def campaign(
        self, candidate: Candidate, expected: InSyncSet | None, proposed: InSyncSet
    ) -> GroupView:
        """Grant a new lease and create the leader entry with it, if there is none.

        The engine must check in the same transaction that the in-sync set is still ``expected``,
        revision and content, and replace it by ``proposed``. With None there must be no set.

        Returns:
            The group after the attempt, won or lost.
        """

    def renew(self) -> bool:
        """Renew the lease of the last campaign; return False if it has expired."""

    def resign(self) -> None:
        """End the lease of the last campaign; the leader entry vanishes with it."""

    def watch(self, revision: int, timeout_s: float) -> GroupView:
        """Wait for a change after ``revision`` or for the timeout; return the group as it is now.

        The result must be no older than the call (a linearizable read).
        """

    def name_successor(self, epoch: int, member: int, *, leave: bool) -> GroupView:
        """Name the member that is to take over from the holder of ``epoch``.

        The entry vanishes after the time of a lease. With ``leave`` the leader entry is deleted in
        the same transaction, so that no other member can win before the successor.

        Returns:
            The group after the attempt. Nothing has changed if ``epoch`` is not the holder's.
        """

    def change_in_sync(self, change: SetChange) -> GroupView:
        """Replace the in-sync set if the holder's epoch and the set are as expected.

        Returns:
            The group after the attempt.
        """

    def remove_unleased(self, created: int) -> GroupView:
        """Delete the leader entry if it is bound to no lease, and was created at this revision.

        Returns:
            The group after the attempt.
        """

    def note_confirmed(self, epoch: int, note: ConfirmedNote) -> GroupView:
        """Write down what is known to be confirmed, if ``epoch`` is the holder's.

        Returns:
            The group after the attempt.
        """

    def report(self, member: int, report: MemberReport | None) -> None:
        """Tell the other members what a member has seen; with None, withdraw it."""

    def recover(self, expected: InSyncSet | None, decided: InSyncSet) -> GroupView:
        """Replace the in-sync set, as an operator has decided, if no member holds the lease.

        The set must still be ``expected``, or missing with None. All reports are withdrawn.

        Returns:
            The group after the attempt.
        """

    def close(self) -> None:
        """End a call of :meth:`watch` in another thread, and close all connections."""


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """The duration of a lease that is not renewed, in seconds."""

    ttl_s: float = 10.0

    @property
    def margin_s(self) -> float:
        """The time before the end of the lease at which its holder stops acknowledging."""
        return self.ttl_s / MARGIN_PART

    @property
    def renew_s(self) -> float:
        """The pause between two renewals."""
        return self.ttl_s / RENEWALS_PER_TTL


class Campaign(NamedTuple):
    """The request of a campaign to the engine."""

    expected: InSyncSet | None
    """The in-sync set that must be in the engine; None if there must be none."""
    proposed: InSyncSet
    """The in-sync set that replaces it."""


class Election:
    """The group as one member knows it, which decides whether the member may acknowledge.

    It does no I/O: the caller reports what it has sent and what the engine has answered.

    Attributes:
        view: The newest known state of the group.
        refusal: The reason why that state is refused; None if it is accepted.
        memory: The state that the member has seen of the group in states that it accepted.
        epoch: The epoch of the own lease; 0 if the member does not hold it.
        until: The time on the own clock from which the member must not acknowledge.
    """

    def __init__(
        self,
        member: int,
        timing: LeaseTiming,
        *,
        may_found: bool,
        memory: GroupMemory | None = NOTHING_SEEN,
        remember: Callable[[GroupMemory], None] = lambda memory: None,
    ) -> None:
        """Begin without knowing anything but what the store says.

        Args:
            member: The number of this member.
            timing: The times of the lease.
            may_found: Whether the member may create the group's in-sync set if there is none.
            memory: What the member has seen of the group; None if it was a member under a release
                that did not keep it. Default: NOTHING_SEEN.
            remember: Keeps on disk what the member has seen, before it acts on it. If it raises,
                the state is not taken. The default keeps nothing.
        """
        self._member = member
        self._timing = timing
        self._may_found = may_found
        self._is_former_member = memory is None
        self._remember = remember
        self._token = ""
        self._sent_at = -math.inf  # when the campaign of the token was sent
        self.view = UNKNOWN
        self.refusal: Refusal | None = None
        self.memory = memory or NOTHING_SEEN
        self.epoch = 0
        self.until = -math.inf

    def holds(self, now: float) -> bool:
        """Return whether the member may acknowledge at this time."""
        return self.epoch > 0 and now < self.until

    def campaign_obstacle(self, log_end: int) -> str:
        """Return why the member may not campaign now; empty if it may.

        Args:
            log_end: The end of the member's log.
        """
        view = self.view
        if view is UNKNOWN:
            return "the consensus engine has not answered yet"
        if self.refusal is not None:
            return "" if self._restored() is not None else self.refusal.reason
        if view.holder is not None:
            return f"member {view.holder.member} holds the lease"
        if view.unleased:
            return (
                "the entry 'leader' of the group in etcd is bound to no lease: a member did not "
                "write it, and it does not expire; the members delete it after "
                f"{self._timing.ttl_s:g} s"
            )
        if view.successor not in (0, self._member):
            return f"member {view.successor} is about to take over"
        if view.in_sync is None:
            if self._is_former_member:
                return FORMER_MEMBER
            return "" if self._may_found else NOT_FOUNDED
        if self._member not in view.in_sync.members:
            members = ", ".join(map(str, sorted(view.in_sync.members)))
            return f"its log may lack acknowledged messages: the in-sync set is {members}"
        return self.older_log(log_end)

    def older_log(self, log_end: int) -> str:
        """Return why the log of a member of the in-sync set is older than the group; empty if it is
        not, or if the member is none.

        Args:
            log_end: The end of the member's log.
        """
        view = self.view
        is_asked = view.in_sync is not None and self._member in view.in_sync.members
        if self.refusal is not None or not is_asked or log_end >= view.confirmed_offset:
            return ""
        return (
            f"its log ends at {log_end}, but acknowledged messages reach at least to "
            f"{view.confirmed_offset}: its disk was replaced or restored"
        )

    def _restored(self) -> InSyncSet | None:
        """Return the in-sync set with which this member creates a lost group again, if it may."""
        view, refusal = self.view, self.refusal
        if refusal is None or refusal.doubt is not StateConflict.LOST or view.holder is not None:
            return None
        own = view.reports.get(self._member)
        if own is None or own.memory != self.memory:
            return None
        found = restored_set(view.reports)
        return found[1] if found is not None and found[0] == self._member else None

    def report(
        self, log_end: int, confirmed_end: int = 0, *, is_short: bool = False
    ) -> MemberReport | None:
        """Return the report of the member to the others; None if there is nothing to report.

        Args:
            log_end: The end of the member's log.
            confirmed_end: The end of the part that it knows to be confirmed. Default: 0.
            is_short: Whether the log lacks, or may lack, messages that were confirmed. Then the
                others are told its end while there is no master. Default: False.
        """
        is_told = is_short and self.view.holder is None and self.view is not UNKNOWN
        is_needed = (self.refusal is not None or is_told) and self.memory.group
        return MemberReport(self.memory, log_end, confirmed_end) if is_needed else None

    def campaign(self, token: str, now: float, log_epoch: int) -> Campaign:
        """Note that a campaign is sent now; return what it asks for.

        Args:
            token: The token of the campaign.
            now: The time before the request for the lease is sent.
            log_epoch: The number of the newest epoch in the member's log.
        """
        self._token, self._sent_at = token, now
        view = self.view
        base = view.in_sync or self._restored() or InSyncSet(frozenset({self._member}), 0, 0)
        known = max(base.lineage.epoch, self.memory.epoch, log_epoch)
        if view.revision <= REVISION_MAX:
            known = max(known, view.revision)
        epoch = next_epoch(self._member, known)
        return Campaign(view.in_sync, base.next(base.members, base.offset, epoch))

    def observe(self, view: GroupView, known: int = 0) -> None:
        """Note a state of the group. A late answer, which is older than the known one, is ignored.

        Args:
            view: The state.
            known: The revision of the newest state that was known when the request was sent. An
                answer with a smaller one is not late: The engine has gone back. Default: 0, any
                older state is late.
        """
        if self.view is not UNKNOWN and known <= view.revision < self.view.revision:
            return
        refusal = find_refusal(view, self.memory, self._member)
        if refusal is None:
            self._learn(view)
        self.view, self.refusal = view, refusal
        holder = view.holder
        if (
            refusal is not None
            or holder is None
            or holder.token != self._token
            or self.epoch not in (0, holder.epoch)
        ):
            self._lose()
        elif self.epoch == 0:
            self.epoch = holder.epoch
            self.until = self._sent_at + self._timing.ttl_s - self._timing.margin_s

    def _learn(self, view: GroupView) -> None:
        """Keep the facts of an accepted state."""
        state, before = view.in_sync, self.memory
        if state is None or not state.lineage.group:
            return
        lineage = state.lineage
        is_known = bool(before.group)
        # Only a decision that knew the log of this member may give a part of it up.
        is_decided = before.last_id in lineage.overruled and lineage.decided > before.decided
        is_asked = self._member in lineage.asked and self._member not in state.members
        memory = GroupMemory(
            group=lineage.group,
            version=lineage.version,
            epoch=lineage.epoch,
            history=list(lineage.history),
            decided=lineage.decided,
            in_sync=sorted(state.members),
            offset=state.offset,
            members=sorted({*view.identities, *state.members}),
            may_truncate=before.may_truncate or (is_decided and is_asked),
            overruled=list(lineage.overruled),
            decision_members=list(lineage.asked),
            was_excluded=before.was_excluded
            or (is_known and lineage.excludes(self._member, before.decided)),
        )
        if memory != before:
            self._remember(memory)
            self.memory = memory
            self._is_former_member = False

    def followed(self) -> None:
        """Note that the log is that of the elected master: what was decided is done."""
        if self.memory.may_truncate or self.memory.was_excluded:
            memory = replace(self.memory, may_truncate=False, was_excluded=False)
            self._remember(memory)
            self.memory = memory

    def is_renewal_due(self, now: float) -> bool:
        """Return whether it is time to renew the lease, or whether it is overdue."""
        valid_until = self.until + self._timing.margin_s
        return self.epoch > 0 and now >= valid_until - self._timing.ttl_s + self._timing.renew_s

    def renewed(self, sent_at: float) -> None:
        """Note that a renewal succeeded.

        Args:
            sent_at: The time before the request was sent.
        """
        if self.epoch:
            until = sent_at + self._timing.ttl_s - self._timing.margin_s
            self.until = max(self.until, until)

    def expired(self) -> None:
        """Note that the engine has ended the lease, or stop holding it: nothing is acknowledged."""
        self._token = ""
        self._lose()

    def _lose(self) -> None:
        self.epoch = 0
        self.until = -math.inf
