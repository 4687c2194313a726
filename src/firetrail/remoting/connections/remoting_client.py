"""The client side of the protocol: one shared connection per peer, opened on demand."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from firetrail.auth.signature import Signer
from firetrail.errors import ConfigError, RequestError, TlsError
from firetrail.format.values.integers import number_in
from firetrail.remoting.connections.access import Access
from firetrail.remoting.connections.connection import Connection, address_text
from firetrail.remoting.connections.handlers import Handler, answer_to, failure, respond
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.remoting.wire.frames import FrameLimits
from firetrail.text import os_reason

CONNECT_S = 3.0
"""Time limit for opening a connection."""
REQUEST_S = 3.0
"""Default time limit for the response to a request."""


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port``, with brackets around an IPv6 address; raise ConfigError if invalid."""
    host, _, port = address.rpartition(":")
    is_host = host.strip("[]") and not any(sign in host for sign in "/;, ")
    number = number_in(port)
    if not is_host or number is None:
        raise ConfigError("address", address, "expected HOST:PORT, such as 127.0.0.1:9876")
    if not 0 < number < 1 << 16:
        raise ConfigError("address", address, "the port must be in 1..65535")
    return host.strip("[]"), number


async def resolved_addresses(address: str) -> set[str]:
    """Return the addresses ``ip:port`` of the host in ``host:port``; none if it is unknown."""
    try:
        host, port = split_address(address)
        found = await asyncio.get_running_loop().getaddrinfo(host, port)
    except (ConfigError, OSError, UnicodeError):
        return set()
    return {address_text(each[4]) for each in found}


