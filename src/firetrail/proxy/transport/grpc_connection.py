"""A connection of a gRPC client on the event loop.

The first byte shows whether the client uses TLS. Everything that is sent while bytes of the client
are handled, or within one iteration of the event loop, is written together.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any, Protocol, cast

from firetrail.auth.caller import Caller, proves
from firetrail.errors import GrpcError, ProtocolError
from firetrail.pace.limited_log import LimitedLog
from firetrail.proxy.http2.http2_connection import Http2Connection
from firetrail.proxy.http2.http2_stream import Http2Stream
from firetrail.proxy.http2.response_headers import encode_block
from firetrail.proxy.kernels.request_head import RequestHead
from firetrail.proxy.transport import codec
from firetrail.proxy.transport.call import (
    Method,
    Methods,
    ProtobufMessage,
    StatusCode,
    StreamMethod,
    UnaryMethod,
)
from firetrail.proxy.transport.grpc_limits import GrpcLimits, MemoryAccount
from firetrail.proxy.transport.server_call import BaseCall, SingleCall
from firetrail.proxy.transport.server_stream import StreamCall
from firetrail.remoting.connections.buffer_budget import BufferBudget
from firetrail.remoting.connections.connection import COUNTED_MIN, WRITE_HIGH, address_text
from firetrail.remoting.connections.output_queue import OutputQueue
from firetrail.remoting.servers.addresses import RequestRates
from firetrail.remoting.servers.fair_shares import FairShares, holder_of
from firetrail.tls.channel import ServerChannel
from firetrail.tls.server_tls import ServerTls
from firetrail.tls.tls_session import reason_of

SLICE = 128
"""Number of calls that start at once when bytes arrive; the others start in later iterations."""

CALL_BYTES = 4 << 10
"""The approximate size of a call without its headers and its request."""
STOPPING = "the server is stopping"
_NOT_READ = "the client does not read its responses"


class GrpcOwner(Protocol):
    """The server of connections."""

    limits: GrpcLimits
    methods: Methods
    tls: ServerTls | None
    memory: MemoryAccount
    tasks: set[asyncio.Future[Any]]
    budget: BufferBudget
    """Counts the bytes that are kept for strangers, and responses that clients do not read."""
    log: LimitedLog
    shares: FairShares
    """Calls in progress, by their callers."""
    now: Callable[[], float]
    """A monotonic clock."""

    def opened(self, connection: GrpcConnection) -> None:
        """Handle a new connection."""

    def proven(self, connection: GrpcConnection) -> None:
        """Handle the first call that proves a connection to be that of a client."""

    def closed(self, connection: GrpcConnection) -> None:
        """Handle the end of a connection."""

    def start_later(self, call: SingleCall) -> None:
        """Start the call in a later iteration of the event loop."""


class GrpcConnection(asyncio.Protocol):
    """One client."""

    def __init__(self, owner: GrpcOwner) -> None:
        self._owner = owner
        self._limits = owner.limits
        self._transport: asyncio.Transport | None = None
        self._is_flushing = False
        self._is_held = False
        self._out = OutputQueue()
        self._started = 0  # calls since the last bytes arrived
        self._together: list[SingleCall] = []  # calls of one method that arrived together
        self._to_tell: list[BaseCall] = []
        self._pinged_at: float | None = None
        self._unread = 0  # bytes that the client had not read at the last check
        self._read_at = 0.0  # when it had read something
        self._counted = 0  # the bytes that the budget has noted
        self.is_proven = False
        """Whether a call of the client was allowed that proves it (``auth.caller.proves``)."""
        self._calls = 0
        self.loop = asyncio.get_running_loop()
        now = self.loop.time()
        self._has_begun = False
        self._tls: ServerChannel | None = None  # None as soon as the client speaks plaintext
        if owner.tls is not None:
            self._tls = ServerChannel(owner.tls, self.abort, now)
        self.http2 = Http2Connection(self, owner.limits.http2, now)
        self.memory = MemoryAccount(owner.limits.connection_bytes, owner.memory)
        self.tasks = owner.tasks
        self.arriving: set[BaseCall] = set()
        self.peer = ""
        self.host = ""
        """IP address of the client."""
        self._holder = holder_of("", None)
        self.local = ""
        self.rates: RequestRates | None = None
        """The rate at which the address of the client sends; None if there is no limit."""
        self.last_heard = now
        self.last_call = now

    # -- called by the event loop -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of uvloop are not subclasses of asyncio.Transport.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=COUNTED_MIN)
        name = transport.get_extra_info("peername")
        self.peer = address_text(name)
        self.host = str(name[0]) if isinstance(name, tuple) and name else ""
        self._holder = holder_of(self.host, None)
        self.local = address_text(transport.get_extra_info("sockname"))
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        self.last_heard = now = self.loop.time()
        self._pinged_at = None
        self._started = 0
        self._is_flushing = True  # at the end of this method
        self._has_begun = True
        try:
            if self._tls is not None:
                data = self._decrypted(self._tls, data, now)
            if data:
                self.http2.receive(data, now)
            if self._together:
                self._start_together()
            if self._tls is not None and self._tls.is_ended:
                self.http2.lost()
        except ssl.SSLError as error:
            self._log(logging.INFO, "failed TLS", f"TLS failed: {reason_of(error)}")
            self.http2.lost()
        except ProtocolError as error:
            self._log(logging.INFO, "failed TLS", str(error))
            self.http2.lost()
        self.flush()

    def _decrypted(self, tls: ServerChannel, data: bytes, now: float) -> bytes:
        data = tls.receive(data, now)
        if tls.is_plain:
            self._tls = None
        return data

    def pause_writing(self) -> None:
        """Do nothing: ``_write`` checks the buffer of the transport."""

    def resume_writing(self) -> None:
        self.flush()

    def _hold(self) -> None:
        """Read nothing while the client does not read."""
        self._is_held = True
        self._unread = 0
        if self._transport is not None:
            self._transport.pause_reading()

    def _release(self) -> None:
        self._is_held = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        self.http2.resumed(self.loop.time())

    def connection_lost(self, error: Exception | None) -> None:
        self.http2.lost()
        self._out.clear()
        if self._tls is not None:
            self._tls.lost()
        self._note(0)
        self._owner.closed(self)
        self._report(False)

    # -- output -------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Write the output in this iteration of the event loop."""
        if not self._is_flushing:
            self._is_flushing = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write the output; close the connection if it is over."""
        self._is_flushing = False
        transport = self._transport
        if transport is None or transport.is_closing():
            self._report(False)
            return
        if self._has_begun:
            self._write(transport)
        if transport.is_closing():  # the client does not read
            self._report(False)
            return
        if self.http2.is_over and not self._out.size:
            if self.http2.failure:
                self._log(logging.WARNING, "closed connection", self.http2.failure)
            if self._tls is not None:
                self._tls.end()
                transport.write(self._tls.take_output())
            transport.close()
        self._report(True)
        self._account()

    def _write(self, transport: asyncio.Transport) -> None:
        """Pass output to the transport while its buffer is small."""
        tls, out = self._tls, self._out
        if tls is not None and (data := tls.take_output()):
            transport.write(data)
        if tls is None or tls.is_open:
            parts = self.http2.take_output()
            out.add(parts, sum(map(len, parts)))
            while out.size and transport.get_write_buffer_size() <= COUNTED_MIN:
                data = b"".join(out.take())
                if tls is not None:
                    tls.send(data)
                    data = tls.take_output()
                transport.write(data)
        unwritten = self._unwritten
        if unwritten > self._limits.http2.queued_bytes:
            self.drop(_NOT_READ)
        elif unwritten > WRITE_HIGH and not self._is_held:
            self._hold()
        elif unwritten <= COUNTED_MIN and self._is_held:
            self._release()

    @property
    def _unwritten(self) -> int:
        """Bytes that the client accepts, but does not read."""
        transport = self._transport
        return self._out.size + (transport.get_write_buffer_size() if transport is not None else 0)

    def _report(self, were_written: bool) -> None:
        if self._to_tell:
            calls, self._to_tell = self._to_tell, []
            for call in calls:
                call.tell(were_written)

    # -- the bytes that are kept --------------------------------------------------------------

    @property
    def kept_bytes(self) -> int:
        """The bytes of responses that the client does not read.

        For a stranger, also those of requests and of their calls, which have a limit of their own
        otherwise.
        """
        http2 = self.http2
        unread = http2.output.queued_bytes + self._unwritten
        if self.is_proven:
            return unread
        return unread + self.memory.taken + http2.waiting_bytes + len(http2.streams) * CALL_BYTES

    def _account(self) -> None:
        """Report the number of kept bytes to the budget; small numbers do not count."""
        size = self.kept_bytes
        self._note(size if size > COUNTED_MIN else 0)

    def _note(self, size: int) -> None:
        if size or self._counted:
            is_less = size < self._counted
            self._counted = size
            self._owner.budget.note(self, size, progress=is_less)

    def prove(self, caller: Caller | None) -> None:
        """Note that a call of the client is allowed: its bytes no longer count as a stranger's.

        Its calls count as those of its user from then on.

        Args:
            caller: The caller; None if there is no access control.
        """
        if self.is_proven or not proves(caller):
            return
        self._note(0)
        self.is_proven = True
        self._owner.proven(self)
        before, self._holder = self._holder, holder_of(self.host, caller)
        if self._calls:
            self._owner.shares.give_back(before, self._calls)
            self._owner.shares.take(self._holder, self._calls)

    def drop(self, reason: str) -> None:
        """Close the connection at once because of an error of the client, and free its bytes."""
        self._log(logging.WARNING, "closed connection", reason)
        self.abort()
        self.http2.lost()
        self._out.clear()

    def _log(self, level: int, kind: str, reason: str) -> None:
        self._owner.log.log(level, kind, f"the connection of {self.peer} is closed: {reason}")

    # -- called by the server -----------------------------------------------------------------

    def check(self, now: float) -> None:
        """Close the connection if the client is idle, dead or too slow."""
        limits = self._limits
        if self._is_held or self.http2.is_over:
            self._check_reads(now)
        else:
            self.http2.check(now)
        for call in [c for c in self.arriving if now - c.progress_at > limits.message_s]:
            text = f"the request did not arrive completely within {limits.message_s:g} s"
            call.fail(StatusCode.DEADLINE_EXCEEDED, text)
        if not self.http2.streams:
            if now - self.last_call > limits.idle_s:
                self.close()
        else:
            self.last_call = now
            self._check_alive(now)
        self.flush()

    def _check_reads(self, now: float) -> None:
        """Disconnect a client that reads none of the written bytes."""
        unread = self._unwritten
        if unread < self._unread or not self._unread:
            self._read_at = now
        self._unread = unread
        if now - self._read_at > self._limits.http2.stalled_s:
            self.drop(_NOT_READ)

    def _check_alive(self, now: float) -> None:
        if self._pinged_at is not None:
            if now - self._pinged_at > self._limits.ping_s:
                self.drop("the client does not answer")
        elif now - self.last_heard > self._limits.silent_s:
            self._pinged_at = now
            self.http2.ping()

    def drain(self) -> None:
        """Accept no more calls, and end the streams."""
        self.http2.go_away()
        for stream in list(self.http2.streams.values()):
            if isinstance(stream.receiver, StreamCall):
                stream.receiver.finish(StatusCode.UNAVAILABLE, STOPPING)
        self.flush()

    def close(self) -> None:
        """End all calls, write the output, and close the connection."""
        self.http2.go_away()
        for stream in list(self.http2.streams.values()):
            if isinstance(stream.receiver, BaseCall):
                stream.receiver.fail(StatusCode.UNAVAILABLE, STOPPING)
        self.http2.lost()
        self.flush()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- called by HTTP/2 and by calls --------------------------------------------------------

    def opened(self, stream: Http2Stream, head: RequestHead) -> None:
        """Create the call of a new stream, or refuse it."""
        self.last_call = self.http2.now
        refusal = _refusal_of(head)
        if refusal:
            self.http2.output.end(stream, encode_block([(":status", refusal)]))
            return
        method = self._owner.methods.get(head.path)
        try:
            self._check_load()
            if method is None:
                raise GrpcError(StatusCode.UNIMPLEMENTED, f"there is no method {head.path}")
            self._open(stream, head, method)
        except GrpcError as error:
            block = codec.trailers_only(StatusCode(error.code), error.text)
            self.http2.output.end(stream, block)

    def _check_load(self) -> None:
        if (excess := self._owner.shares.excess(self._holder)) is not None:
            raise GrpcError(StatusCode.RESOURCE_EXHAUSTED, excess)
        if self.http2.output.queued_bytes > self._limits.response_bytes:
            raise GrpcError(
                StatusCode.RESOURCE_EXHAUSTED, "too many bytes of responses wait for the client"
            )

    def _open(self, stream: Http2Stream, head: RequestHead, method: Method) -> None:
        now = self.http2.now
        if isinstance(method, StreamMethod):
            call = StreamCall(self, stream, head, self._limits, now, method)
            stream.receiver = call
            self._begun()
            call.start()
        else:
            stream.receiver = SingleCall(self, stream, head, self._limits, now, method)
            self._begun()

    def _begun(self) -> None:
        self._calls += 1
        self._owner.shares.take(self._holder)

    def run(self, call: SingleCall) -> None:
        """Start the call at once, unless many were started with the same bytes.

        Calls whose method takes several at once are collected until another one follows.
        """
        self._started += 1
        together = self._together
        if together and (self._started > SLICE or together[0].method is not call.method):
            self._start_together()
        if self._started > SLICE:
            self._owner.start_later(call)
        elif isinstance(call.method, UnaryMethod) and call.method.handle_all is not None:
            together.append(call)
        else:
            call.start()

    def _start_together(self) -> None:
        calls = self._together.copy()
        self._together.clear()
        method = calls[0].method
        if len(calls) == 1:
            calls[0].start()
        elif isinstance(method, UnaryMethod) and method.handle_all is not None:
            SingleCall.start_all(calls, method.handle_all)

    def ended(self, call: BaseCall) -> None:
        """Forget the call."""
        self._calls -= 1
        self._owner.shares.give_back(self._holder)

    def tell_after_flush(self, call: BaseCall) -> None:
        """Report the call when the output was written."""
        self._to_tell.append(call)

    def is_too_fast(self, request: ProtobufMessage) -> bool:
        """Count a message; return whether the address of the client sends more than it may."""
        if self.rates is None:
            return False
        size = request.ByteSize() if self._limits.byte_rate else 0
        return not self.rates.admits(size, self._owner.now())

    @property
    def certificate_user(self) -> str | None:
        """The user that the verified certificate of the client names; None if there is none."""
        return self._tls.user if self._tls is not None else None

    @property
    def handshake_deadline(self) -> float | None:
        """The time of the event loop by which the TLS handshake has to end; None if it has."""
        return None if self._tls is None else self._tls.deadline

    @property
    def is_encrypted(self) -> bool:
        """Whether the client uses TLS."""
        return self._tls is not None and self._tls.is_open


def _refusal_of(head: RequestHead) -> str:
    """Return the HTTP status for a request that is not gRPC at all; empty if it is."""
    if head.method != "POST":
        return "405"
    kind = head.fields.get("content-type", "")
    rest = kind.removeprefix(codec.CONTENT_TYPE)
    if rest == kind or not (rest == "" or rest.startswith(";") or rest == "+proto"):
        return "415"
    return ""
