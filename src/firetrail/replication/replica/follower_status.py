"""The status of a replica: its state, and its progress."""

from dataclasses import dataclass
from enum import Enum

from firetrail.replication.replica.master_check import MasterAddress


class FollowerState(Enum):
    """The state of a replica."""

    WAITING = "waiting"
    """No master is known, or a RocketMQ master has no messages yet."""
    CHECKING = "checking"
    """The master's log is being compared with the replica's."""
    FOLLOWING = "following"
    STUCK = "stuck"
    """The master does not have, or does not send, the records that the replica needs next."""
    DIVERGED = "diverged"
    """The logs of master and replica are not the same."""
    FAILED = "failed"
    """The master cannot be followed for another reason; see the error."""


_ASKED = (FollowerState.FOLLOWING, FollowerState.STUCK, FollowerState.WAITING)
"""The states in which the master is asked regularly where its log ends."""


@dataclass(frozen=True, slots=True)
class FollowerStatus:
    """The progress of a replica, at one moment.

    Attributes:
        state: Its present activity.
        master: The master; None if none is known.
        own_max: Where the replica's log ends.
        master_max: Where the master's log ended when that was last seen; -1 if unknown.
        error: The reason why the replica does not follow; empty if it does.
        since_ms: The time at which the state began, in milliseconds since 1970.
        read_at_ms: When the master last sent something over the HA connection; 0 if never.
        wrote_at_ms: The time at which the replica last reported; 0 if never.
        received: Bytes of the log that were received over the current connection.
        own_min: Where the replica's log begins.
        master_min: Where the master's log began when that was last seen; -1 if unknown.
    """

    state: FollowerState
    master: MasterAddress | None
    own_max: int
    master_max: int
    error: str
    since_ms: int
    read_at_ms: int = 0
    wrote_at_ms: int = 0
    received: int = 0
    own_min: int = 0
    master_min: int = -1

    @property
    def missing(self) -> int:
        """Bytes at the beginning of the master's log that the replica has deleted."""
        if self.master_min < 0 or self.own_min == self.own_max:
            return 0
        return max(self.own_min - self.master_min, 0)

    @property
    def lag(self) -> int:
        """Bytes that the master has and the replica lacks; -1 if unknown.

        It is unknown while the master is not asked: it may have stored more since then.
        """
        if self.master_max < 0 or self.state not in _ASKED:
            return -1
        return max(self.master_max - self.own_max, 0)
