"""What producers, consumers and administrators share: name servers, routes, brokers, heartbeats.

A session has one connection to each peer and one client id, under which brokers know it. Routes
are asked for when they are needed and kept for half a minute.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from itertools import count
from typing import Any, Self

from firetrail.errors import FiretrailError, RequestError
from firetrail.remoting.answering import Handler
from firetrail.remoting.bodies import MASTER_ID, HeartbeatData, MessageQueue, TopicRouteData
from firetrail.remoting.client import REQUEST_S, Client
from firetrail.remoting.codes import Language, Permission, RequestCode, ResponseCode
from firetrail.remoting.command import Body as Bytes
from firetrail.remoting.command import Command
from firetrail.remoting.header import Header
from firetrail.remoting.headers import TopicHeader, UnregisterClientHeader

ROUTE_S = 30.0
"""How long a route is taken for current."""
HEARTBEAT_S = 30.0

_log = logging.getLogger(__name__)
_numbers = count(1)


class Session:
    """Connections to a cluster, found through its name servers (``host:port``, one or several)."""

    def __init__(
        self, namesrv: str | Sequence[str], handlers: Mapping[int, Handler] | None = None
    ) -> None:
        self.name_servers = namesrv.split(";") if isinstance(namesrv, str) else list(namesrv)
        self._client = Client(handlers)
        self._routes: dict[str, tuple[float, TopicRouteData]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._heartbeat: Callable[[], HeartbeatData] | None = None
        self._told: set[str] = set()
        self.client_id = ""
        """What brokers know this client by; empty until the session is open."""

    async def open(self) -> Self:
        """Find a name server that is there."""
        await self._reach_name_server()
        return self

    async def close(self) -> None:
        """End what runs in the background, and close all connections."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()

    # -- asking -------------------------------------------------------------------------------

    async def ask(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: Bytes = b"",
        timeout_s: float = REQUEST_S,
    ) -> Command:
        """The response of a broker; RequestError if it is not a success."""
        return await self._client.ask(address, _command(code, header, body), timeout_s)

    async def request(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: Bytes = b"",
        timeout_s: float = REQUEST_S,
    ) -> Command:
        """The response of a broker, whatever its code."""
        return await self._client.request(address, _command(code, header, body), timeout_s)

    async def tell(
        self, address: str, code: int, header: Header | None = None, body: Bytes = b""
    ) -> None:
        """Ask a broker for something without an answer."""
        await self._client.tell(address, _command(code, header, body))

    async def ask_name_server(
        self, code: int, header: Header | None = None, body: Bytes = b""
    ) -> Command:
        """The response of the first name server that gives one."""
        for attempt in range(len(self.name_servers)):
            try:
                return await self.ask(self.name_servers[0], code, header, body)
            except (OSError, TimeoutError):
                if attempt == len(self.name_servers) - 1:
                    raise
                self.name_servers.append(self.name_servers.pop(0))
        raise AssertionError("there is at least one name server")

    async def _reach_name_server(self) -> None:
        for attempt in range(len(self.name_servers)):
            try:
                connection = await self._client.connect(self.name_servers[0])
            except (OSError, TimeoutError):
                if attempt == len(self.name_servers) - 1:
                    raise
                self.name_servers.append(self.name_servers.pop(0))
            else:
                host = connection.local.rpartition(":")[0].strip("[]")
                self.client_id = f"{host}@{os.getpid()}#{next(_numbers)}-{time.time_ns():x}"
                return

    # -- routes -------------------------------------------------------------------------------

    async def route(self, topic: str, *, fresh: bool = False) -> TopicRouteData:
        """Where the queues of a topic are; RequestError with TOPIC_NOT_EXIST if nowhere."""
        known = self._routes.get(topic)
        now = asyncio.get_running_loop().time()
        if known is not None and not fresh and now - known[0] < ROUTE_S:
            return known[1]
        header = TopicHeader(topic, True)
        answer = await self.ask_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        route = TopicRouteData.decode(answer.content)
        self._routes[topic] = (now, route)
        await self._greet_new_brokers()
        return route

    def forget_route(self, topic: str) -> None:
        """Ask anew when the route is needed next; until then brokers are where they were.

        A broker that is away for a moment is told how far its consumers are when it is back.
        """
        if topic in self._routes:
            self._routes[topic] = (-math.inf, self._routes[topic][1])

    def address_of(self, broker_name: str, broker_id: int = MASTER_ID) -> str:
        """The address of a broker in a route that was asked for."""
        for _, route in self._routes.values():
            for data in route.broker_datas:
                if data.broker_name == broker_name and data.broker_addrs:
                    first = min(data.broker_addrs)
                    return data.broker_addrs.get(broker_id, data.broker_addrs[first])
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"no route names the broker {broker_name}; ask for its topic"
        )

    def masters(self) -> set[str]:
        """The addresses of all masters in routes that were asked for."""
        return {
            data.master
            for _, route in self._routes.values()
            for data in route.broker_datas
            if data.master
        }

    # -- in the background --------------------------------------------------------------------

    def beat(self, heartbeat: Callable[[], HeartbeatData]) -> None:
        """Tell all brokers, now and every half minute, what this client is."""
        self._heartbeat = heartbeat
        self.every(HEARTBEAT_S, self.beat_now)

    async def beat_now(self) -> None:
        """Tell it to all brokers at once; one that is not there is told the next time."""
        if self._heartbeat is None:
            return
        self._told = self.masters()
        body = self._heartbeat().encode()
        beats = (self.ask(address, RequestCode.HEART_BEAT, body=body) for address in self._told)
        for outcome in await asyncio.gather(*beats, return_exceptions=True):
            if isinstance(outcome, Exception):
                _log.warning("heartbeat: %s", outcome)

    async def leave(self, group: str) -> None:
        """Tell all brokers that this client has left a consumer group."""
        header = UnregisterClientHeader(self.client_id, consumer_group=group)
        for address in self.masters():
            try:
                await self.ask(address, RequestCode.UNREGISTER_CLIENT, header)
            except (OSError, TimeoutError, FiretrailError) as error:
                _log.warning("%s: leaving the group: %s", group, error)

    async def _greet_new_brokers(self) -> None:
        if self._heartbeat is not None and not self.masters() <= self._told:
            await self.beat_now()

    def every(self, seconds: float, action: Callable[[], Awaitable[None]]) -> None:
        """Do something again and again until the session is closed; failures are logged."""

        async def run() -> None:
            while True:
                await asyncio.sleep(seconds)
                try:
                    await action()
                except Exception as error:
                    _log.warning("%s: %s; tried again later", action.__qualname__, error)

        self.spawn(run())

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside the rest; it ends with the session."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _command(code: int, header: Header | None, body: Bytes) -> Command:
    fields = header.encode() if header is not None else {}
    return Command(code, fields, body, language=Language.PYTHON)


def queues_of(topic: str, route: TopicRouteData, permission: Permission) -> list[MessageQueue]:
    """The queues of a topic that clients may use so, in the order that all clients agree on.

    Those for writing are only those of brokers that have a master.
    """
    writing = permission is Permission.WRITE
    masters = {data.broker_name for data in route.broker_datas if data.master is not None}
    return sorted(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queue_datas
        if data.perm & permission and (not writing or data.broker_name in masters)
        for queue_id in range(data.write_queue_nums if writing else data.read_queue_nums)
    )
