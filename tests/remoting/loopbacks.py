"""A server and a client on loopback, with handlers for tests."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from tests.connections import connected

from firetrail.errors import RequestError
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.servers.client_limits import ServerLimits
from firetrail.remoting.servers.remoting_server import RemotingServer, RequestAudit, RequestGuard
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.system import SYSTEM
from firetrail.tls.server_tls import ServerTls

ECHO, SLOW, FAIL, BROKEN, UNWRITABLE, NOTE = range(1, 7)


def echo(connection: Connection, request: RemotingCommand) -> RemotingCommand:
    return request.answer(fields=request.fields, body=request.body)


async def slow(connection: Connection, request: RemotingCommand) -> RemotingCommand:
    await asyncio.sleep(0.05)
    return request.answer(remark="at last")


def fail(connection: Connection, request: RemotingCommand) -> RemotingCommand:
    raise RequestError(ResponseCode.TOPIC_NOT_EXIST, "no such topic")


def broken(connection: Connection, request: RemotingCommand) -> RemotingCommand:
    raise ZeroDivisionError("a bug")


def unwritable(connection: Connection, request: RemotingCommand) -> RemotingCommand:
    return request.answer(0x8000)


HANDLERS: dict[int, Handler] = {
    ECHO: echo,
    SLOW: slow,
    FAIL: fail,
    BROKEN: broken,
    UNWRITABLE: unwritable,
}


class Loopback:
    """A server with its address, and a client."""

    def __init__(self, server: RemotingServer, port: int, client: RemotingClient) -> None:
        self.server = server
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self.client = client

    async def ask(self, code: int, **fields: Any) -> RemotingCommand:
        return await self.client.request(self.address, RemotingCommand(code, **fields))

    def raw(self) -> AbstractAsyncContextManager[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        return connected(self.address)


@asynccontextmanager
async def serving(
    limits: ServerLimits | None = None,
    on_closed: Callable[[Connection], None] | None = None,
    client_handlers: Mapping[int, Handler] | None = None,
    audit: RequestAudit | None = None,
    handlers: Mapping[int, Handler] = HANDLERS,
    guard: RequestGuard | None = None,
    tls: ServerTls | None = None,
) -> AsyncIterator[Loopback]:
    server = RemotingServer(handlers, SYSTEM, limits, guard, tls, audit)
    server.on_closed = on_closed
    client = RemotingClient(client_handlers)
    port = await server.start("127.0.0.1", 0)
    try:
        yield Loopback(server, port, client)
    finally:
        await client.close()
        await server.stop()
