"""Connections to peers, made when they are needed and shared by all who talk to the same one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from firetrail.errors import RequestError
from firetrail.remoting.answering import Handler, answer_to, outcome_of
from firetrail.remoting.codes import ResponseCode
from firetrail.remoting.command import Command
from firetrail.remoting.connection import Connection
from firetrail.remoting.frames import Limits

CONNECT_S = 3.0
REQUEST_S = 3.0


class Client:
    """Asks peers by their address, and answers what they ask."""

    def __init__(
        self, handlers: Mapping[int, Handler] | None = None, limits: Limits | None = None
    ) -> None:
        self._handlers = handlers or {}
        self._limits = limits
        self._connections: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Task[Connection]] = {}
        self._tasks: set[asyncio.Future[None]] = set()

    async def request(
        self, address: str, command: Command, timeout_s: float = REQUEST_S
    ) -> Command:
        """The peer's response, whatever its code. TimeoutError or OSError if there is none."""
        connection = await self.connect(address)
        return await connection.request(command, timeout_s)

    async def ask(self, address: str, command: Command, timeout_s: float = REQUEST_S) -> Command:
        """The peer's response; RequestError if it is not a success."""
        response = await self.request(address, command, timeout_s)
        if response.code != ResponseCode.SUCCESS:
            raise RequestError(response.code, f"{address}: {response.remark or 'no reason given'}")
        return response

    async def tell(self, address: str, command: Command) -> None:
        """Send a request that is not answered."""
        (await self.connect(address)).tell(command)

    async def connect(self, address: str) -> Connection:
        """The connection to a peer."""
        connection = self._connections.get(address)
        if connection is not None and not connection.is_closed:
            return connection
        task = self._connecting.get(address)
        if task is None:
            task = asyncio.ensure_future(self._open(address))
            self._connecting[address] = task
            task.add_done_callback(lambda _: self._connecting.pop(address, None))
        return await asyncio.shield(task)

    async def _open(self, address: str) -> Connection:
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_S):
            _, connection = await loop.create_connection(
                lambda: Connection(self, self._limits), host.strip("[]"), int(port)
            )
        self._connections[address] = connection
        return connection

    async def close(self) -> None:
        """Close all connections."""
        for opening in list(self._connecting.values()):
            opening.cancel()
        for answering in list(self._tasks):
            answering.cancel()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        await asyncio.sleep(0)

    # -- what connections call ----------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """Nothing to do: who asked for it gets it."""

    def closed(self, connection: Connection, error: Exception | None) -> None:
        """The next request makes a new one."""
        for address, known in list(self._connections.items()):
            if known is connection:
                del self._connections[address]

    def received(self, connection: Connection, requests: Sequence[Command]) -> None:
        """Answer what the peer asks."""
        for request in requests:
            task = asyncio.ensure_future(self._answer(connection, request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, connection: Connection, request: Command) -> None:
        answer = answer_to(self._handlers, connection, request)
        if answer is not None and not isinstance(answer, Command):
            answer = await outcome_of(request, answer)
        if answer is not None:
            connection.reply(request, answer)