def is_cancelled() -> bool:
    """Return whether the current task is being cancelled.

    If not, a CancelledError comes from something that the task awaits and concerns only that.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class NotConnectedError(ConnectionError):
    """No connection could be opened, so nothing was sent."""


class ConnectTimeoutError(NotConnectedError, TimeoutError):
    """No connection could be opened in time, so nothing was sent."""


def _closed(address: str) -> ConnectionError:
    return ConnectionError(f"{address}: the client was closed")


def _with_remedy(error: TlsError) -> TlsError:
    return TlsError(f"{error}{_remedy(str(error))}")


def _remedy(failure: str) -> str:
    """Return the remedy for a failed handshake; empty if the failure names it."""
    if "certificate required" in failure:
        return "; name one in FIRETRAIL_TLS_CERT and its key in FIRETRAIL_TLS_KEY"
    if "alert unknown ca" in failure:
        return "; the server does not trust the issuer of the certificate in FIRETRAIL_TLS_CERT"
    if "issuer" in failure or "self-signed" in failure:
        return "; name its issuer in FIRETRAIL_TLS_CA, or with Access(tls=ClientTls(ca=...))"
    if "mismatch" in failure or "not valid for" in failure:
        return "; FIRETRAIL_TLS=verify-ca does not check the address"
    return ""


class RemotingClient:
    """Sends requests to peers by their address, and answers the requests of peers."""

    def __init__(
        self,
        handlers: Mapping[int, Handler] | None = None,
        limits: FrameLimits | None = None,
        on_closed: Callable[[str], None] | None = None,
        on_opened: Callable[[str, Connection], None] | None = None,
        access: Access | None = None,
    ) -> None:
        """Create a client without connections.

        Args:
            handlers: The handlers for the requests of peers. Default: none.
            limits: Limits for the frames of peers. Default: ``Limits()``.
            on_closed: Called with the address of a peer whose connection ended.
            on_opened: Called with a new connection before any request uses it.
            access: Credentials and TLS. Default: those in the environment.

        Raises:
            ConfigError: A variable of the environment has a value that is not allowed.
        """
        access = access if access is not None else Access.from_environment()
        self._tls = access.tls
        self._signer = Signer(access.credentials) if access.credentials is not None else None
        self._handlers = handlers or {}
        self._on_closed = on_closed
        self._on_opened = on_opened
        self._limits = limits
        self._connections: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Task[Connection]] = {}
        self._is_closed = False
        self._tasks: set[asyncio.Future[RemotingCommand | None]] = set()

    async def request(
        self, address: str, command: RemotingCommand, timeout_s: float = REQUEST_S
    ) -> RemotingCommand:
        """Return the response of a peer, with any code; raise OSError if there is none."""
        connection = await self.connect(address)
        try:
            return await connection.request(command, timeout_s)
        except TlsError as error:
            raise _with_remedy(error) from None

    async def ask(
        self, address: str, command: RemotingCommand, timeout_s: float = REQUEST_S
    ) -> RemotingCommand:
        """Return the response of a peer; raise RequestError if it is not a success."""
        response = await self.request(address, command, timeout_s)
        if response.code != ResponseCode.SUCCESS:
            reason = (response.remark or "no reason given").strip()
            raise RequestError(response.code, f"{address}: {reason}")
        return response

    async def tell(self, address: str, command: RemotingCommand) -> None:
        """Send a one-way request; raise OSError if it is known that it cannot be sent."""
        connection = await self.connect(address)
        try:
            connection.check_usable()
        except TlsError as error:
            raise _with_remedy(error) from None
        connection.tell(command)

    async def connect(self, address: str) -> Connection:
        """Return the connection to a peer; open it if necessary."""
        if self._is_closed:
            raise _closed(address)
        connection = self._connections.get(address)
        if connection is not None and connection.is_usable:
            return connection
        task = self._connecting.get(address)
        if task is None:
            task = asyncio.ensure_future(self._open(address))
            self._connecting[address] = task
            task.add_done_callback(partial(self._end_opening, address))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and not is_cancelled():
                raise _closed(address) from None  # only close() cancels the task
            raise

    def _end_opening(self, address: str, task: asyncio.Task[Connection]) -> None:
        self._connecting.pop(address, None)
        if not task.cancelled():
            task.exception()  # asyncio logs it otherwise if all callers were cancelled before

    async def _open(self, address: str) -> Connection:
        host, port = split_address(address)
        session = None
        if self._tls is not None:  # it reads files
            session = await asyncio.to_thread(self._tls.session, host)
        connection = Connection(self, self._limits, tls=session)
        connection.signer = self._signer
        try:
            async with asyncio.timeout(CONNECT_S):
                await asyncio.get_running_loop().create_connection(lambda: connection, host, port)
                await connection.secure()
                self._connections[address] = connection
        except TlsError as error:
            raise _with_remedy(error) from None
        except TimeoutError:
            what = f"{address}: no connection within {CONNECT_S:g} s"
            raise ConnectTimeoutError(what) from None
        except OSError as error:
            raise NotConnectedError(f"{address}: cannot be reached: {os_reason(error)}") from error
        finally:
            if address not in self._connections:
                connection.abort()
        if self._on_opened is not None:
            self._on_opened(address, connection)
        return connection

    def address_of(self, connection: Connection) -> str | None:
        """Return the address that a connection was opened to; None if it is closed."""
        found = (address for address, each in self._connections.items() if each is connection)
        return next(found, None)

    async def close(self) -> None:
        """Close all connections; requests in progress raise ConnectionError."""
        self._is_closed = True
        for opening in list(self._connecting.values()):
            opening.cancel()
        for answering in list(self._tasks):
            answering.cancel()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        await asyncio.sleep(0)

    # -- called by connections ----------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """Do nothing: ``connect`` returns the connection."""

    def closed(self, connection: Connection, error: Exception | None) -> None:
        """Forget the connection, so that the next request opens a new one."""
        for address, known in list(self._connections.items()):
            if known is connection:
                del self._connections[address]
                if self._on_closed is not None and not self._is_closed:
                    self._on_closed(address)

    def drained(self, connection: Connection) -> None:
        """Do nothing: no request waits for that."""

    def received(self, connection: Connection, requests: Sequence[RemotingCommand]) -> None:
        """Answer the requests of a peer.

        Handlers are called at once, so requests that a peer sent before an answer are handled
        before the answer is passed on. Only the awaited part of a handler runs later.
        """
        for request in requests:
            answer = answer_to(self._handlers, connection, request)
            if answer is None or isinstance(answer, RemotingCommand):
                respond(connection, request, answer)
                continue
            task = asyncio.ensure_future(answer)
            self._tasks.add(task)
            task.add_done_callback(partial(self._respond, connection, request))

    def _respond(
        self,
        connection: Connection,
        request: RemotingCommand,
        task: asyncio.Future[RemotingCommand | None],
    ) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, Exception):
            respond(connection, request, failure(request, error))
        elif error is None:
            respond(connection, request, task.result())
