"""The routes of topics, as name servers know them: where the queues are, on all brokers."""

import asyncio
import logging

from firetrail.broker.broker_config import BrokerConfig
from firetrail.errors import FiretrailError
from firetrail.namesrv.server import NameServer
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import TopicRouteData
from firetrail.remoting.messages.headers import TopicHeader
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.settings.settings_table import Live

ROUTE_EXPIRY_S = 30.0
"""The time for which a route from another name server is considered current."""
ROUTES_MAX = 10_000
"""Maximum number of cached routes."""

_log = logging.getLogger(__name__)


class TopicRouteInfoManager:
    """Asks name servers for routes, and caches the answers."""

    def __init__(
        self, config: Live[BrokerConfig], client: RemotingClient, name_server: NameServer | None
    ) -> None:
        """Initialize.

        Args:
            config: Settings of the broker, which list the name servers of other processes.
            client: Sends the requests to them. The caller closes it.
            name_server: The name server of this process, if there is one.
        """
        self._live = config
        self._client = client
        self._name_server = name_server
        self._routes: dict[str, tuple[float, TopicRouteData]] = {}

    async def route(self, topic: str) -> TopicRouteData | None:
        """Return the queues of a topic on all brokers; None if no name server knows."""
        now = asyncio.get_running_loop().time()
        known = self._routes.get(topic)
        if known is not None and now - known[0] < ROUTE_EXPIRY_S:
            return known[1]
        # Other name servers may know brokers that are not registered here.
        route = await self._ask(topic)
        if route is None:
            return self._name_server.routes.route(topic) if self._name_server is not None else None
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        self._routes[topic] = (now, route)
        return route

    async def _ask(self, topic: str) -> TopicRouteData | None:
        header = TopicHeader(topic, True)
        for address in self._live.current.name_servers:
            command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, header.encode())
            try:
                answer = await self._client.ask(address, command)
                return TopicRouteData.decode(answer.content)
            except (OSError, TimeoutError, FiretrailError) as error:
                _log.info(
                    "name server %s did not return the route of topic %s: %s", address, topic, error
                )
        return None
