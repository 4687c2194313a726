"""The state of a group of brokers, as one of its members sees it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from firetrail.replication.group.group_check import Refusal
from firetrail.replication.group.group_memory import GroupMemory
from firetrail.replication.group.group_view import LeaseHolder


class GroupProblem(StrEnum):
    """The reason, as a kind, why failover does not work at the moment. Scripts rely on them."""

    NONE = ""
    FULL_DISK = "full-disk"
    """The member cannot keep the state of the group on its disk."""
    NO_COORDINATOR = "no-coordinator"
    """The engine does not answer as it should."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The group as a member sees it at one moment.

    Attributes:
        holder: The holder of the lease; None if there is none, or if the state is refused.
        successor: The member that the holder has named to take over; 0 if there is none.
        in_sync: The members of the in-sync set.
        epoch: The epoch of the own lease; 0 if the member does not hold it.
        log_epoch: The number of the newest epoch of the log that the group knows.
        fenced_s: For how many seconds the member could not acknowledge although it holds the lease.
        is_member: Whether the number of the member is known to be its own.
        is_foreign: Whether the number is known to be that of another store.
        obstacle: The reason why the member does not campaign; empty if it may.
        error: The reason why the lease cannot be kept or won at the moment; empty if it can.
        problem: The same, as a kind.
        refusal: The reason why the member refuses the state of the engine; None if it accepts it.
        memory: The state that the member has seen of the group.
        addresses: ``ip:port`` of the brokers of all members, by number.
        older_master: Why nothing is removed that the elected master lacks; empty if it is not known
            to lack confirmed messages.
        older_log: Why the log of the member is older than the group, so that it may only be elected
            by an operator's decision; empty if it is not known to be.
    """

    holder: LeaseHolder | None
    successor: int
    in_sync: frozenset[int]
    epoch: int
    log_epoch: int
    fenced_s: float
    is_member: bool
    is_foreign: bool
    obstacle: str
    error: str
    problem: GroupProblem
    refusal: Refusal | None
    memory: GroupMemory
    addresses: Mapping[int, str]
    older_master: str = ""
    older_log: str = ""
