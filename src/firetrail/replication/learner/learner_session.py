"""The replica's side of a connection to a Java master in controller mode, without any socket.

The replica connects as an *async learner*: it receives the log, but is never a member of the
in-sync set and never becomes master. It keeps the master's epochs and dispatches no further than
the master has confirmed.

The epochs do not decide whether the replica may follow. Members of a controller-mode cluster often
have different lists: a Java master that is elected again without a restart does not tell connected
slaves its new epoch, and one that restarts quickly moves the start of its current one. So the
caller compares the last record of the replica with the master's, after the handshake: a master that
loses its role closes its connections before it changes its log.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Protocol

from firetrail.errors import ProtocolError, ReplicationError
from firetrail.replication.ha.ha_frames import Piece
from firetrail.replication.ha.replica_session import ReplicaSession
from firetrail.replication.learner.auto_switch_frames import (
    MasterHandshake,
    MasterReader,
    encode_learner_handshake,
    encode_report,
)
from firetrail.replication.log.epochs import EpochFile
from firetrail.replication.log.incoming_log import CopiedLog

_log = logging.getLogger(__name__)


class ConfirmedLog(CopiedLog, Protocol):
    """A copied log of which only a part may be dispatched."""

    def confirm(self, offset: int) -> None:
        """Dispatch up to ``offset``."""


class LearnerSession(ReplicaSession):
    """Follows a master in controller mode over one connection.

    Until the master has answered the handshake, :attr:`is_ready` is False. The caller then compares
    the logs, and continues the session only if the master's continues the replica's.
    """

    def __init__(
        self,
        log: ConfirmedLog,
        epochs: EpochFile,
        durable_offset: Callable[[], int],
        begin: int,
        now: float,
        heartbeat_s: float,
    ) -> None:
        """Prepare to follow.

        Args:
            log: The log of the replica.
            epochs: The epochs of that log.
            durable_offset: As for :class:`ReplicaSession`, like all further arguments.
            begin: Where the log continues.
            now: The current monotonic time.
            heartbeat_s: The most seconds between two reports.
        """
        super().__init__(log, durable_offset, begin, now, heartbeat_s)
        self._confirm = log.confirm
        self._epochs = epochs
        self._begin = begin
        self._frames = MasterReader()
        self._greeted = False
        self._handshake: MasterHandshake | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the master has answered the handshake."""
        return self._handshake is not None

    def report(self, now: float) -> bytes | None:
        """Return the handshake or the report that is due, or None.

        Raises:
            StoreError: The epochs cannot be written.
        """
        if not self._greeted:
            self._greeted = True
            return encode_learner_handshake()
        if self._handshake is None:
            return None
        if self._reported < 0:
            self._adopt_epochs(self._handshake)
        return super().report(now)

    def _ask_for(self, begin: int) -> int:
        return begin

    def _encode_report(self, offset: int) -> bytes:
        return encode_report(offset)

    def _pieces(self, data: memoryview) -> Iterator[Piece]:
        for frame in self._frames.feed(data):
            if isinstance(frame, MasterHandshake):
                self._take_handshake(frame)
                continue
            if self._reported < 0:
                raise ProtocolError("the master sent its log before it was asked for it")
            last = self._epochs.last
            if frame.content and (last is None or frame.epoch.number > last.number):
                self._epochs.append(frame.epoch)  # before its first record
            self._confirm(max(frame.confirmed, 0))
            if frame.offset >= 0:
                yield Piece(frame.offset, frame.content)

    def _take_handshake(self, handshake: MasterHandshake) -> None:
        if self._handshake is not None:
            raise ProtocolError("the master sent a second handshake")
        first = handshake.epochs[0] if handshake.epochs else None
        if first is not None and 0 < self._begin < first.start_offset:
            raise ReplicationError(
                f"the replica needs the master's log from offset {self._begin}, but epoch "
                f"{first.number}, the first one of the master, begins at {first.start_offset}. A "
                "Java master in controller mode sends older messages only from offset 0 on: start "
                "the replica with an empty folder; if the master's log no longer begins at 0, wait "
                f"until retention has deleted everything before {first.start_offset}"
            )
        self._handshake = handshake
        self.master_offset = handshake.end

    def _adopt_epochs(self, handshake: MasterHandshake) -> None:
        """Note the master's epochs, also those whose records have yet to come.

        They must be in the list before their first record, and the headers of transfers do not name
        all of them: Java names the next epoch with the last bytes of one.
        """
        epochs = self._epochs
        point = epochs.common_point(self._begin, handshake.epochs, handshake.end)
        if epochs.epochs and point != self._begin:
            _log.info(
                "the epochs prove that the logs are equal up to %s only; the replica's log ends at "
                "%d, and its last record is the master's, so the list is replaced",
                point,
                self._begin,
            )
        epochs.save(handshake.epochs)
