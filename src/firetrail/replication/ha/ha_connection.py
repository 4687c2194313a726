"""The connection of a master to one replica: sockets and threads around a session.

Theory of operation. RocketMQ gives each replica two threads: one sends the log, one reads the
reports that confirm it. That serves a replica that catches up well, because a send of much data
releases the interpreter's lock. For a replica that follows closely it is slow: a thread that is
woken for each batch of messages waits for the lock, which a busy event loop holds, and so does each
producer that waits for that replica. Therefore three parties share one socket:

- The *reader* thread checks the peer (TLS, address), starts the sender, and takes the first report.
  Without TLS and with an event loop it then leaves reading to the loop, and only watches for
  silence. Otherwise it continues to read.
- The *sender* thread sends what takes time: the past of the log, the rest of a transfer that
  the loop could not finish, everything that flow control delays, heartbeats and late confirmations.
- The *event loop* reads reports as they come, and sends what was put in the current iteration, if
  the socket takes it without waiting.

The states of a connection, and who moves them::

    connected --reader: first report--> served by threads --loop: _attach--> served by the loop
        |                                      |                                 |
        +----- close(), by any party: error, silence, end of the broker ---------+--> closed

Three rules keep the parties apart:

1. *One sends at a time.* ``HATransfers`` holds a lock, which the loop only tries to take. If it
   cannot, or if anything is left over, it wakes the sender, which sends the rest of a transfer
   before anything else, so that frames are never mixed.
2. *One reads at a time.* The reader thread does not touch the socket between ``_leave_to_loop`` and
   the end. The loop reads from a duplicate of the descriptor, which only the loop closes: a
   descriptor that another thread closes could belong to a new connection when the selector reports
   it.
3. *One closes.* The party that takes ``_closing`` shuts the socket down, which ends the calls of
   the others; the reader thread is the last one and closes it. A report that arrives during a close
   is dropped from the acknowledgements again, so that a closed connection never counts as a copy.

A loop that is held up reads nothing. Its delay must not look like silence of the replica, so the
reader thread also looks for unread bytes, and the loop notes the time *before* it takes them.
"""

from __future__ import annotations

import logging
import select
import socket
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from threading import get_ident

from firetrail.errors import FiretrailError, NotReachedError
from firetrail.pace.limited_log import LimitedLog
from firetrail.remoting.connections.remoting_client import split_address
from firetrail.replication.ha.ha_source import HASocket, HASource
from firetrail.replication.ha.ha_transfers import HATransfers
from firetrail.replication.ha.master_session import MasterSession
from firetrail.store.log.flusher import Signal
from firetrail.store.log.replica_acks import SharedAddress

REPORT_SIZE = 4096
"""Maximum number of bytes of one read from a replica."""
SILENCE_CHECKS = 4
"""Checks of a replica's silence within its limit if the event loop reads."""


