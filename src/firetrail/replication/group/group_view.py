"""The members of a group, and its entries in the consensus engine, as they read and write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from firetrail.replication.group.group_memory import GroupMemory
from firetrail.replication.group.lineage import NO_PAST, Lineage


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group.

    Attributes:
        number: Its number.
        address: ``ip:port`` of its broker.
        ha_address: ``ip:port`` of its HA port.
        may_found: Whether it may create the group.
        lag_s: After how many seconds a member that is not caught up leaves the in-sync set.
    """

    number: int
    address: str
    ha_address: str
    may_found: bool
    lag_s: float


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
class LeaseHolder(Candidate):
    """The member that holds the lease; ``epoch`` is its fencing token."""

    epoch: int


@dataclass(frozen=True, slots=True)
class InSyncSet:
    """The members whose logs have everything that was acknowledged.

    Attributes:
        members: Their numbers.
        offset: Every member had the log up to this offset when the set was last changed. A member
            with less has lost its disk and must not campaign.
        revision: When the set was last changed; larger for a later change. 0 if it is not in the
            engine yet.
        lineage: The changes that led to this set.
    """

    members: frozenset[int]
    offset: int
    revision: int
    lineage: Lineage = NO_PAST

    def next(self, members: frozenset[int], offset: int, epoch: int = 0) -> InSyncSet:
        """Return the set that replaces this one; it is not in the engine yet.

        Args:
            members: Its members.
            offset: Its offset.
            epoch: The number of the epoch that begins with it. Default: 0, none.
        """
        return InSyncSet(members, offset, 0, self.lineage.continued(members, offset, epoch))


@dataclass(frozen=True, slots=True)
class MemberReport:
    """A report of a member to the others when it refuses the state of the engine.

    Attributes:
        memory: The state that it has seen of the group.
        end: The end of its log.
        confirmed: The offset up to which it knows its log to be confirmed.
    """

    memory: GroupMemory
    end: int
    confirmed: int = 0


@dataclass(frozen=True, slots=True)
class ConfirmedNote:
    """An offset up to which a holder of the lease knew the log to be confirmed.

    Attributes:
        group: The text that the group got when it was created.
        version: The version of the in-sync set at that time.
        offset: The offset.
    """

    group: str
    version: int
    offset: int


@dataclass(frozen=True, slots=True)
class GroupView:
    """The entries of a group at one revision of the engine.

    Attributes:
        revision: The revision.
        holder: The holder of the lease; None if there is none.
        in_sync: The in-sync set; None if the group was not created yet, or is lost.
        identities: The identities of the members' stores, by number.
        reports: The reports of members, by number.
        successor: The member that the holder has named: it is to take over, and no other may
            campaign for the time of a lease. 0 if there is none.
        addresses: ``ip:port`` of the members' brokers, by number.
        unleased: When an entry of a holder was created that is bound to no lease; 0 if there is
            none. A member did not write it, and it does not expire, so it does not count.
        confirmed: What a holder knew to be confirmed; None if no holder has written it.
    """

    revision: int
    holder: LeaseHolder | None
    in_sync: InSyncSet | None
    identities: Mapping[int, str] = field(default_factory=dict)
    reports: Mapping[int, MemberReport] = field(default_factory=dict)
    successor: int = 0
    addresses: Mapping[int, str] = field(default_factory=dict)
    unleased: int = 0
    confirmed: ConfirmedNote | None = None

    @property
    def confirmed_offset(self) -> int:
        """An offset that the logs of all members of the in-sync set have reached.

        A note of another group, or from before an operator's decision, does not count.
        """
        state, note = self.in_sync, self.confirmed
        if state is None:
            return 0
        if note is None or note.group != state.lineage.group:
            return state.offset
        return max(note.offset if note.version >= state.lineage.decided else 0, state.offset)


UNKNOWN = GroupView(0, None, None)


@dataclass(frozen=True, slots=True)
class SetChange:
    """A change of the in-sync set that the holder of ``epoch`` asks for.

    Attributes:
        epoch: The epoch of the holder.
        before: The set that is replaced.
        after: The new set.
    """

    epoch: int
    before: InSyncSet
    after: InSyncSet

    @property
    def members(self) -> frozenset[int]:
        """The new members."""
        return self.after.members
