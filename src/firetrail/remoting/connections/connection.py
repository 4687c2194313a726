"""A connection, the same on both sides: each may send requests and answer those of the other.

Commands sent within one iteration of the event loop are written together. A transport gets the next
portion of them when the peer has read the previous one. Requests are not read from a peer while it
does not read its responses.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Protocol, cast

from firetrail.auth.caller import Caller
from firetrail.auth.signature import Signer
from firetrail.errors import ProtocolError, TlsError
from firetrail.pace.limited_log import LimitedLog
from firetrail.remoting.connections.backlog import Backlog
from firetrail.remoting.connections.buffer_budget import BufferBudget
from firetrail.remoting.connections.output_queue import OutputQueue
from firetrail.remoting.wire.codes import CommandFlag, request_name
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.remoting.wire.frames import FrameLimits, FrameReader, encode_frame
from firetrail.tls.channel import ServerChannel, TlsChannel
from firetrail.tls.server_tls import ServerTls
from firetrail.tls.tls_session import TlsSession, reason_of

WRITE_HIGH = 4 << 20
"""The bytes waiting to be written at which the peer is not read from, and none of its requests is
begun."""
COUNTED_MIN = 16 << 10
"""The number of unwritten bytes from which on the peer of a connection counts as one that does not
read."""
UNREAD_MAX = 64 << 20
"""The bytes waiting to be written at which the next command closes the connection."""
_REST_BYTES = 64 << 10
"""The number of bytes that are read at once after a failed write."""
_NOT_READ = "the peer does not read"
_ENDING = "the connection is closed once the peer has read"
_LOST_IN_HANDSHAKE = "the connection was lost during the TLS handshake; does the server use TLS?"

_log = logging.getLogger(__name__)


class ConnectionOwner(Protocol):
    """The owner of connections: a server, or a client."""

    def opened(self, connection: Connection) -> None:
        """Handle a new connection, which can be used from now on."""

    def received(self, connection: Connection, requests: Sequence[RemotingCommand]) -> None:
        """Handle requests of the peer; those that arrived together are passed together."""

    def drained(self, connection: Connection) -> None:
        """Continue after a pause of reading: the peer has read the written bytes."""

    def closed(self, connection: Connection, error: Exception | None) -> None:
        """Handle the end of a connection; ``error`` is None if it was closed on purpose."""


class Connection(asyncio.Protocol):
    """Sends commands to a peer and receives commands from it."""

    def __init__(
        self,
        owner: ConnectionOwner,
        limits: FrameLimits | None = None,
        budget: BufferBudget | None = None,
        log: LimitedLog | None = None,
        unread_max: int = UNREAD_MAX,
        *,
        tls: ServerTls | TlsSession | None = None,
    ) -> None:
        """Create a connection for a transport.

        Args:
            owner: Receives the requests of the peer.
            limits: Limits for the frames of the peer. Default: ``Limits()``.
            budget: Counts the bytes that are kept for the peer. Default: None, for no limit.
            log: Where bad frames are logged. Default: a log of this connection.
            unread_max: Limit for the bytes that wait to be written. Default: ``UNREAD_MAX``.
            tls: The TLS of a port, or the session of a client with a server. Default: no TLS.
        """
        self._owner = owner
        self._budget = budget
        self._unread_max = unread_max
        self.signer: Signer | None = None
        """Signs the requests of this side; None if they are not signed."""
        self._reader = FrameReader(limits)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._numbers = count(1)
        self._pending: dict[int, asyncio.Future[RemotingCommand]] = {}  # requests by number
        # If it is not empty, a write is scheduled, or the transport will call resume_writing.
        self._out = OutputQueue()
        self._holds: set[str] = set()  # the reasons why reading is paused
        self.peer = ""
        """Address of the other side, ``ip:port``."""
        self.host = ""
        """IP address of the other side."""
        self.local = ""
        """Address of this side."""
        self.last_heard = self._loop.time()
        """The time at which bytes arrived last, by the loop's clock."""
        self.unfinished_since: float | None = None
        """The time at which the frame that has not arrived completely started, by the loop's
        clock."""
        self.backlog = Backlog()
        """The requests of the peer that the owner has not handled yet."""
        self.unwritten = 0
        """Bytes that wait to be written; an upper bound, as the peer may have read meanwhile."""
        self.caller: Caller | None = None
        """The last authenticated sender on the connection; None if there was none."""
        self.is_proven = False
        """Whether a request of the peer has succeeded that proves it (``auth.caller.proves``)."""
        self._drained: list[Callable[[Connection], None]] = []  # to be called once
        self.is_closed = False
        self._is_ending = False  # whether the transport is closed once everything is written
        self._is_paused = False  # whether the transport will call resume_writing
        self._is_counted = False  # whether the budget has noted bytes
        self._log = log or LimitedLog(_log, self._loop.time)
        self._tls: TlsChannel | None = None  # None as soon as the peer is known to speak plaintext
        if isinstance(tls, TlsSession):
            self._tls = TlsChannel(tls)
        elif tls is not None:
            self._tls = ServerChannel(tls, self.abort, self.last_heard)
        self._is_tls_client = self._is_shaking_hands = isinstance(tls, TlsSession)
        self._secured: asyncio.Future[None] | None = None
        self._end: Exception | None = None  # why it ends, noted before anyone is told

    # -- called by the event loop -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of uvloop are not subclasses of asyncio.Transport.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=COUNTED_MIN)
        name = transport.get_extra_info("peername")
        self.peer = address_text(name)
        self.host = str(name[0]) if isinstance(name, tuple) and name else ""
        self.local = address_text(transport.get_extra_info("sockname"))
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        self.last_heard = now = self._loop.time()
        if self._tls is not None:
            data = self._decrypted(self._tls, data, now)
            if not data:
                return
        self.backlog.bytes += len(data)
        requests = []
        finished = False
        error: ProtocolError | None = None
        try:
            for command in self._reader.feed(data):
                finished = True
                if command.is_response:
                    self._settle(command)
                else:
                    requests.append(command)
        except ProtocolError as caught:
            error = caught
        if not self._reader.waiting:
            self.unfinished_since = None
        elif finished or self.unfinished_since is None:
            self.unfinished_since = now
        if self._is_counted or self._reader.waiting:
            self.account(progress=finished)
        if requests:
            self._owner.received(self, requests)
        if error is not None:
            self._note_end(error)
            self.drop(str(error))

    def _decrypted(self, tls: TlsChannel, data: bytes, now: float) -> bytes:
        """Return plain bytes of the peer, and write the answers of the TLS protocol."""
        failure = ""
        try:
            data = tls.receive(data, now)
        except ssl.SSLError as error:
            failure = f"TLS failed: {reason_of(error)}"
        except ProtocolError as error:
            failure = str(error)
        self._write_output(tls)
        if failure:
            self._note_end(TlsError(f"{self.peer}: {failure}"))
            text = f"the connection of {self.peer} is closed: {failure}"
            self._log.log(logging.INFO, "failed TLS", text)
            self._close_transport()
            return b""
        if tls.is_plain:
            self._tls = None
        elif tls.is_ended:
            self._loop.call_soon(self.close)
        elif tls.is_open and self._is_shaking_hands:
            self._is_shaking_hands = False
            if self._secured is not None and not self._secured.done():
                self._secured.set_result(None)
            self._write()
        return data

    def _write_output(self, tls: TlsChannel) -> None:
        output = tls.take_output()
        if output and self._transport is not None and not self._transport.is_closing():
            self._transport.write(output)
            self._written()
            if self.unwritten > WRITE_HIGH:  # it makes TLS answer, and does not read the answers
                self.hold(_NOT_READ)

    async def secure(self) -> None:
        """Wait for the TLS handshake, which a client begins; raise TlsError if it fails."""
        if self._tls is None:
            return
        if self.is_closed:
            raise self._loss()
        self._secured = self._loop.create_future()
        self._decrypted(self._tls, b"", self._loop.time())
        await self._secured

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._write()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None and self._end is None:
            self._read_rest()
            self._note_end(error)
        if self._is_shaking_hands:
            self._note_end(TlsError(f"{self.peer}: {_LOST_IN_HANDSHAKE}"))
        self.is_closed = True
        self._out.clear()
        self.unwritten = self.backlog.deferred_bytes = 0
        self._drained.clear()
        self._reader.discard()
        if self._is_counted:
            self.account(progress=True)
        if self._tls is not None:
            self._tls.lost()
        if self._secured is not None and not self._secured.done():
            self._secured.set_exception(self._loss())
        pending, self._pending = self._pending, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(self._loss())
        self._owner.closed(self, error)

    def _read_rest(self) -> None:
        """Handle bytes that arrived before a write failed and were not read.

        It may contain the answers to requests, or the alert with which a server refuses the
        certificate of a client: with TLS 1.3 the handshake of the client is over by then.
        """
        found = self._transport.get_extra_info("socket") if self._transport is not None else None
        if found is None or found.fileno() < 0:
            return
        with socket.fromfd(found.fileno(), found.family, found.type) as rest, suppress(OSError):
            while self._end is None and (self._pending or self._is_tls_client):
                data = rest.recv(_REST_BYTES, socket.MSG_DONTWAIT)
                if not data:
                    return
                self.data_received(data)

    def _note_end(self, reason: Exception) -> None:
        """Note why the connection ends; the first reason counts."""
        self._end = self._end or reason

    def _loss(self) -> Exception:
        """Return a new error for a request that gets no answer."""
        if isinstance(self._end, TlsError):
            return TlsError(str(self._end))
        lost = ConnectionResetError(f"{self.peer}: the connection was lost")
        lost.__cause__ = self._end
        return lost

    # -- called by the owner ------------------------------------------------------------------

    @property
    def certificate_user(self) -> str | None:
        """The user that the verified certificate of the peer names; None if there is none."""
        return self._tls.user if self._tls is not None else None

    @property
    def is_encrypted(self) -> bool:
        """Whether the peer speaks TLS."""
        return self._tls is not None and self._tls.is_open

    @property
    def handshake_deadline(self) -> float | None:
        """The time of the event loop by which the TLS handshake has to end; None if it has."""
        return None if self._tls is None else self._tls.deadline

    def send(self, command: RemotingCommand) -> None:
        """Send a command; raise ProtocolError if it cannot be encoded."""
        if self.is_closed or self._is_ending:
            return
        frame = encode_frame(command)
        if self.unwritten > self._unread_max:
            self.drop(f"the peer does not read, and {self.unwritten} bytes wait for it")
            return
        if not self._out.size:
            self._loop.call_soon(self._write)
        size = sum(map(len, frame))
        self._out.add(frame, size)
        self.unwritten += size
        if self.unwritten > WRITE_HIGH:
            self.hold(_NOT_READ)

    def reply(self, request: RemotingCommand, response: RemotingCommand) -> None:
        """Send the response, unless the request is one-way."""
        if not request.is_one_way:
            self.send(response)

    async def request(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Send a request and return the response.

        Raises TimeoutError without a response in time, and ConnectionError if the connection ends
        or has ended: TlsError if TLS is the reason. Its cause is a ProtocolError if the peer has
            sent bytes that cannot be decoded.
        """
        self.check_usable()
        command.opaque = opaque = next(self._numbers)
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        self._pending[opaque] = future
        try:
            self._sign(command)
            self.send(command)
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            what = f"no answer to {request_name(command.code)} within {timeout_s:g} s"
            raise TimeoutError(f"{self.peer}: {what}") from None
        finally:
            self._pending.pop(opaque, None)

    def check_usable(self) -> None:
        """Raise ConnectionError if the connection ends or has ended: see :meth:`request`."""
        if not self.is_usable:
            raise self._loss()

    @property
    def is_usable(self) -> bool:
        """Whether requests can be sent."""
        return not self.is_closed and not self._is_ending and self._end is None

    def tell(self, command: RemotingCommand) -> None:
        """Send a one-way request."""
        command.opaque = next(self._numbers)
        command.flag |= CommandFlag.ONE_WAY
        self._sign(command)
        self.send(command)

    def _sign(self, request: RemotingCommand) -> None:
        if self.signer is not None:
            request.fields = self.signer.fields(request.fields, request.body)

    def hold(self, reason: str) -> None:
        """Pause reading for a reason, until it is released."""
        self._holds.add(reason)
        if self._transport is not None and not self.is_closed:
            self._transport.pause_reading()

    def release(self, reason: str) -> None:
        """Resume reading, unless there is another reason to pause."""
        self._holds.discard(reason)
        if self._transport is not None and not self._holds and not self.is_closed:
            self._transport.resume_reading()
            if self.unfinished_since is not None:  # the frame could not arrive during the pause
                self.unfinished_since = self._loop.time()

    @property
    def is_unread(self) -> bool:
        """Whether the peer does not read its answers, so that it should get no more of them."""
        return self.unwritten > WRITE_HIGH

    def when_drained(self, callback: Callable[[Connection], None]) -> None:
        """Call ``callback`` once, when the peer of an unread connection has read its answers."""
        self._drained.append(callback)

    @property
    def is_held(self) -> bool:
        """Whether reading is paused."""
        return bool(self._holds)

    def close(self) -> None:
        """Write all sent commands, then close the connection."""
        if self._transport is not None and not self.is_closed and not self._is_ending:
            self._is_ending = True
            self.hold(_ENDING)
            self._write()

    def _close_transport(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once, dropping unwritten commands."""
        if self._transport is not None:
            self._transport.abort()

    def drop(self, reason: str) -> None:
        """Close the connection at once because of an error of the peer, and log the reason."""
        text = f"the connection to {self.peer} is closed: {reason}"
        self._log.log(logging.WARNING, "closed connection", text)
        self._reader.discard()
        self.abort()
        self.unwritten = self.backlog.deferred_bytes = 0
        self._out.clear()

    @property
    def kept_bytes(self) -> int:
        """The bytes of an unfinished frame, of commands that the peer does not read, and of
        requests that wait until it does."""
        if self.unwritten > COUNTED_MIN and self._transport is not None:
            self.unwritten = self._transport.get_write_buffer_size() + self._out.size
        unread = self.unwritten if self.unwritten > COUNTED_MIN else 0
        return self._reader.waiting + unread + self.backlog.deferred_bytes

    def account(self, *, progress: bool) -> None:
        """Report the number of kept bytes to the budget, and whether the peer has made progress."""
        size = self.kept_bytes
        self._is_counted = size > 0
        if self._budget is not None:
            self._budget.note(self, size, progress=progress)

    def _write(self) -> None:
        """Pass output to the transport while its buffer is small, and close it after the end."""
        transport, tls = self._transport, self._tls
        if transport is None or self.is_closed:
            return
        # In Python 3.12 and 3.13, writelines of a transport that was aborted leaves its descriptor
        # in the event loop, where it disturbs the next user of the number
        # (https://github.com/python/cpython/issues/136234).
        if transport.is_closing():
            self._out.clear()
            return
        if tls is None or tls.is_open:
            while self._out.size and transport.get_write_buffer_size() <= COUNTED_MIN:
                if tls is None:
                    transport.writelines(self._out.take())
                else:
                    tls.send(b"".join(self._out.take()))
                    transport.write(tls.take_output())
        self._written()
        if self._is_ending and not self._out.size and not transport.is_closing():
            self._end_transport()

    def _end_transport(self) -> None:
        if self._tls is not None:
            self._tls.end()
            self._write_output(self._tls)
        self._close_transport()

    def _written(self) -> None:
        """Count the bytes that the peer has not read yet."""
        before, transport = self.unwritten, self._transport
        assert transport is not None
        waiting = transport.get_write_buffer_size()
        if waiting > COUNTED_MIN and not self._is_paused:
            # Some versions of writelines forget to pause (CVE-2024-12254); this does it.
            transport.set_write_buffer_limits(high=COUNTED_MIN)
        self.unwritten = size = waiting + self._out.size
        if size > COUNTED_MIN or self._is_counted:
            self.account(progress=size < before)
        if size <= COUNTED_MIN and self._holds and _NOT_READ in self._holds:
            self.release(_NOT_READ)
            self._owner.drained(self)
            drained, self._drained = self._drained, []
            for callback in drained:
                callback(self)

    def _settle(self, response: RemotingCommand) -> None:
        future = self._pending.get(response.opaque)
        if future is not None and not future.done():  # otherwise the request has timed out
            future.set_result(response)


def address_text(name: object) -> str:
    """Return a socket name as ``ip:port``, with brackets around an IPv6 address."""
    if not isinstance(name, tuple) or len(name) < 2:
        return str(name or "")
    host, port = name[0], name[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
