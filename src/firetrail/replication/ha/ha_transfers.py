"""The transfers of a master to one replica: by a thread, which may wait, or by an event loop."""

import socket
from collections.abc import Sequence

from firetrail.errors import NotReachedError
from firetrail.replication.ha.flow_control import RateMeter, TransferRate
from firetrail.replication.ha.ha_frames import BODY_MAX, encode_confirmation, encode_header
from firetrail.replication.ha.ha_source import HASocket, HASource
from firetrail.replication.ha.master_session import MasterSession, Transfer

IDLE_S = 0.1
"""The time that a sender waits for new messages before it looks for them without being woken."""
LIMITED_S = 0.02
"""The time that a sender waits if flow control does not allow more at the moment."""


class HATransfers:
    """Sends the transfers of a session; one caller at a time."""

    def __init__(self, source: HASource, session: MasterSession) -> None:
        """Prepare to send.

        Args:
            source: The log and the settings that the replica is served from.
            session: Determines the transfers.
        """
        self._log = source.log
        self._clock = source.clock
        self._batch_size = source.limits.batch_size
        self._session = session
        now = source.clock.monotonic()
        self._bucket = TransferRate(source.limits.rate, now)
        self._meter = RateMeter(now)
        self._sending = source.threads.lock()
        self._unsent = b""  # the rest of a transfer that an event loop has begun

    @property
    def sent_per_second(self) -> int:
        """The bytes that were sent in the last full second."""
        return self._meter.per_second(self._clock.monotonic())

    @property
    def pause_s(self) -> float:
        """The time to wait for new messages after there was nothing to send."""
        allowance = self._bucket.allowance(self._clock.monotonic())
        return LIMITED_S if allowance == 0 else IDLE_S

    def send(self, connection: HASocket) -> bool:
        """Send one transfer if one is due, and return whether it was.

        A slow replica may take as long as it wants if it takes something within the time limit of
        the socket.

        Raises:
            NotReachedError: Retention has deleted bytes that the replica needs.
            OSError: The connection has failed, or its time limit is over.
        """
        with self._sending:
            if self._unsent:
                rest, self._unsent = self._unsent, b""
                send_all(connection, [memoryview(rest)])
            now = self._clock.monotonic()
            allowance = self._bucket.allowance(now)
            most = BODY_MAX if allowance is None else allowance
            transfer = self._session.next_transfer(now, most)
            if transfer is None:
                return False
            with self._content(transfer) as content:
                send_all(connection, [memoryview(self._header(transfer, now)), content])
        return True

    def send_confirmation(self, connection: HASocket) -> None:
        """Send the confirmation that is due, if one is; raises OSError as :meth:`send` does.

        Usually it is sent with the next transfer: a frame of its own for each message would cost
        the master as much as the message.
        """
        with self._sending:
            if not self._unsent and (confirmation := self._confirmation()):
                self._count(len(confirmation), self._clock.monotonic())
                send_all(connection, [memoryview(confirmation)])

    def try_send(self, connection: socket.socket) -> bool:
        """Send one transfer without waiting; return whether the rest is left to :meth:`send`.

        That method does all work that can take time: it serves replicas that lag, are limited by
        flow control or read slowly.

        Args:
            connection: A socket that does not block.

        Raises:
            NotReachedError: Retention has deleted bytes that the replica needs.
            OSError: The connection has failed.
        """
        if not self._sending.acquire(blocking=False):
            return True
        try:
            now = self._clock.monotonic()
            if self._unsent or self._session.behind > self._batch_size:
                return True
            if self._bucket.allowance(now) is not None:
                return True
            transfer = self._session.next_transfer(now)
            if transfer is None:
                return False
            with self._content(transfer) as content:
                header = self._header(transfer, now)
                try:
                    sent = connection.sendmsg([header, content])
                except BlockingIOError:
                    sent = 0
                if sent < len(header) + len(content):
                    self._unsent = b"".join((header, content))[sent:]
                    return True
            return self._session.behind > 0
        finally:
            self._sending.release()

    def _content(self, transfer: Transfer) -> memoryview:
        if transfer.size == 0:
            return memoryview(b"")
        content = self._log.read(transfer.offset, transfer.size)
        if content is None:
            raise NotReachedError(
                f"retention has deleted the log at {transfer.offset}, which the replica needs"
            )
        return content

    def _header(self, transfer: Transfer, now: float) -> bytes:
        """Return the header of a transfer, and count the whole transfer."""
        header = self._confirmation() + encode_header(*transfer)
        self._count(len(header) + transfer.size, now)
        return header

    def _confirmation(self) -> bytes:
        """Return the confirmation that is due; empty if none is."""
        confirmed = self._session.next_confirmation()
        return encode_confirmation(confirmed) if confirmed is not None else b""

    def _count(self, size: int, now: float) -> None:
        self._bucket.take(size)
        self._meter.note(size, now)


def send_all(connection: HASocket, parts: Sequence[memoryview]) -> None:
    """Send everything; the time limit of the socket is one for each part that the peer takes."""
    sent = connection.sendmsg(parts)
    for part in parts:
        at = min(sent, len(part))
        sent -= at
        while at < len(part):
            with part[at:] as rest:
                at += connection.send(rest)
