"""Who is the master of a group of brokers, decided by a consensus engine.

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

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

RENEWALS_PER_TTL = 5
"""How often the lease is renewed within its time, so that some renewals may fail."""
MARGIN_PART = 5
"""The holder stops acknowledging this part (one fifth) of the lease's time before it can expire.

The margin covers clocks of different speeds, and the time between the last look at the clock and
the moment at which an acknowledgement leaves the machine.
"""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member that campaigns.

    Attributes:
        member: Its number in the group, at least 1.
        address: ``ip:port`` of its broker.
        ha_address: ``ip:port`` of its HA port while it is the master.
        token: A text that no other campaign uses, by which the member recognizes its own entry.
    """

    member: int
    address: str
    ha_address: str
    token: str


@dataclass(frozen=True, slots=True)
class Holder(Candidate):
    """The member that holds the lease; ``epoch`` is its fencing token."""

    epoch: int


@dataclass(frozen=True, slots=True)
class InSyncSet:
    """The members whose logs have everything that was acknowledged.

    Attributes:
        members: Their numbers.
        offset: Every member had the log up to this offset when the set was last changed. A member
            with less has lost its disk and must not campaign.
        revision: When the set was last changed; larger for a later change.
    """

    members: frozenset[int]
    offset: int
    revision: int


@dataclass(frozen=True, slots=True)
class GroupView:
    """The entries of a group at one revision of the engine."""

    revision: int
    holder: Holder | None
    in_sync: InSyncSet | None


UNKNOWN = GroupView(0, None, None)
NOT_FOUNDED = "the group has no in-sync set yet; the member configured as master creates it"


@dataclass(frozen=True, slots=True)
class SetChange:
    """A change of the in-sync set that the holder of ``epoch`` asks for.

    Attributes:
        epoch: The epoch of the holder.
        before: The revision of the set that is replaced.
        members: The new members.
        offset: See :class:`InSyncSet`.
    """

    epoch: int
    before: int
    members: frozenset[int]
    offset: int


class Coordinator(Protocol):
    """A consensus engine. All calls block; one thread may watch while another one does the rest.

    All of them raise NotReachedError if the engine cannot be reached (a request may have been
    executed all the same), and ElectionError if it refuses the request.
    """

    def claim(self, member: int, identity: str) -> str:
        """Bind a number to an identity for good, unless it is bound; return the bound identity."""

    def campaign(self, candidate: Candidate, expected: InSyncSet | None) -> GroupView:
        """Grant a new lease and create the leader entry with it, if there is none.

        The engine must check in the same transaction that the in-sync set is still ``expected``.
        With None there must be no set; it is then created with the candidate as its only member.

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

    def change_in_sync(self, change: SetChange) -> GroupView:
        """Replace the in-sync set if the holder's epoch and the set's revision are as expected.

        Returns:
            The group after the attempt.
        """

    def close(self) -> None:
        """End a call of :meth:`watch` in another thread, and close all connections."""


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """How long a lease lasts without being renewed, in seconds."""

    ttl_s: float = 10.0

    @property
    def margin_s(self) -> float:
        """How long before the end of the lease its holder stops acknowledging."""
        return self.ttl_s / MARGIN_PART

    @property
    def renew_s(self) -> float:
        """The pause between two renewals."""
        return self.ttl_s / RENEWALS_PER_TTL


class Election:
    """What one member knows about the group, and whether it may acknowledge. It does no I/O.

    The caller reports what it has sent and what the engine has answered.

    Attributes:
        view: The newest known state of the group.
        epoch: The epoch of the own lease; 0 if the member does not hold it.
        until: The time on the own clock from which the member must not acknowledge.
    """

    def __init__(self, member: int, timing: LeaseTiming, *, may_found: bool) -> None:
        """Begin without knowing anything.

        Args:
            member: The number of this member.
            timing: The times of the lease.
            may_found: Whether the member may create the group's in-sync set if there is none.
        """
        self._member = member
        self._timing = timing
        self._may_found = may_found
        self._token = ""
        self._sent_at = -math.inf  # when the campaign of the token was sent
        self.view = UNKNOWN
        self.epoch = 0
        self.until = -math.inf

    def holds(self, now: float) -> bool:
        """Return whether the member may acknowledge at this time."""
        return self.epoch > 0 and now < self.until

    def obstacle(self, log_end: int) -> str:
        """Return why the member may not campaign now; empty if it may.

        Args:
            log_end: The end of the member's log.
        """
        view = self.view
        if view is UNKNOWN:
            return "the consensus engine has not answered yet"
        if view.holder is not None:
            return f"member {view.holder.member} holds the lease"
        if view.in_sync is None:
            return "" if self._may_found else NOT_FOUNDED
        if self._member not in view.in_sync.members:
            members = ", ".join(map(str, sorted(view.in_sync.members)))
            return f"its log may lack acknowledged messages: the in-sync set is {members}"
        if log_end < view.in_sync.offset:
            return (
                f"its log ends at {log_end}, but acknowledged messages reach at least to "
                f"{view.in_sync.offset}: its disk was replaced or restored"
            )
        return ""

    def campaign(self, token: str, now: float) -> InSyncSet | None:
        """Note that a campaign is sent now; return the in-sync set that it must expect.

        Args:
            token: The token of the campaign.
            now: The time before the request for the lease is sent.
        """
        self._token, self._sent_at = token, now
        return self.view.in_sync

    def saw(self, view: GroupView) -> None:
        """Note a state of the group. An older one than the known one is ignored."""
        if self.view is not UNKNOWN and view.revision < self.view.revision:
            return
        self.view = view
        holder = view.holder
        if holder is None or holder.token != self._token or self.epoch not in (0, holder.epoch):
            self._lose()
        elif self.epoch == 0:
            self.epoch = holder.epoch
            self.until = self._sent_at + self._timing.ttl_s - self._timing.margin_s

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