class HAConnection:
    """One replica."""

    def __init__(
        self,
        connection: socket.socket,
        address: str,
        source: HASource,
        on_closed: Callable[[HAConnection], None],
        log: LimitedLog,
    ) -> None:
        """Take over a connection.

        Args:
            connection: The socket.
            address: ``ip:port`` of the replica.
            source: The log and the settings that it is served from.
            on_closed: Called once, when the connection is closed.
            log: The limited log for lines that any peer can cause.
        """
        self.address = address
        self._host = split_address(address)[0]
        self._raw = connection
        self._socket: HASocket = connection
        self._admit = source.admit
        self._first = b""
        self._log, self._acks = source.log, source.acks
        self._limits = limits = source.limits
        self._clock = clock = source.clock
        self._on_closed = on_closed
        self._limited_log = log
        threads = source.threads
        self._wake = Signal(threads)
        self._closing = threads.lock()  # taken once, by the thread that closes the connection
        now = clock.monotonic()
        self.session = MasterSession(source.log, limits.batch_size, limits.heartbeat_s, now)
        self._transfers = HATransfers(source, self.session)
        self._noted = -1  # the last acknowledged offset that counts for waiting producers
        self._loop = source.loop
        self._loop_socket: socket.socket | None = None  # while the event loop serves the replica
        self._loop_read_at = -inf  # when the event loop began to read for the last time
        self._loop_thread = 0
        self._sends_soon = False  # whether the loop will look for what is new
        self._ended = threads.event()
        connection.settimeout(limits.silence_s)
        self._sender = threads.thread("firetrail-ha-send", partial(self._guarded, self._send))
        self._reader = threads.thread("firetrail-ha-read", self._run)

    def start(self) -> None:
        """Begin to serve the replica."""
        self._reader.start()

    def wake(self) -> None:
        """Send new records; in the event loop, together with all messages of this iteration."""
        if get_ident() != self._loop_thread or self._loop_socket is None:
            self._wake.set()
        elif not self._sends_soon:
            assert self._loop is not None
            self._sends_soon = True
            self._loop.call_soon(self._send_in_loop)

    def close(self, reason: str = "") -> None:
        """Close the connection; log the reason unless it is empty."""
        if not self._closing.acquire(blocking=False):
            return
        if reason:
            kind = "closed" if self.has_reported else "closed before a report"
            self._say(logging.WARNING, kind, f"was closed: {reason}")
        self._acks.drop(self)
        with suppress(OSError):
            self._raw.shutdown(socket.SHUT_RDWR)
        self._wake.set()
        self._ended.set()
        self._on_closed(self)

    @property
    def is_closed(self) -> bool:
        """Whether the connection was closed."""
        return self._closing.locked()

    @property
    def has_reported(self) -> bool:
        """Whether the peer has reported the end of its log, as every replica does first."""
        return self.session.acked >= 0

    def lacks(self, end: int) -> bool:
        """Whether the replica lacks bytes before ``end``, or their confirmation."""
        return self.has_reported and (self._noted < end or self.session.owes_confirmation)

    @property
    def sent_per_second(self) -> int:
        """The bytes that were sent in the last full second."""
        return self._transfers.sent_per_second

    def join(self) -> None:
        """Wait for the end of its threads."""
        self._reader.join()

    def _run(self) -> None:
        """Serve the replica until the connection is closed; then the socket is no longer used."""
        self._guarded(self._open)
        if not self.is_closed:
            self._sender.start()
            self._guarded(self._read)
            self._sender.join()
        self._raw.close()

    def _open(self) -> None:
        self._socket, self._first = self._admit(self._raw, self.address)
        text = f"replica {self.address} has connected"
        self._limited_log.log(logging.INFO, "connected", text)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except TimeoutError:
            self.close(f"it has sent or read nothing for {self._limits.silence_s:g} seconds")
        except (OSError, FiretrailError) as error:
            self.close(str(error))
        except Exception as error:
            if not self.is_closed:
                self._say(logging.ERROR, "failed", "failed", error)
            self.close(str(error))

    def _say(self, level: int, kind: str, what: str, error: Exception | None = None) -> None:
        """Log a line about the connection, unless there are too many of its kind."""
        text = f"the connection of replica {self.address} {what}"
        self._limited_log.log(level, kind, text, error)

    # -- reports ------------------------------------------------------------------------------

    def _read(self) -> None:
        while not self.is_closed:
            data, self._first = self._first or self._socket.recv(REPORT_SIZE), b""
            is_served = self.session.position >= 0
            self._take(data)
            if not is_served and self.session.position >= 0:
                self._wake.set()
                if self._loop is not None and isinstance(self._socket, socket.socket):
                    self._leave_to_loop(self._loop, self._socket)

    def _take(self, data: bytes) -> None:
        """Process bytes of the replica; none if it has disconnected."""
        if not data:
            if not self.is_closed and self.has_reported:
                text = f"replica {self.address} has disconnected"
                self._limited_log.log(logging.INFO, "disconnected", text)
            self.close()
            return
        now = self._clock.monotonic()
        has_more = self.session.receive(data, now)
        if self.session.is_leaving:
            self._acks.leave(self)
        if has_more:
            self._note()
        elif now - self.session.read_at > self._limits.silence_s:
            raise NotReachedError("it sends bytes, but no reports")

    def _note(self) -> None:
        session, acked = self.session, self.session.acked
        self._acks.note(self, acked, session.member, session.identity or SharedAddress(self._host))
        if self.is_closed:  # it was closed in between, and must no longer count
            self._acks.drop(self)
        self._noted = acked

    # -- transfers ----------------------------------------------------------------------------

    def _send(self) -> None:
        while not self.is_closed:
            if self._transfers.send(self._socket):
                continue
            if not self._wake.wait(self._transfers.pause_s):
                self._transfers.send_confirmation(self._socket)

    # -- in the event loop --------------------------------------------------------------------

    def _leave_to_loop(self, loop: AbstractEventLoop, connection: socket.socket) -> None:
        """Let the loop serve the replica; return when the connection is closed.

        The loop has a descriptor of its own, which it closes itself. If the loop was held up,
        reports that it has not read yet show that the replica is not silent.
        """
        silence_s = self._limits.silence_s
        copy = connection.dup()
        try:
            loop.call_soon_threadsafe(self._attach, copy)
        except RuntimeError:  # the loop is closed, and with it the broker
            copy.close()
            self.close()
            return
        try:
            while not self._ended.wait(silence_s / SILENCE_CHECKS):
                if not has_unread(connection) and self._silent_s() > silence_s:
                    raise TimeoutError
        finally:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._detach)

    def _silent_s(self) -> float:
        """Return for how long the replica has sent nothing; see :meth:`_try_read`."""
        return self._clock.monotonic() - max(self.session.read_at, self._loop_read_at)

    def _attach(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        assert self._loop is not None
        self._loop.add_reader(connection, self._read_in_loop)
        self._loop_socket, self._loop_thread = connection, get_ident()

    def _detach(self) -> None:
        connection, self._loop_socket = self._loop_socket, None
        if connection is not None:
            assert self._loop is not None
            self._loop.remove_reader(connection)
            connection.close()

    def _read_in_loop(self) -> None:
        self._guarded(self._try_read)
        if self.is_closed:
            self._detach()

    def _try_read(self) -> None:
        assert self._loop_socket is not None
        # Before the bytes are taken off the socket: afterwards there is nothing unread, and the
        # reports are not noted yet.
        self._loop_read_at = self._clock.monotonic()
        with suppress(BlockingIOError):
            self._take(self._loop_socket.recv(REPORT_SIZE))

    def _send_in_loop(self) -> None:
        self._sends_soon = False
        self._guarded(self._try_send)

    def _try_send(self) -> None:
        connection = self._loop_socket
        if connection is not None and not self.is_closed and self._transfers.try_send(connection):
            self._wake.set()


def has_unread(connection: socket.socket) -> bool:
    """Return whether the peer has sent something that was not read."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))
