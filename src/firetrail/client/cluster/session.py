"""The basis of all clients: connections to name servers and brokers, routes and heartbeats.

A session has one connection to each peer and one client id, by which brokers identify it. Routes
are requested on demand and cached for half a minute. While no name server knows a broker (it has
just started, or is down), the last known route remains in use.
"""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from enum import Enum
from itertools import count
from typing import Any, Self, TypeVar

from firetrail.client.cluster.background_tasks import BackgroundTasks
from firetrail.client.cluster.client_arguments import name_servers
from firetrail.client.cluster.known_routes import KnownRoutes
from firetrail.client.cluster.name_servers import NameServers
from firetrail.client.cluster.single_flight import SingleFlight
from firetrail.errors import (
    ClientClosedError,
    NoAnswerError,
    NoRouteYetError,
    NotReachedError,
    NotRocketMQError,
    ProtocolError,
    RequestError,
    TlsError,
)
from firetrail.remoting.connections.access import Access
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.connections.remoting_client import (
    REQUEST_S,
    NotConnectedError,
    RemotingClient,
)
from firetrail.remoting.messages.bodies import MASTER_ID, HeartbeatData, TopicRouteData
from firetrail.remoting.messages.headers import UnregisterClientHeader
from firetrail.remoting.messages.typed_header import Header
from firetrail.remoting.wire.codes import Language, RequestCode, ResponseCode
from firetrail.remoting.wire.command import Payload, RemotingCommand
from firetrail.system import SYSTEM

ROLE_CODES = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)
"""Codes with which a broker refuses requests that only a master can handle."""
HEARTBEAT_S = 30.0
"""Interval of heartbeats, as in the Java client."""
LONG_POLL_MARGIN_S = 10.0
"""Time limit for an answer, on top of the time that the broker may wait for messages."""

T = TypeVar("T")

_log = logging.getLogger(__name__)
_numbers = count(1)


class _SessionState(Enum):
    NEW = "is not open; use 'async with', or await open() first"
    OPENING = "is being opened"
    OPEN = "is open"
    CLOSING = "is being closed"
    CLOSED = "is closed; create a new one"


