"""A connection to a client in the same process: commands are passed on, not encoded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

from firetrail.remoting.connections.connection import Connection, ConnectionOwner
from firetrail.remoting.connections.handlers import Answer
from firetrail.remoting.servers.addresses import source_of
from firetrail.remoting.wire.command import RemotingCommand


class LocalConnection(Connection):
    """Represents a client to the handlers of a server in the same process.

    The server sees an ordinary connection: it may reply to a request later, and send requests.

    Args:
        owner: Receives the requests of the server, and the end of the connection. It answers a
            request with :meth:`answer`.
        peer: ``ip:port`` that the server sees.
    """

    def __init__(self, owner: ConnectionOwner, peer: str) -> None:
        super().__init__(owner)
        self.peer = peer
        self.host = source_of(peer)
        self._questions = count(1)
        self._waiting: dict[int, asyncio.Future[RemotingCommand]] = {}

    def ask(
        self, serve: Callable[[Connection, RemotingCommand], Answer], request: RemotingCommand
    ) -> RemotingCommand | asyncio.Future[RemotingCommand]:
        """Pass a request to the server.

        Args:
            serve: Handles a request on a connection.
            request: The request.

        Returns:
            The response, or a future of it if the server needs time. The future raises
            ConnectionError if the connection is closed first. Cancelling it cancels the work of the
            server.
        """
        request.opaque = opaque = next(self._questions)
        answer = serve(self, request)
        if isinstance(answer, RemotingCommand):
            return answer
        response: asyncio.Future[RemotingCommand] = self._loop.create_future()
        self._waiting[opaque] = response
        response.add_done_callback(lambda _: self._waiting.pop(opaque, None))
        if answer is not None:
            _connect(asyncio.ensure_future(answer), response)
        return response

    def send(self, command: RemotingCommand) -> None:
        """Pass a command of the server to the client."""
        if self.is_closed:
            return
        if not command.is_response:
            self._owner.received(self, [command])
            return
        future = self._waiting.get(command.opaque)
        if future is not None and not future.done():  # otherwise the client no longer waits
            future.set_result(command)

    def answer(self, response: RemotingCommand) -> None:
        """Answer a request of the server."""
        self._settle(response)

    def close(self) -> None:
        """Close the connection: requests that wait fail with ConnectionError, on both sides."""
        if self.is_closed:
            return
        for future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(ConnectionResetError(f"{self.peer}: the connection is closed"))
        self.connection_lost(None)

    def abort(self) -> None:
        """Close the connection."""
        self.close()


def _connect(
    work: asyncio.Future[RemotingCommand | None], response: asyncio.Future[RemotingCommand]
) -> None:
    """Let a response follow the work for it, unless the server replies later."""

    def worked(work: asyncio.Future[RemotingCommand | None]) -> None:
        if response.done():
            return
        if work.cancelled():
            response.cancel()
        elif (error := work.exception()) is not None:
            response.set_exception(error)
        elif (result := work.result()) is not None:
            response.set_result(result)

    work.add_done_callback(worked)
    response.add_done_callback(lambda _: work.cancel())
