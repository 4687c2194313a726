"""The master's side of an HA connection, without any I/O."""

from math import inf
from typing import NamedTuple, Protocol

from firetrail.errors import DivergedError, ProtocolError, ReplicationError
from firetrail.replication.ha.ha_frames import (
    BODY_MAX,
    FROM_THE_START,
    NO_IDENTITY,
    ReportReader,
    introduced_member,
    is_farewell,
    log_end,
)
from firetrail.store.log.replica_acks import NO_MEMBER


class SentLog(Protocol):
    """The commit log that is sent to replicas."""

    @property
    def file_size(self) -> int:
        """The length of its files."""

    @property
    def min_offset(self) -> int:
        """The physical offset of the oldest record."""

    @property
    def sendable_offset(self) -> int:
        """The physical offset up to which the log may be sent."""

    @property
    def shown_offset(self) -> int:
        """The physical offset before which consumers may see the log."""


class Transfer(NamedTuple):
    """The next bytes of the log to send, or with size 0 a heartbeat."""

    offset: int
    size: int


class MasterSession:
    """Sends the log to one replica over one connection.

    Attributes:
        acked: The end of the replica's log as it was last reported; -1 before the first report.
        position: The offset of the next byte to send; -1 before the first report.
        member: The number of the replica in its group; 0 if it has not named one.
        identity: The number of the replica's store; 0 if it has not named one.
        is_introduced: Whether the replica is Firetrail, and so takes confirmations.
        is_leaving: Whether the replica has said that it is about to stop.
    """

    def __init__(self, log: SentLog, batch_size: int, heartbeat_s: float, now: float) -> None:
        """Prepare to send.

        Args:
            log: The log of the master.
            batch_size: The most bytes of the log in one transfer.
            heartbeat_s: The most seconds between two transfers.
            now: The current monotonic time.
        """
        self._log = log
        self._reader = ReportReader()
        self._batch_size = min(batch_size, BODY_MAX)
        self._heartbeat_s = heartbeat_s
        self._sent_at = now
        self.acked = -1
        self.position = -1
        self.member = NO_MEMBER
        self.identity = NO_IDENTITY
        self.is_introduced = False
        self.is_leaving = False
        self._awaits_identity = False  # whether the next "report" is the rest of an introduction
        self._confirmed = -1  # the offset that was last confirmed to the replica
        self.read_at = now
        """The time at which the replica reported for the last time."""

    def receive(self, data: bytes, now: float) -> bool:
        """Process received bytes; return whether the replica has acknowledged more.

        Raises:
            DivergedError: The replica has more than this master.
            ReplicationError: The replica needs bytes that retention has deleted.
            ProtocolError: A report is not possible.
        """
        acked = self.acked
        for offset in self._reader.feed(data):
            self.read_at = now
            if self.position < 0:
                if self._is_introduction(offset):
                    continue
                self.position = self._start(offset)
                self._sent_at = -inf  # answer at once, if only with a heartbeat
            elif self.is_introduced and is_farewell(offset):
                self.is_leaving = True
                continue
            elif not 0 <= offset <= self.position:
                raise ProtocolError(
                    f"the replica acknowledges offset {offset}, but was sent the log only up to "
                    f"{self.position}"
                )
            self.acked = log_end(offset)
        return self.acked > acked

    def _is_introduction(self, report: int) -> bool:
        """Process a "report" that is a part of the introduction; return whether it was one."""
        if self._awaits_identity:
            self.identity, self._awaits_identity = ~report, False
            return True
        member = None if self.is_introduced else introduced_member(report)
        if member is None:
            return False
        self.member, self.is_introduced, self._awaits_identity = member, True, True
        return True

    def _start(self, requested: int) -> int:
        """Return the offset from which a replica is served that has the log up to ``requested``.

        A replica without a log gets everything. Java's master would send its last file only.
        """
        begin, end = self._log.min_offset, self._log.sendable_offset
        if requested == 0:
            return begin
        if requested < 0:
            raise ProtocolError(f"the replica reports offset {requested}, which is not possible")
        if requested < begin:
            raise ReplicationError(
                f"the replica has the log up to {requested}, but retention has deleted everything "
                f"before {begin}; start the replica with an empty folder"
            )
        if requested > max(end, FROM_THE_START):  # a replica of an empty master reports that, too
            raise DivergedError(
                f"the replica has the log up to {requested}, but this master only up to {end}: "
                "their logs differ; rewind the replica with 'firetrail replica rewind'"
            )
        return requested

    def next_transfer(self, now: float, allowance: int = BODY_MAX) -> Transfer | None:
        """Return the transfer to send now, or None if nothing is due.

        A transfer never crosses the end of a file.

        Args:
            now: The current monotonic time.
            allowance: The most bytes of the log that flow control permits now.
        """
        if self.position < 0:
            return None
        end = self.position - self.position % self._log.file_size + self._log.file_size
        size = min(
            self._log.sendable_offset - self.position,
            end - self.position,
            self._batch_size,
            allowance,
        )
        if size <= 0 and now - self._sent_at < self._heartbeat_s:
            return None
        transfer = Transfer(self.position, max(size, 0))
        self.position += transfer.size
        self._sent_at = now
        return transfer

    @property
    def behind(self) -> int:
        """Bytes of the log that may be sent and were not; 0 before the first report."""
        return self._log.sendable_offset - self.position if self.position >= 0 else 0

    @property
    def owes_confirmation(self) -> bool:
        """Whether the replica has yet to be told how much of the log it may show."""
        if not self.is_introduced or self.position < 0:
            return False
        return self._log.shown_offset != self._confirmed

    def next_confirmation(self) -> int | None:
        """Return the offset before which the replica may show the log; None if it knows it."""
        if not self.owes_confirmation:
            return None
        self._confirmed = self._log.shown_offset
        return self._confirmed
