"""Headers of the requests between master and replicas that are Firetrail's own."""

from dataclasses import dataclass

from firetrail.remoting.messages.typed_header import Header, Long, OtherText


@dataclass(frozen=True, slots=True)
class PromoteHeader(Header):
    """PROMOTE_REPLICA: the replica becomes the master.

    With ``force``, the previous master is not asked. ``role`` is ``ASYNC_MASTER`` or
    ``SYNC_MASTER``; by default that of the previous master, or ``ASYNC_MASTER`` if it is unknown.
    ``override`` forces it although the replica has diverged, or its master accepts messages.
    """

    force: bool = False
    role: OtherText | None = None
    override: bool = False


@dataclass(frozen=True, slots=True)
class RecoverGroupHeader(Header):
    """RECOVER_GROUP: the log of this member is the group's from now on.

    ``others`` are the ids of the versions that the other members have seen last, separated by
    spaces. ``version`` and ``epoch`` are the largest ones that any of them has seen. ``asked`` are
    the numbers of all members that were asked.
    """

    others: OtherText = ""
    version: int = 0
    epoch: int = 0
    asked: OtherText = ""


@dataclass(frozen=True, slots=True)
class EpochHeader(Header):
    """GET_BROKER_EPOCH_CACHE; ``replica`` is Firetrail's: a replica asks, which may be promoted."""

    replica: bool = False


@dataclass(frozen=True, slots=True)
class HandOverHeader(Header):
    """HAND_OVER: the master refuses messages, because the broker at an address will replace it.

    With ``cancel`` it accepts messages again. ``member`` is the number of that broker in its group;
    0 if it is in none.
    """

    successor: OtherText
    cancel: bool = False
    member: int = 0


@dataclass(frozen=True, slots=True)
class StepDownHeader(Header):
    """STEP_DOWN: the master, which hands over, becomes a slave of its successor.

    ``epoch`` is the number of the epoch that its successor begins; 0 in a group, where it gives the
    lease to its successor.
    """

    successor: OtherText
    broker_id: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class LogRecordsHeader(Header):
    """GET_LOG_RECORDS: good records of the log, or the mark at the end of a file.

    ``offset`` is the physical offset of the first one, and ``size`` the most bytes to send; at
    least one record is sent. Another broker with the same log repairs its own with them.
    """

    offset: Long
    size: int
