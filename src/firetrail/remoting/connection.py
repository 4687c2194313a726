"""One connection, the same on both sides: either may ask, and each answers the other.

What is sent within one turn of the event loop leaves in one write. A peer that does not read what
it asked for is not read from either, until it does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import count
from typing import Protocol, cast

from firetrail.errors import ProtocolError
from firetrail.remoting.codes import CommandFlag, request_name
from firetrail.remoting.command import Command
from firetrail.remoting.frames import FrameReader, Limits, encode_frame

WRITE_HIGH = 4 << 20
"""Bytes that wait to be written, from which on the peer is not read from."""

_log = logging.getLogger(__name__)


class Owner(Protocol):
    """Who has connections: a server, or a client."""

    def opened(self, connection: Connection) -> None:
        """It can be used from now on."""

    def received(self, connection: Connection, requests: Sequence[Command]) -> None:
        """The peer asks; what arrived together comes together."""

    def closed(self, connection: Connection, error: Exception | None) -> None:
        """It is gone; why, if not on purpose."""


class Connection(asyncio.Protocol):
    """Commands to and from a peer."""

    def __init__(self, owner: Owner, limits: Limits | None = None) -> None:
        self._owner = owner
        self._reader = FrameReader(limits)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[Command]] = {}
        self._out: list[bytes | memoryview] = []
        self._holds: set[str] = set()  # the reasons for which nothing is read
        self.peer = ""
        """Address of the other side, ``ip:port``."""
        self.local = ""
        """Address of this side."""
        self.last_heard = self._loop.time()
        """When bytes came last, by the loop's clock."""
        self.unfinished_since: float | None = None
        """When the frame began that has not arrived completely."""
        self.lined_up = 0
        """Requests of the peer that wait for their turn; the owner counts them."""
        self.unhandled_bytes = 0
        """Bytes that came since the owner has set it to 0."""
        self.is_closed = False

    # -- what the event loop calls ------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # One of uvloop is no subclass of it.
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
            _log.warning("%s: %s; the connection is closed", self.peer, error)
            self.abort()

    def pause_writing(self) -> None:
        self.hold("the peer does not read")

    def resume_writing(self) -> None:
        self.release("the peer does not read")

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        self._out.clear()
        asked, self._asked = self._asked, {}
        for future in asked.values():
            if not future.done():
                future.set_exception(ConnectionResetError(f"{self.peer}: the connection is lost"))
        self._owner.closed(self, error)

    # -- what the owner calls -----------------------------------------------------------------

    def send(self, command: Command) -> None:
        """Send a command. One that has no form on the wire raises ProtocolError."""
        if self.is_closed:
            return
        if not self._out:
            self._loop.call_soon(self._write)
        self._out += encode_frame(command)

    def reply(self, request: Command, response: Command) -> None:
        """Send the response, unless nobody waits for it."""
        if not request.is_one_way:
            self.send(response)

    async def request(self, command: Command, timeout_s: float) -> Command:
        """Ask the peer; its response. TimeoutError, or ConnectionError if it cannot answer."""
        if self.is_closed:
            raise ConnectionResetError(f"{self.peer}: the connection is closed")
        command.opaque = opaque = next(self._numbers)
        future: asyncio.Future[Command] = self._loop.create_future()
        self._asked[opaque] = future
        try:
            self.send(command)
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            what = f"no answer to {request_name(command.code)} within {timeout_s:g} s"
            raise TimeoutError(f"{self.peer}: {what}") from None
        finally:
            self._asked.pop(opaque, None)

    def tell(self, command: Command) -> None:
        """Ask the peer for something, without an answer."""
        command.opaque = next(self._numbers)
        command.flag |= CommandFlag.ONE_WAY
        self.send(command)

    def hold(self, reason: str) -> None:
        """Read nothing, until the reason is gone."""
        self._holds.add(reason)
        if self._transport is not None and not self.is_closed:
            self._transport.pause_reading()

    def release(self, reason: str) -> None:
        """Read on, if no other reason is against it."""
        self._holds.discard(reason)
        if self._transport is not None and not self._holds and not self.is_closed:
            self._transport.resume_reading()
            if self.unfinished_since is not None:  # what was not read could not arrive
                self.unfinished_since = self._loop.time()

    @property
    def is_held(self) -> bool:
        """Whether nothing is read for now."""
        return bool(self._holds)

    def close(self) -> None:
        """Write what was sent, then close."""
        if self._transport is not None and not self.is_closed:
            self._write()
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _write(self) -> None:
        if self._out and self._transport is not None and not self.is_closed:
            out, self._out = self._out, []
            self._transport.writelines(out)

    def _settle(self, response: Command) -> None:
        future = self._asked.get(response.opaque)
        if future is not None and not future.done():  # else it came too late
            future.set_result(response)


def address_text(name: object) -> str:
    """``ip:port`` of what the socket says, with brackets around an IPv6 address."""
    if not isinstance(name, tuple) or len(name) < 2:
        return str(name or "")
    host, port = name[0], name[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
