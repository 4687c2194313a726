"""The routes that a session has requested, and the brokers in them."""

import math
from collections.abc import Sequence

from firetrail.errors import NoMasterYetError, NoRouteYetError, NoSuchError
from firetrail.remoting.messages.bodies import MASTER_ID, BrokerData, TopicRouteData
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.text import some_of

ROUTE_S = 30.0
"""The time for which a route is considered current."""
ROUTE_RETRY_S = 1.0
"""The time for which a route is used that may be outdated, before the name servers are asked
again."""


class KnownRoutes:
    """Routes by topic, each with the time at which it was requested.

    The routes of two topics can contradict each other: one was requested before a replica became
    the master, the other afterwards. The route that was added last is right about the addresses
    of a broker, because the other topic may never be used again.
    """

    def __init__(self) -> None:
        # In the order in which they were added; the newest is the last.
        self._routes: dict[str, tuple[float, TopicRouteData]] = {}
        self._brokers: set[str] = set()  # all names that were in routes; no more than a cluster has

    def last(self, topic: str) -> TopicRouteData | None:
        """Return the last known route of a topic; None if it has had none."""
        known = self._routes.get(topic)
        return known[1] if known is not None else None

    def current(self, topic: str, now: float) -> TopicRouteData | None:
        """Return the route of a topic; None if it has to be requested."""
        known = self._routes.get(topic)
        return known[1] if known is not None and now - known[0] < ROUTE_S else None

    def add(self, topic: str, route: TopicRouteData, now: float) -> None:
        """Add a route that was requested now."""
        self._routes.pop(topic, None)
        self._routes[topic] = (now, route)
        self._brokers.update(data.broker_name for data in route.broker_datas)

    def keep(self, topic: str, now: float) -> None:
        """Use the last known route of a topic a little longer."""
        self._routes[topic] = (now - ROUTE_S + ROUTE_RETRY_S, self._routes[topic][1])

    def forget(self, topic: str) -> None:
        """Request the route of a topic when it is needed next; addresses stay known."""
        if topic in self._routes:
            self._routes[topic] = (-math.inf, self._routes[topic][1])

    def suspect(self, address: str, now: float) -> None:
        """Request the routes with this address again soon: its broker may have another role."""
        due = now - ROUTE_S + ROUTE_RETRY_S
        for topic, (at, route) in self._routes.items():
            if at > due and any(address in data.broker_addrs.values() for data in _found(route)):
                self._routes[topic] = (due, route)

    def address_of(self, broker_name: str, broker_id: int = MASTER_ID) -> str:
        """Return the address of a broker in a route.

        If no broker of that name has the id, return the address of its master, or of a replica
        while the master is down.

        Raises:
            NoRouteYetError: The broker was in a route, but is not registered at the moment.
            NoSuchError: No route has contained the broker.
        """
        data = self._data_of(broker_name)
        assert data.first is not None
        return data.broker_addrs.get(broker_id, data.first)

    def master_of(self, broker_name: str) -> str:
        """Return the address of a master in a route.

        Raises:
            NoMasterYetError: Only replicas of the broker are registered at the moment.
            NoRouteYetError, NoSuchError: As in :meth:`address_of`.
        """
        data = self._data_of(broker_name)
        if data.master is None:
            raise NoMasterYetError(ResponseCode.TOPIC_NOT_EXIST, no_master([broker_name]))
        return data.master

    def coordinators(self) -> set[str]:
        """Return the address of one broker per name.

        The members of a group register there, so that the queues can be distributed over them. It
        is the master, or a replica while the master is down.
        """
        newest = {
            data.broker_name: data.first
            for _, route in self._routes.values()
            for data in _found(route)
        }
        return {address for address in newest.values() if address is not None}

    def _data_of(self, broker_name: str) -> BrokerData:
        for _, route in reversed(self._routes.values()):
            for data in _found(route):
                if data.broker_name == broker_name:
                    return data
        if broker_name in self._brokers:
            raise NoRouteYetError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"the broker {broker_name} is not registered at the name servers at the moment; if "
                "it is restarting, retry in a few seconds",
            )
        raise NoSuchError(f"no topic of this client is on a broker {broker_name}; check its name")


def _found(route: TopicRouteData) -> list[BrokerData]:
    return [data for data in route.broker_datas if data.broker_addrs]


def no_master(brokers: Sequence[str]) -> str:
    """Return the reason why nothing can be sent to brokers that have only replicas."""
    return (
        f"no master is registered for {some_of(brokers)}, only replicas: it is down or being "
        "replaced; retry later, or promote a replica with 'firetrail replica promote'"
    )
