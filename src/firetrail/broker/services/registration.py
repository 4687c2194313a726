"""What name servers are told: that the broker is there, and which topics it has."""

from __future__ import annotations

import asyncio
import logging
import time
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

REST = 10
"""How many times longer than it takes to write all topics down the pause behind it is."""
ROUTE_S = 30.0
"""How long a route of another name server is taken for current."""
ROUTES_MAX = 10_000
"""So many of them are kept."""
RETRY_S = 1.0
"""A name server that was not reached, or is gone, is tried again after so long."""

_log = logging.getLogger(__name__)


class Registration:
    """Registers a broker with the name server of its process, and with others over the wire."""

    def __init__(
        self,
        config: BrokerConfig,
        address: str,
        topics: Callable[[Iterable[TopicConfig] | None], TopicConfigTable],
        name_server: NameServer | None,
    ) -> None:
        self._config = config
        self._address = address
        self._topics = topics
        self._name_server = name_server
        self._client = Client(on_closed=self._disconnected)
        self._absent: set[str] = set()  # name servers that do not know all
        self._remarks: dict[str, str] = {}  # what they have said last
        self._again = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._news: dict[str, TopicConfig] | None = None  # None: there may be less than before
        self._scheduled = False
        self._routes: dict[str, tuple[float, TopicRouteData]] = {}

    async def start(self) -> None:
        """Register everywhere; a name server that cannot be reached is tried again later."""
        self._register_here()
        if self._config.name_servers:
            await self._register_all()
            self._task = asyncio.get_running_loop().create_task(self._run())

    def changed(self, topics: Iterable[TopicConfig] | None = None) -> None:
        """These topics have changed, None for any: who asks for a route now has to find them."""
        self._again.set()
        if self._name_server is None:
            return
        if not self._scheduled:
            self._scheduled = True
            self._news = {}
            asyncio.get_running_loop().call_soon(self._register_here)
        if topics is None:
            self._news = None
        elif self._news is not None:
            self._news.update((topic.topic_name, topic) for topic in topics)

    async def route(self, topic: str) -> TopicRouteData | None:
        """Where the queues of a topic are, on all brokers; None if nobody knows."""
        now = asyncio.get_running_loop().time()
        known = self._routes.get(topic)
        if known is not None and now - known[0] < ROUTE_S:
            return known[1]
        # Others may know brokers that are not registered here.
        route = await self._ask_route(topic)
        if route is None:
            return self._name_server.routes.route(topic) if self._name_server is not None else None
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        self._routes[topic] = (now, route)
        return route

    async def _ask_route(self, topic: str) -> TopicRouteData | None:
        header = TopicHeader(topic, True)
        for address in self._config.name_servers:
            command = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, header.encode())
            try:
                answer = await self._client.ask(address, command)
                return TopicRouteData.decode(answer.content)
            except (OSError, TimeoutError, FiretrailError) as error:
                _log.info("route of %s from name server %s: %s", topic, address, error)
        return None

    async def stop(self) -> None:
        """Take leave."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self._tell_all(RequestCode.UNREGISTER_BROKER, b"")
        if self._name_server is not None:
            self._name_server.unregister_local(
                name=self._config.name, address=self._address, broker_id=self._config.broker_id
            )
        await self._client.close()

    def _register_here(self) -> None:
        self._scheduled = False
        if self._name_server is not None:
            self._name_server.register_local(
                cluster=self._config.cluster,
                name=self._config.name,
                address=self._address,
                topics=self._topics(self._news.values() if self._news is not None else None),
                broker_id=self._config.broker_id,
                complete=self._news is None,
            )

    def _disconnected(self, address: str) -> None:
        """A name server is gone; if it starts again, it knows nothing."""
        self._absent.add(address)

    async def _run(self) -> None:
        due = self._in_time()
        while True:
            now = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(min(max(due - now, 0), RETRY_S)):
                    await self._again.wait()
            except TimeoutError:
                pass
            changed = self._again.is_set()
            self._again.clear()
            if changed or asyncio.get_running_loop().time() >= due:
                due = self._in_time()
                await asyncio.sleep(REST * await self._register_all())
            elif self._absent:
                await asyncio.sleep(REST * await self._register_all(self._absent))

    def _in_time(self) -> float:
        return asyncio.get_running_loop().time() + self._config.register_interval_ms / 1000

    async def _register_all(self, addresses: Iterable[str] | None = None) -> float:
        """Tell all topics; the seconds it took to write them down.

        What an absent name server makes the others wait for does not count.
        """
        began = time.monotonic()
        content = RegisterBrokerBody(self._topics(None))
        body = await asyncio.to_thread(encode_registration, content)
        took = time.monotonic() - began
        await self._tell_all(RequestCode.REGISTER_BROKER, body, addresses)
        return took

    async def _tell_all(
        self, code: RequestCode, body: bytes, addresses: Iterable[str] | None = None
    ) -> None:
        header = RegisterBrokerHeader(
            self._config.name,
            self._address,
            self._config.cluster,
            self._config.broker_id,
            ha_server_addr=self._address,
            body_crc32=checksum(body),
        )
        await asyncio.gather(
            *(
                self._tell(address, Command(code, header.encode(), body))
                for address in list(self._config.name_servers if addresses is None else addresses)
            )
        )

    async def _tell(self, address: str, command: Command) -> None:
        try:
            answer = await self._client.ask(address, command)
            self._absent.discard(address)
            remark = answer.remark or ""
        except (OSError, TimeoutError, FiretrailError) as error:
            self._absent.add(address)
            remark = str(error).removeprefix(f"{address}: ") or type(error).__name__
        if remark != self._remarks.get(address, ""):  # once, though it is tried every second
            self._remarks[address] = remark
            _log.warning("name server %s: %s", address, remark or "it knows this broker again")
