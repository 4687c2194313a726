"""The name servers of a cluster, and what they know: brokers and the routes of topics."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from firetrail.client.cluster.known_routes import no_master
from firetrail.errors import (
    NoMasterYetError,
    NoRouteYetError,
    NoSuchError,
    NotReachedError,
    RequestError,
    TlsError,
)
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.remoting_client import resolved_addresses
from firetrail.remoting.messages.bodies import ClusterInfo, TopicRouteData
from firetrail.remoting.messages.headers import TopicHeader
from firetrail.remoting.messages.typed_header import Header
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import Payload, RemotingCommand


class RequestSender(Protocol):
    """Sends a request to an address, as :meth:`Session.ask` does."""

    async def __call__(
        self, address: str, code: int, header: Header | None = None, body: Payload = b""
    ) -> RemotingCommand:
        """Return the response; raise RequestError if it is not a success."""


class NameServers:
    """Name servers that know the same cluster. One is asked, until it cannot be reached.

    Attributes:
        addresses: Their addresses as ``host:port``. The first one is asked next.
    """

    def __init__(self, addresses: list[str], ask: RequestSender) -> None:
        """Initialize.

        Args:
            addresses: The addresses; at least one.
            ask: Sends the requests.
        """
        self.addresses = addresses
        self._ask = ask

    async def reach(self, connect: Callable[[str], Awaitable[Connection]]) -> Connection:
        """Return a connection to the first name server that can be reached.

        Raises:
            NotReachedError: None can be reached; TlsError if TLS is the reason for each.
        """
        failures: list[OSError] = []
        for _ in range(len(self.addresses)):
            try:
                return await connect(self.addresses[0])
            except OSError as error:
                failures.append(error)
                self._skip()
        kind = NotReachedError
        if all(isinstance(error, TlsError) for error in failures):
            kind = TlsError
        raise kind(f"no name server answers; check namesrv: {'; '.join(map(str, failures))}")

    async def ask(
        self, code: int, header: Header | None = None, body: Payload = b""
    ) -> RemotingCommand:
        """Return the response of the first name server that answers."""
        for attempt in range(len(self.addresses)):
            try:
                return await self._ask(self.addresses[0], code, header, body)
            except OSError:
                if attempt == len(self.addresses) - 1:
                    raise
                self._skip()
            except RequestError as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
                what = f"{error.remark}; is namesrv the address of a name server, not of a broker?"
                raise RequestError(error.code, what) from None
        raise AssertionError("there is at least one name server")

    def _skip(self) -> None:
        self.addresses.append(self.addresses.pop(0))

    async def route(self, topic: str) -> TopicRouteData:
        """Return the route of a topic.

        Raises:
            NoMasterYetError: There is none, and no broker is a master at the moment.
            NoRouteYetError: There is none, and no broker is registered at the moment.
            RequestError: There is none (TOPIC_NOT_EXIST).
        """
        try:
            code, header = RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicHeader(topic, True)
            return TopicRouteData.decode((await self.ask(code, header)).content)
        except RequestError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            found = (await self.clusters()).broker_addr_table
            if any(data.master for data in found.values()):
                raise
        what = f"no route to the topic {topic} yet"
        if found:
            what = f"{what}: {no_master(sorted(found))}"
            raise NoMasterYetError(ResponseCode.TOPIC_NOT_EXIST, what)
        raise NoRouteYetError(
            ResponseCode.TOPIC_NOT_EXIST,
            f"{what}: no broker has registered at the name server {self.addresses[0]}; if it "
            "has just started, retry in a few seconds",
        )

    async def clusters(self) -> ClusterInfo:
        """Return all clusters and brokers that the name server knows."""
        return ClusterInfo.decode((await self.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).content)

    async def masters(self) -> dict[str, str]:
        """Return the names and addresses of all masters that the name server knows."""
        brokers = (await self.clusters()).broker_addr_table
        return {name: data.master for name, data in brokers.items() if data.master}

    async def listed(self, address: str) -> str:
        """Return the address of the broker at ``ip:port``, which may be registered with its name.

        Raises:
            NoSuchError: The name server lists no such broker.
        """
        brokers = (await self.clusters()).broker_addr_table.values()
        known = sorted({each for data in brokers for each in data.broker_addrs.values()})
        if address in known:
            return address
        for each in known:
            if address in await resolved_addresses(each):
                return each
        what = "the name server lists no broker with this address"
        raise NoSuchError(f"{address}: {what}; is the id one of this cluster?")
