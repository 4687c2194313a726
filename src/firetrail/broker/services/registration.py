"""Registration of the broker and its topics with name servers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from firetrail.broker.config import BrokerConfig
from firetrail.errors import FiretrailError
from firetrail.namesrv.server import NameServer
from firetrail.remoting.bodies import (
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    TopicRouteData,
)
from firetrail.remoting.client import Client
from firetrail.remoting.codes import RequestCode
from firetrail.remoting.command import Command
from firetrail.remoting.headers import RegisterBrokerHeader, TopicHeader
from firetrail.remoting.registration import checksum, encode_registration
from firetrail.settings.table import Live
from firetrail.system import SYSTEM

PAUSE_FACTOR = 10
"""The pause after a registration is this many times as long as encoding all topics took."""
ROUTE_EXPIRY_S = 30.0
"""How long a route from another name server is considered current."""
ROUTES_MAX = 10_000
"""Maximum number of cached routes."""
RETRY_S = 1.0
"""Pause before the next attempt to reach a name server that was not reached or has left."""

_log = logging.getLogger(__name__)


class Registration:
    """Registers a broker with the name server of its process, and with others over the wire."""

    def __init__(
        self,
        config: Live[BrokerConfig],
        address: str,
        topics: Callable[[Iterable[TopicConfig] | None], TopicConfigTable],
        name_server: NameServer | None,
    ) -> None:
        self._live = config
        self._address = address
        self._topics = topics
        self._name_server = name_server
        self._client = Client(on_closed=self._disconnected)
        self._absent: set[str] = set()  # name servers that may not know all topics
        self._remarks: dict[str, str] = {}  # their last remarks
        self._has_changes = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._changes: dict[str, TopicConfig] | None = None  # None: topics may be missing
        self._scheduled = False
        self._routes: dict[str, tuple[float, TopicRouteData]] = {}

    async def start(self) -> None:
        """Register with all name servers; retry later with those that cannot be reached."""
        self._register_here()
        if self._live.current.name_servers:
            await self._register_all()
            self._task = asyncio.get_running_loop().create_task(self._run())

    def changed(self, topics: Iterable[TopicConfig] | None = None) -> None:
        """Register changed topics soon, so that their routes can be found.

        ``topics`` is None if any topic may have changed or was deleted.
        """
        self._has_changes.set()
        if self._name_server is None:
            return
        if not self._scheduled:
            self._scheduled = True
            self._changes = {}
            asyncio.get_running_loop().call_soon(self._register_here)
        if topics is None:
            self._changes = None
        elif self._changes is not None:
            self._changes.update((topic.topic_name, topic) for topic in topics)

    async def route(self, topic: str) -> TopicRouteData | None:
        """Return where the queues of a topic are, on all brokers; None if no name server knows."""
        now = asyncio.get_running_loop().time()
        known = self._routes.get(topic)
        if known is not None and now - known[0] < ROUTE_EXPIRY_S:
            return known[1]
        # Other name servers may know brokers that are not registered here.
        route = await self._ask_route(topic)
        if route is None:
            return self._name_server.routes.route(topic) if self._name_server is not None else None
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        self._routes[topic] = (now, route)
        return route

    async def _ask_route(self, topic: str) -> TopicRouteData | None:
        header = TopicHeader(topic, True)
        for address in self._live.current.name_servers:
            command = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, header.encode())
            try:
                answer = await self._client.ask(address, command)
                return TopicRouteData.decode(answer.content)
            except (OSError, TimeoutError, FiretrailError) as error:
                _log.info(
                    "name server %s did not return the route of topic %s: %s", address, topic, error
                )
        return None

    async def stop(self) -> None:
        """Unregister from all name servers."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self._send_to_all(RequestCode.UNREGISTER_BROKER, b"")
        if self._name_server is not None:
            self._name_server.unregister_local(
                name=self._live.current.name,
                address=self._address,
                broker_id=self._live.current.broker_id,
            )
        await self._client.close()

    def _register_here(self) -> None:
        self._scheduled = False
        if self._name_server is not None:
            self._name_server.register_local(
                cluster=self._live.current.cluster,
                name=self._live.current.name,
                address=self._address,
                topics=self._topics(self._changes.values() if self._changes is not None else None),
                broker_id=self._live.current.broker_id,
                complete=self._changes is None,
            )

    def _disconnected(self, address: str) -> None:
        """Note that a name server has left; it knows nothing when it starts again."""
        self._absent.add(address)

    async def _run(self) -> None:
        due = self._next_due()
        while True:
            now = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(min(max(due - now, 0), RETRY_S)):
                    await self._has_changes.wait()
            except TimeoutError:
                pass
            changed = self._has_changes.is_set()
            self._has_changes.clear()
            if changed or asyncio.get_running_loop().time() >= due:
                due = self._next_due()
                await asyncio.sleep(PAUSE_FACTOR * await self._register_all())
            elif self._absent:
                await asyncio.sleep(PAUSE_FACTOR * await self._register_all(self._absent))

    def _next_due(self) -> float:
        return asyncio.get_running_loop().time() + self._live.current.register_interval_ms / 1000

    async def _register_all(self, addresses: Iterable[str] | None = None) -> float:
        """Register all topics; return how many seconds encoding them took.

        The time spent waiting for an absent name server is not included.
        """
        began = SYSTEM.clock.monotonic()
        content = RegisterBrokerBody(self._topics(None))
        body = await asyncio.to_thread(encode_registration, content)
        took = SYSTEM.clock.monotonic() - began
        await self._send_to_all(RequestCode.REGISTER_BROKER, body, addresses)
        return took

    async def _send_to_all(
        self, code: RequestCode, body: bytes, addresses: Iterable[str] | None = None
    ) -> None:
        config = self._live.current
        header = RegisterBrokerHeader(
            config.name,
            self._address,
            config.cluster,
            config.broker_id,
            ha_server_addr=self._address,
            body_crc32=checksum(body),
        )
        await asyncio.gather(
            *(
                self._send(address, Command(code, header.encode(), body))
                for address in list(config.name_servers if addresses is None else addresses)
            )
        )

    async def _send(self, address: str, command: Command) -> None:
        try:
            answer = await self._client.ask(address, command)
            self._absent.discard(address)
            remark = answer.remark or ""
        except (OSError, TimeoutError, FiretrailError) as error:
            self._absent.add(address)
            remark = str(error).removeprefix(f"{address}: ") or type(error).__name__
        if remark != self._remarks.get(address, ""):  # log it once, not with every retry
            self._remarks[address] = remark
            _log.warning("name server %s: %s", address, remark or "the broker is registered again")
