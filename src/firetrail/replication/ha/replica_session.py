"""The replica's side of an HA connection, without any I/O.

A session takes the bytes that a master sends and returns the reports to send back. Threads, sockets
and clocks are left to the caller, so that tests can cut and delay a connection at any byte.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from firetrail.errors import ReplicationError
from firetrail.replication.ha.ha_frames import (
    FAREWELL,
    FROM_THE_START,
    NO_IDENTITY,
    Piece,
    TransferReader,
    encode_introduction,
    encode_report,
    log_end,
)
from firetrail.replication.log.incoming_log import CopiedLog, IncomingLog
from firetrail.store.log.replica_acks import NO_MEMBER


class Introduction(NamedTuple):
    """The introduction of a replica to a Firetrail master.

    Attributes:
        confirm: Called with the offset before which the replica may show its log.
        member: The number of the replica in its group. Default: NO_MEMBER.
        identity: The number of its store. Default: NO_IDENTITY.
    """

    confirm: Callable[[int], None]
    member: int = NO_MEMBER
    identity: int = NO_IDENTITY


class ReplicaSession:
    """Follows a master over one connection.

    This class speaks the classic protocol; another one is a subclass.

    Attributes:
        master_offset: The end of the master's log as far as this connection has seen it; -1 before
            the master has sent anything.
        received: Bytes of the log that were received.
    """

    def __init__(
        self,
        log: CopiedLog,
        durable_offset: Callable[[], int],
        begin: int,
        now: float,
        heartbeat_s: float,
        introduction: Introduction | None = None,
    ) -> None:
        """Prepare to follow.

        Args:
            log: The log of the replica.
            durable_offset: Returns the offset that may be reported: everything before it is kept.
            begin: Where the log continues: its end, or for an empty log the offset of the master's
                first record.
            now: The current monotonic time.
            heartbeat_s: The most seconds between two reports.
            introduction: How the replica introduces itself. Default: None, for a master that is not
                Firetrail.
        """
        self._log = log
        self._durable_offset = durable_offset
        self._incoming = IncomingLog(log, begin)
        self._reader = TransferReader(confirmations=introduction is not None)
        self._introduction = introduction
        self._heartbeat_s = heartbeat_s
        self._reported = -1
        self._has_left = False
        self._reported_at = now
        self._first_report = self._ask_for(begin)
        self.master_offset = -1
        self.received = 0
        self.read_at = now
        """The time at which the master sent something for the last time."""

    @property
    def is_ready(self) -> bool:
        """Whether the connection is open: the classic protocol has no handshake."""
        return True

    @property
    def position(self) -> int:
        """The offset of the next byte that the master has to send."""
        return self._incoming.position

    def receive(self, data: memoryview, now: float) -> bool:
        """Process received bytes; return whether the replica's log has grown.

        Raises:
            ProtocolError: The bytes are not transfers.
            DivergedError: The master continues at another offset than the replica.
            ReplicationError: The bytes of the log are damaged or do not fit.
        """
        self.read_at = now
        grown = False
        for piece in self._pieces(data):
            if piece.confirmed >= 0 and self._introduction is not None:
                self._introduction.confirm(piece.confirmed)
                continue
            if not piece.content:
                self._check_heartbeat(piece.offset)
            elif self._incoming.receive(piece.offset, piece.content):
                grown = True
            self.received += len(piece.content)
            end = log_end(piece.offset + len(piece.content))
            self.master_offset = max(self.master_offset, end)
        return grown

    def _ask_for(self, begin: int) -> int:
        """Return the first report, with which the master sends its log from ``begin`` on."""
        if begin > 0:
            return begin
        self._incoming.receive(0, memoryview(b"\0"))
        return FROM_THE_START

    def _pieces(self, data: memoryview) -> Iterator[Piece]:
        return self._reader.feed(data)

    def _encode_report(self, offset: int) -> bytes:
        return encode_report(offset)

    def _check_heartbeat(self, offset: int) -> None:
        """Check that a heartbeat, which names the next offset, continues the replica's log."""
        if offset != self._incoming.position:
            raise ReplicationError(
                f"the master would continue at offset {offset}, but the replica has its log up to "
                f"{self._incoming.position}"
            )

    def report(self, now: float) -> bytes | None:
        """Return the report that is due, or None.

        A report is due when the log has grown, and after ``heartbeat_s`` without one. No other one
        follows the first until the master has sent data: a Java master reads only the last report
        of those that arrive together.
        """
        if self._reported < 0:
            if self._durable_offset() < self._log.max_offset:
                return None  # the master takes the first report for a confirmation as well
            report = self._note_report(self._first_report, now)
            return self._encode_introduction() + report
        if self.master_offset < 0:
            return None
        offset = max(self._durable_offset(), self._first_report)
        if offset > self._reported or now - self._reported_at >= self._heartbeat_s:
            return self._note_report(offset, now)
        return None

    def farewell(self) -> bytes:
        """Return the frame that says that the replica is about to stop; empty if it is not due.

        It is due once, to a Firetrail master that has answered the first report.
        """
        if self._introduction is None or self.master_offset < 0 or self._has_left:
            return b""
        self._has_left = True
        return FAREWELL

    def _encode_introduction(self) -> bytes:
        introduction = self._introduction
        if introduction is None:
            return b""
        return encode_introduction(introduction.member, introduction.identity)

    def _note_report(self, offset: int, now: float) -> bytes:
        self._reported = offset
        self._reported_at = now
        return self._encode_report(offset)
