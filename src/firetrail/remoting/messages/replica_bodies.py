"""JSON bodies about the epochs of a log and the status of master and replicas."""

from dataclasses import dataclass, field
from typing import Self

from firetrail.errors import FormatError, ProtocolError
from firetrail.format.files.timer import TimerCheck, decode_check
from firetrail.remoting.messages.typed_body import Body


def is_slave_role(role: str) -> bool:
    """Return whether a role that a broker or a file states is that of a slave, and not a master."""
    return role.upper() == "SLAVE"


@dataclass(frozen=True, slots=True)
class EpochEntry(Body):
    """The part of a log that one master wrote."""

    epoch: int = 0
    start_offset: int = 0
    end_offset: int = 0


@dataclass(frozen=True, slots=True)
class EpochEntryCache(Body):
    """The answer to GET_BROKER_EPOCH_CACHE, as RocketMQ 5.x has it."""

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: int = 0
    epoch_list: list[EpochEntry] = field(default_factory=list)
    max_offset: int = 0


@dataclass(frozen=True, slots=True)
class TimerCheckpoint(Body):
    """The answer to GET_TIMER_CHECK_POINT, which is not JSON but 56 bytes."""

    check: TimerCheck = field(default_factory=TimerCheck)

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Decode the body; raise ProtocolError if it is too short."""
        try:
            return cls(decode_check(body))
        except FormatError as error:
            raise ProtocolError(str(error)) from error


@dataclass(frozen=True, slots=True)
class FollowerReport(Body):
    """The state of a slave that follows its master.

    ``lag``, ``masterMinOffset`` and ``masterMaxOffset`` are -1 if they are not known; times are in
    ms since 1970, 0 for never. ``missing`` is the number of bytes at the beginning of the master's
    log that the slave has deleted.
    """

    state: str
    master_address: str = ""
    master_max_offset: int = -1
    lag: int = -1
    error: str = ""
    since_timestamp: int = 0
    received_timestamp: int = 0
    tables_timestamp: int = 0
    table_errors: dict[str, str] = field(default_factory=dict)
    master_min_offset: int = -1
    missing: int = 0


@dataclass(frozen=True, slots=True)
class SeenReport(Body):
    """The group as a member has seen it, which the member keeps in its store.

    ``group`` is the text that the group got when it was created, empty if the member has seen none.
    ``version`` counts elections and changes of the in-sync set, and ``versionId`` is the id of the
    newest one. ``epoch`` is the largest number of an epoch of the log. ``inSync`` are the members
    of the in-sync set then, and ``members`` all members. ``history`` are the ids of the last
    versions, newest last, and ``overruled`` those of versions over which operators have decided.
    """

    group: str = ""
    version: int = 0
    version_id: str = ""
    epoch: int = 0
    in_sync: list[int] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    history: list[str] = field(default_factory=list)
    overruled: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GroupReport(Body):
    """A group with automatic failover, as one of its members knows it.

    ``holder`` is the address of the member that holds the lease, ``member`` its number and
    ``epoch`` the number of the lease; empty and 0 if no member holds it, or if the asked member
    refuses the state of the group in etcd. Then ``doubt`` says why in one word, such as
    ``coordinator-older``, and ``refusal`` in a sentence with the remedy. ``obstacle`` says why the
    asked member cannot be elected now, and ``error`` why failover does not work at the moment;
    ``problem`` is the same in one word, ``full-disk`` or ``no-coordinator``.
    ``number`` is the number of the asked member, and ``seen`` what it has seen of the group.
    ``isMember`` is false if the number belongs to another store. ``addresses`` are those of the
    brokers of all members, by number. ``olderMaster`` says that the elected master lacks messages
    that were confirmed, with the remedy, and ``olderLog`` that the asked member does.
    """

    holder: str = ""
    member: int = 0
    epoch: int = 0
    in_sync: list[int] = field(default_factory=list)
    obstacle: str = ""
    error: str = ""
    number: int = 0
    doubt: str = ""
    refusal: str = ""
    seen: SeenReport | None = None
    is_member: bool = True
    addresses: dict[int, str] = field(default_factory=dict)
    older_master: str = ""
    problem: str = ""
    older_log: str = ""


@dataclass(frozen=True, slots=True)
class HandOverReport(Body):
    """A hand-over that is not finished: there may be no master.

    ``master`` was asked to step down for ``successor``, which begins ``epoch``; the asked broker is
    one of the two. ``remark`` describes the known facts, and the remedy.
    """

    master: str = ""
    successor: str = ""
    epoch: int = 0
    remark: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaStatus(Body):
    """The answer to GET_REPLICA_STATUS, HAND_OVER and STEP_DOWN.

    ``follower`` is missing for a master, ``group`` for a broker whose role is fixed, and
    ``handOver`` unless a hand-over is not finished.
    ``refusal`` says why messages are refused. ``step`` is the present step of a change of the role,
    and ``stepError`` the reason why the last one failed. ``nameServers`` are those with which the
    broker registers while it is a master; None if it does not report it (a Java broker).
    ``unconfirmed`` says why a SYNC_MASTER cannot confirm messages now. ``epochStartOffset`` is the
    offset at which the newest epoch of the log begins; -1 if the log has none, or if an older
    broker does not report it. ``damagedRecords`` is the number of places in the log that are
    damaged and not repaired yet. ``confirmedOffset`` is the end of the part of the log that the
    broker knows to be confirmed by the replicas that count; -1 if it does not report it.
    """

    address: str
    cluster_name: str
    broker_name: str
    broker_id: int
    role: str
    epoch: int = 0
    min_offset: int = 0
    max_offset: int = 0
    refusal: str = ""
    step: str = ""
    step_error: str = ""
    follower: FollowerReport | None = None
    group: GroupReport | None = None
    hand_over: HandOverReport | None = None
    name_servers: list[str] | None = None
    unconfirmed: str = ""
    epoch_start_offset: int = -1
    damaged_records: int = 0
    confirmed_offset: int = -1

    @property
    def is_slave(self) -> bool:
        """Whether the broker is a slave now, and not a master."""
        return is_slave_role(self.role)
