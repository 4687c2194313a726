"""A connection, the same on both sides: each may send requests and answer those of the other.

Commands sent within one iteration of the event loop are written together. Requests are not read
from a peer while it does not read its responses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import count
from typing import Protocol, cast

from firetrail.errors import ProtocolError
from firetrail.remoting.codes import CommandFlag, request_name
from firetrail.remoting.command import RemotingCommand
from firetrail.remoting.frames import FrameReader, Limits, encode_frame

WRITE_HIGH = 4 << 20
"""When this many bytes wait to be written, the peer is not read from."""

_log = logging.getLogger(__name__)


class Owner(Protocol):
    """The owner of connections: a server, or a client."""

    def opened(self, connection: Connection) -> None:
        """Handle a new connection, which can be used from now on."""

    def received(self, connection: Connection, requests: Sequence[RemotingCommand]) -> None:
        """Handle requests of the peer; those that arrived together are passed together."""

    def closed(self, connection: Connection, error: Exception | None) -> None:
        """Handle the end of a connection; ``error`` is None if it was closed on purpose."""


class Connection(asyncio.Protocol):
    """Sends commands to a peer and receives commands from it."""

    def __init__(self, owner: Owner, limits: Limits | None = None) -> None:
        self._owner = owner
        self._reader = FrameReader(limits)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._numbers = count(1)
        self._pending: dict[int, asyncio.Future[RemotingCommand]] = {}  # requests by number
        self._out: list[bytes | memoryview] = []
        self._holds: set[str] = set()  # the reasons why reading is paused
        self.peer = ""
        """Address of the other side, ``ip:port``."""
        self.local = ""
        """Address of this side."""
        self.last_heard = self._loop.time()
        """When bytes arrived last, by the loop's clock."""
        self.unfinished_since: float | None = None
        """When the frame that has not arrived completely started, by the loop's clock."""
        self.queued = 0
        """Requests of the peer that are not handled yet; the owner counts them."""
        self.unhandled_bytes = 0
        """Bytes that arrived since the owner set this to 0."""
        self.is_closed = False
        self._violation: ProtocolError | None = None  # the bytes because of which it was closed

    # -- called by the event loop -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of uvloop are not subclasses of asyncio.Transport.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=WRITE_HIGH)
        self.peer = address_text(transport.get_extra_info("peername"))
        self.local = address_text(transport.get_extra_info("sockname"))
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        self.last_heard = now = self._loop.time()
        self.unhandled_bytes += len(data)
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
        if requests:
            self._owner.received(self, requests)
        if error is not None:
            _log.warning("the connection to %s is closed: %s", self.peer, error)
            self._violation = error
            self.abort()

    def pause_writing(self) -> None:
        self.hold("the peer does not read")

    def resume_writing(self) -> None:
        self.release("the peer does not read")

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        self._out.clear()
        pending, self._pending = self._pending, {}
        for future in pending.values():
            if not future.done():
                lost = ConnectionResetError(f"{self.peer}: the connection was lost")
                lost.__cause__ = self._violation
                future.set_exception(lost)
        self._owner.closed(self, error)

    # -- called by the owner ------------------------------------------------------------------

    def send(self, command: RemotingCommand) -> None:
        """Send a command; raise ProtocolError if it cannot be encoded."""
        if self.is_closed:
            return
        if not self._out:
            self._loop.call_soon(self._write)
        self._out += encode_frame(command)

    def reply(self, request: RemotingCommand, response: RemotingCommand) -> None:
        """Send the response, unless the request is one-way."""
        if not request.is_one_way:
            self.send(response)

    async def request(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Send a request and return the response.

        Raises TimeoutError without a response in time, and ConnectionError if the connection ends;
        its cause is a ProtocolError if the peer has sent what cannot be decoded.
        """
        if self.is_closed:
            raise ConnectionResetError(f"{self.peer}: the connection is closed")
        command.opaque = opaque = next(self._numbers)
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        self._pending[opaque] = future
        try:
            self.send(command)
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            what = f"no answer to {request_name(command.code)} within {timeout_s:g} s"
            raise TimeoutError(f"{self.peer}: {what}") from None
        finally:
            self._pending.pop(opaque, None)

    def tell(self, command: RemotingCommand) -> None:
        """Send a one-way request."""
        command.opaque = next(self._numbers)
        command.flag |= CommandFlag.ONE_WAY
        self.send(command)

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
    def is_held(self) -> bool:
        """Whether reading is paused."""
        return bool(self._holds)

    def close(self) -> None:
        """Write all sent commands, then close the connection."""
        if self._transport is not None and not self.is_closed:
            self._write()
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once, dropping unwritten commands."""
        if self._transport is not None:
            self._transport.abort()

    def _write(self) -> None:
        if self._out and self._transport is not None and not self.is_closed:
            out, self._out = self._out, []
            # In Python 3.12 and 3.13, writelines of a transport that was aborted leaves its
            # descriptor in the event loop, where it disturbs the next user of the number
            # (https://github.com/python/cpython/issues/136234).
            if not self._transport.is_closing():
                self._transport.writelines(out)

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