class Session:
    """Connections to a cluster, found through its name servers (``host:port``, one or several).

    ``owner`` is the name of the public class that uses the session, for error messages. ``access``
    has credentials and TLS; by default those in the environment.

    Attributes:
        name_servers: The name servers of the cluster.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        handlers: Mapping[int, Handler] | None = None,
        owner: str = "Session",
        access: Access | None = None,
    ) -> None:
        self._access = access
        self.name_servers = NameServers(name_servers(namesrv), self.ask)
        self._handlers = handlers
        self._owner = owner
        self._state = _SessionState.NEW
        self._loop: asyncio.AbstractEventLoop | None = None  # in which it is open
        self._losses: Counter[str] = Counter()
        self._client = self._new_client()
        self._routes = KnownRoutes()
        self._lookups = SingleFlight[TopicRouteData](
            lambda work: self.spawn(work, watched=True), owner
        )
        self._stale: set[str] = set()  # topics whose last known route is in use
        self._tasks = BackgroundTasks(owner)
        self._heartbeat: Callable[[], HeartbeatData] | None = None
        self._beats_everywhere = False
        self._greeted: set[str] = set()  # addresses of brokers that got a heartbeat
        self.client_id = ""
        """The id by which brokers identify this client; empty until the session is open."""

    async def open(self) -> Self:
        """Connect to the first name server that answers. After a failure, it can be retried."""
        if self._state is not _SessionState.NEW:
            raise ClientClosedError(f"{self._owner} {self._state.value}")
        self._state = _SessionState.OPENING
        self._loop = asyncio.get_running_loop()
        self._client = self._new_client()
        self._routes = KnownRoutes()
        self._stale.clear()
        self._greeted.clear()
        self._heartbeat = None
        try:
            connection = await self.name_servers.reach(self._client.connect)
        except BaseException:
            try:
                await self.close()
            finally:
                self.renew()
            raise
        host = connection.local.rpartition(":")[0].strip("[]")
        self.client_id = f"{host}@{os.getpid()}#{next(_numbers)}-{SYSTEM.clock.time_ns():x}"
        self._state = _SessionState.OPEN
        return self

    def _new_client(self) -> RemotingClient:
        return RemotingClient(
            self._handlers, on_closed=self._lost, on_opened=self._connected, access=self._access
        )

    def renew(self) -> None:
        """Allow a closed session to be opened again."""
        self._state = _SessionState.NEW

    def start_closing(self) -> bool:
        """Refuse further calls of the user; return whether the session has to be closed."""
        opened = self._state is _SessionState.OPEN
        if opened:
            self.check_loop()
            self._state = _SessionState.CLOSING
        elif self._state is _SessionState.NEW:
            self._state = _SessionState.CLOSED
        return opened

    async def close(self) -> None:
        """Cancel all background tasks, and close all connections.

        If this is cancelled, only the wait for the end of the tasks is cut short.
        """
        self._state = _SessionState.CLOSED
        try:
            await self._tasks.cancel()
        finally:
            await self._client.close()

    def check_open(self) -> None:
        """Raise ClientClosedError unless the session is open, in this event loop."""
        if self._state is not _SessionState.OPEN:
            raise ClientClosedError(f"{self._owner} {self._state.value}")
        self.check_loop()

    def check_loop(self) -> None:
        """Raise ClientClosedError if the session was opened in another event loop."""
        if self._loop is not asyncio.get_running_loop():
            ended = "that has ended" if self._loop is not None and self._loop.is_closed() else ""
            raise ClientClosedError(
                f"{self._owner} was opened in another event loop {ended}".rstrip()
                + "; open a client in each loop, or use firetrail.client.sync in threads"
            )

    def _check_connected(self) -> None:
        """Raise ClientClosedError unless the session is open, being opened or being closed."""
        if self._state in (_SessionState.NEW, _SessionState.CLOSED):
            self.check_open()
        self.check_loop()

    # -- requests -----------------------------------------------------------------------------

    async def ask(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: Payload = b"",
        timeout_s: float = REQUEST_S,
    ) -> RemotingCommand:
        """Return the response of a broker; raise RequestError if it is not a success."""
        response = await self.request(address, code, header, body, timeout_s)
        if response.code != ResponseCode.SUCCESS:
            reason = (response.remark or "no reason given").strip()
            raise RequestError(response.code, f"{address}: {reason}")
        return response

    async def request(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: Payload = b"",
        timeout_s: float = REQUEST_S,
    ) -> RemotingCommand:
        """Return the response of a broker, with any code."""
        return await self.pass_on(address, _command(code, header, body), timeout_s)

    async def pass_on(
        self, address: str, command: RemotingCommand, timeout_s: float = REQUEST_S
    ) -> RemotingCommand:
        """Forward a request to a broker, and return the response, with any code."""
        self._check_connected()
        try:
            answer = await self._client.request(address, command, timeout_s)
        except OSError as error:
            self._suspect(address)
            raise self._error_of(error) from error
        if answer.code in ROLE_CODES:
            self._suspect(address)
        return answer

    def _suspect(self, address: str) -> None:
        """Request the routes with this address again soon."""
        self._routes.suspect(address, asyncio.get_running_loop().time())

    async def tell(
        self, address: str, code: int, header: Header | None = None, body: Payload = b""
    ) -> None:
        """Send a one-way request to a broker."""
        self._check_connected()
        try:
            await self._client.tell(address, _command(code, header, body))
        except OSError as error:
            raise self._error_of(error) from error

    def _error_of(self, error: OSError) -> Exception:
        """Return the error to raise for a failed request: a close also ends connections."""
        if self._state is _SessionState.CLOSED:
            return ClientClosedError(f"{self._owner} was closed during the call")
        if isinstance(error, TlsError):
            return error
        if isinstance(error.__cause__, ProtocolError):
            return NotRocketMQError(
                f"{error}, because the answer is not a RocketMQ command ({error.__cause__}); check "
                "that the address is that of a name server or broker"
            )
        kind = NoAnswerError if isinstance(error, TimeoutError) else NotReachedError
        found = kind(str(error))
        found.may_have_arrived = not isinstance(error, NotConnectedError)
        return found

    # -- routes -------------------------------------------------------------------------------

    async def route(self, topic: str, *, fresh: bool = False) -> TopicRouteData:
        """Return the route of a topic; raise RequestError (TOPIC_NOT_EXIST) if there is none.

        Unless ``fresh`` is set, the last known route is used while no name server knows one.
        """
        self._check_connected()
        if fresh:
            return await self._request_route(topic, fresh=True)
        known = self._routes.current(topic, asyncio.get_running_loop().time())
        if known is not None:
            return known
        return await self._lookups.get(topic, lambda: self._request_route(topic))

    async def _request_route(self, topic: str, *, fresh: bool = False) -> TopicRouteData:
        known = self._routes.last(topic)
        now = asyncio.get_running_loop().time()
        try:
            route = await self.name_servers.route(topic)
        except (OSError, NoRouteYetError) as error:
            if known is None or fresh:
                raise
            if topic not in self._stale:  # log it once, although it may recur every second
                self._stale.add(topic)
                _log.warning("%s; the last known route of %s remains in use", error, topic)
            self._routes.keep(topic, now)
            return known
        self._routes.add(topic, route, now)
        self._stale.discard(topic)
        try:
            await self._greet_new_brokers()
        except BaseException:
            self.forget_route(topic)  # the next call that needs the route greets the brokers
            raise
        return route

    async def brokers(self) -> dict[str, str]:
        """Return the names and addresses of all masters that the name server knows."""
        return await self.name_servers.masters()

    async def master_at(self, connection: Connection) -> str | None:
        """Return the name of the master that a connection of this session leads to, if it does."""
        address = self._client.address_of(connection)
        names = (name for name, found in (await self.brokers()).items() if found == address)
        return next(names, None)

    def forget_route(self, topic: str) -> None:
        """Request the route again when it is needed next; until then addresses stay known.

        So consumers can still commit their offsets to a broker that was away for a moment.
        """
        self._routes.forget(topic)

    def address_of(self, broker_name: str, broker_id: int = MASTER_ID) -> str:
        """Return the address of a broker: see :meth:`KnownRoutes.address_of`."""
        self._check_connected()
        return self._routes.address_of(broker_name, broker_id)

    def master_of(self, broker_name: str) -> str:
        """Return the address of a master: see :meth:`KnownRoutes.master_of`."""
        self._check_connected()
        return self._routes.master_of(broker_name)

    def coordinators(self) -> set[str]:
        """Return the address of one broker per name in the routes that were requested."""
        return self._routes.coordinators()

    # -- background tasks ---------------------------------------------------------------------

    def beat(self, heartbeat: Callable[[], HeartbeatData], *, everywhere: bool = False) -> None:
        """Send heartbeats every half minute, and to new brokers at once.

        They go to the brokers in the routes that were requested; if ``everywhere`` is set, to all
        brokers of the cluster, at once and before anything is sent.
        """
        self._heartbeat = heartbeat
        self._beats_everywhere = everywhere
        if everywhere:
            self.spawn(self.beat_now())
        self.every(HEARTBEAT_S, self.beat_now)

    async def beat_now(self) -> None:
        """Send a heartbeat to all brokers; one that does not answer gets the next one."""
        if self._heartbeat is None:
            return
        greeted = self.coordinators()
        if self._beats_everywhere:
            try:
                greeted |= set((await self.brokers()).values())
            except (OSError, RequestError) as error:
                _log.warning("%s; heartbeats go only to the brokers that are known", error)
        body = self._heartbeat().encode()
        beats = (self.ask(address, RequestCode.HEART_BEAT, body=body) for address in greeted)
        for outcome in await asyncio.gather(*beats, return_exceptions=True):
            if isinstance(outcome, Exception):
                _log.warning("a heartbeat failed; the next one follows soon: %s", outcome)
        self._greeted = greeted  # only now: if this is cancelled, no broker may have got it

    def losses(self, address: str) -> int:
        """Return the number of lost connections to a peer.

        After a loss the broker may have restarted, and then knows neither this client nor its
        locks.
        """
        return self._losses[address]

    def _lost(self, address: str) -> None:
        self._losses[address] += 1

    def _connected(self, address: str, connection: Connection) -> None:
        """Register with a broker before anything else is requested over the new connection."""
        beat, is_open = self._heartbeat, self._state is _SessionState.OPEN
        if beat is not None and is_open and address in self.coordinators():
            self.spawn(self._register(connection, beat().encode()))

    async def _register(self, connection: Connection, body: Payload) -> None:
        try:
            await connection.request(_command(RequestCode.HEART_BEAT, None, body), REQUEST_S)
        except OSError as error:
            _log.warning("a heartbeat failed; the next one follows soon: %s", error)

    async def leave(self, group: str) -> None:
        """Unregister this client from a consumer group on all brokers."""
        header = UnregisterClientHeader(self.client_id, consumer_group=group)
        code = RequestCode.UNREGISTER_CLIENT
        requests = (self.ask(address, code, header) for address in self.coordinators())
        for outcome in await asyncio.gather(*requests, return_exceptions=True):
            if isinstance(outcome, Exception):
                _log.warning(
                    "%s: unregistering from the group failed; the broker removes this client later:"
                    " %s",
                    group,
                    outcome,
                )

    async def _greet_new_brokers(self) -> None:
        if self._heartbeat is not None and not self.coordinators() <= self._greeted:
            await self.beat_now()

    def every(self, seconds: float, action: Callable[[], Awaitable[None]]) -> None:
        """Repeat an action until the session is closed; failures are logged."""
        self.spawn(self._tasks.repeat(seconds, action))

    def spawn(self, work: Coroutine[Any, Any, T], *, watched: bool = False) -> asyncio.Task[T]:
        """Run a coroutine in a task that is cancelled when the session is closed.

        A failure is logged, unless ``watched`` is set: then the caller handles it.
        """
        if self._state is _SessionState.CLOSED:
            work.close()
            self.check_open()
        return self._tasks.spawn(work, watched=watched)


def _command(code: int, header: Header | None, body: Payload) -> RemotingCommand:
    fields = header.encode() if header is not None else {}
    return RemotingCommand(code, fields, body, language=Language.PYTHON)
