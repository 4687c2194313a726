"""The brokers of a cluster, over the remoting protocol: one client for all gRPC clients.

Brokers know the proxy, not its clients: the proxy registers the topics that its clients publish to
as producer groups, and passes questions about transactions on to one of these clients.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from firetrail.access.implied_permissions import SUB, no_record, require_consumed
from firetrail.auth.caller import Caller
from firetrail.broker.pop.ack_processor import PopAck
from firetrail.client.cluster.session import LONG_POLL_MARGIN_S, Session
from firetrail.errors import FiretrailError, NoSuchError, ProxyError, RequestError
from firetrail.format.properties import PGROUP
from firetrail.proxy.conversion.delivered_messages import records_in
from firetrail.proxy.schema.messages import Code
from firetrail.proxy.upstream.grpc_clients import ProxyClient
from firetrail.proxy.upstream.interface import ClientCommands, ignored
from firetrail.remoting.connections.access import Access
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.connections.remoting_client import REQUEST_S
from firetrail.remoting.messages.admin.admin_headers import GroupNameHeader
from firetrail.remoting.messages.bodies import (
    HeartbeatData,
    ProducerData,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicRouteData,
)
from firetrail.remoting.messages.headers import (
    SendBackHeader,
    TopicHeader,
    UnregisterClientHeader,
    ViewMessageHeader,
)
from firetrail.remoting.messages.pop.pop_headers import AckHeader
from firetrail.remoting.messages.requests import AWAITING
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

KNOWN_S = 20.0
"""Settings of topics and groups are requested again after this time, as by RocketMQ's proxy."""
ABSENT_S = 5.0
"""A broker is asked again after this time whether a group exists. Every receive, assignment and
settings of a client needs the settings of its group, and a new group should take effect soon."""
KNOWN_MAX = 10_000
"""Maximum number of topics, and of groups, whose settings are kept."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


class CachedAnswer(NamedTuple, Generic[T]):
    """An answer of brokers about a name, and until when it is valid."""

    value: T | None
    """The settings; None if they do not exist."""
    until: float


class KnownSettings(Generic[T]):
    """Settings by name, each for a while; also that there are none."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._known: dict[str, CachedAnswer[T]] = {}

    def get(self, name: str) -> CachedAnswer[T] | None:
        """Return the known answer about a name; None if there is none, or if it is too old."""
        known = self._known.get(name)
        return known if known is not None and self._now() < known.until else None

    def add(self, name: str, value: T | None) -> None:
        """Keep settings, or that there are none; if there are too many, all others are dropped."""
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        lasts_s = ABSENT_S if value is None else KNOWN_S
        self._known[name] = CachedAnswer(value, self._now() + lasts_s)


class ClusterBrokers:
    """All brokers that name servers know.

    A message that was popped for a client that is gone becomes visible after its invisible time: a
    request to another process cannot be withdrawn.

    Attributes:
        on_command: Receives the requests of brokers to clients.
    """

    reserved: Sequence[str] = ()

    def __init__(self, namesrv: str | Sequence[str], access: Access | None = None) -> None:
        """Prepare; :meth:`open` connects.

        Args:
            namesrv: The addresses ``host:port`` of the name servers.
            access: Credentials and TLS for all requests. Default: those in the environment.
        """
        handlers: Mapping[int, Handler] = {RequestCode.CHECK_TRANSACTION_STATE: self._check}
        self._session = Session(namesrv, handlers, "Proxy", access)
        now = asyncio.get_running_loop().time
        self._topics = KnownSettings[TopicConfig](now)
        self._groups = KnownSettings[SubscriptionGroupConfig](now)
        self._producers: dict[str, dict[ProxyClient, None]] = {}  # by topic
        self._published: dict[ProxyClient, frozenset[str]] = {}
        self.on_command: ClientCommands = ignored

    async def open(self) -> None:
        """Connect to a name server, and begin to send heartbeats.

        Raises:
            NotReachedError: No name server answers.
        """
        await self._session.open()
        self._session.beat(self._heartbeat, everywhere=True)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    # -- what a proxy asks --------------------------------------------------------------------

    def route(self, topic: str) -> Awaitable[TopicRouteData]:
        """Return the route of a topic."""
        return self._session.route(topic)

    async def topic(self, topic: str) -> TopicConfig | None:
        """Return the settings of a topic with its attributes, None if it does not exist."""
        known = self._topics.get(topic)
        if known is not None:
            return known.value
        try:
            route = await self._session.route(topic)
        except RequestError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            raise
        header = TopicHeader(topic)
        for address in _masters(route):
            code = RequestCode.GET_TOPIC_CONFIG
            answer = await self._session.ask(address, code, header)
            found = TopicConfig.decode(answer.content)
            self._topics.add(topic, found)
            return found
        return None

    async def group(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the settings of a consumer group, None if it does not exist."""
        known = self._groups.get(group)
        if known is not None:
            return known.value
        header = GroupNameHeader(group)
        for address in (await self._session.brokers()).values():
            try:
                code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
                answer = await self._session.ask(address, code, header)
            except RequestError as error:
                if error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                    continue
                raise
            found = SubscriptionGroupConfig.decode(answer.content)
            self._groups.add(group, found)
            return found
        self._groups.add(group, None)
        return None

    async def request(
        self, client: ProxyClient, broker: str, command: RemotingCommand
    ) -> RemotingCommand:
        """Ask the broker of a name, and return its response, with any code."""
        command.language = client.language
        command.fields = dict(command.fields)
        field = AWAITING.get(command.code)
        timeout_s = REQUEST_S
        if field is not None:
            timeout_s = int(command.fields.get(field, "0")) / 1000 + LONG_POLL_MARGIN_S
        address = await self._address(broker)
        caller = command.caller or client.caller
        if command.code == RequestCode.CONSUMER_SEND_MSG_BACK and caller is not None:
            await self._check_record(caller, address, command)
        return await self._session.pass_on(address, command, timeout_s)

    async def _check_record(self, caller: Caller, address: str, command: RemotingCommand) -> None:
        """Raise RequestError unless the caller may consume the record that a request names.

        A receipt names it by its place in the log, and clients can make up receipts. The broker
        only knows the user of the proxy.
        """
        header = SendBackHeader.decode(command.fields)
        view = ViewMessageHeader(header.offset)
        try:
            answer = await self._session.ask(address, RequestCode.VIEW_MESSAGE_BY_ID, view)
        except RequestError as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise
            raise no_record(caller, error.remark, SUB) from None
        record = next(records_in(answer.body), None)
        if record is None:
            raise no_record(caller, "the topic of the message cannot be checked", SUB)
        require_consumed(caller, record, header.group)

    def withdraw(self, answer: asyncio.Future[RemotingCommand]) -> bool:
        """Return False: a broker in another process cannot be notified."""
        return False

    def acknowledge(
        self, client: ProxyClient, broker: str, acks: Sequence[PopAck]
    ) -> Sequence[Awaitable[RemotingCommand]]:
        """Acknowledge messages one by one: a broker answers a batch without outcomes of each."""
        return [self.request(client, broker, _ack_command(ack)) for ack in acks]

    async def _address(self, broker: str) -> str:
        """Return the address of a master; receipts may name one whose topics are not known yet."""
        try:
            return self._session.master_of(broker)
        except (RequestError, NoSuchError):
            address = (await self._session.brokers()).get(broker)
            if address is None:
                raise ProxyError(
                    Code.BAD_REQUEST, f"no broker {broker!r:.80} is registered as a master"
                ) from None
            return address

    # -- clients ------------------------------------------------------------------------------

    def heartbeat(self, client: ProxyClient) -> Awaitable[None] | None:
        """Note the producer groups of a client; brokers get new ones at once."""
        before, wanted = self._published.get(client, frozenset()), frozenset(client.published)
        if wanted == before:
            return None
        self._published[client] = wanted
        new = {topic for topic in wanted if topic not in self._producers}
        for topic in wanted - before:
            self._producers.setdefault(topic, {})[client] = None
        self._drop(client, before - wanted)
        return self._session.beat_now() if new else None

    def left(self, client: ProxyClient) -> None:
        """Forget a client, and unregister the groups that had no other."""
        self._drop(client, self._published.pop(client, frozenset()))

    def _drop(self, client: ProxyClient, topics: Iterable[str]) -> None:
        for topic in topics:
            others = self._producers[topic]
            del others[client]
            if not others:
                del self._producers[topic]
                self._session.spawn(self._unregister(topic))

    async def _unregister(self, topic: str) -> None:
        header = UnregisterClientHeader(self._session.client_id, producer_group=topic)
        try:
            for address in (await self._session.brokers()).values():
                await self._session.ask(address, RequestCode.UNREGISTER_CLIENT, header)
        except (FiretrailError, OSError) as error:
            _log.info("the producers of %s could not be unregistered: %s", topic, error)

    def release(self) -> None:
        """Do nothing: requests to other processes are answered when their time is over."""

    def _heartbeat(self) -> HeartbeatData:
        groups = [ProducerData(topic) for topic in sorted(self._producers)]
        return HeartbeatData(self._session.client_id, groups)

    # -- requests of brokers ------------------------------------------------------------------

    async def _check(self, connection: Connection, request: RemotingCommand) -> None:
        """Pass the question for the outcome of a transaction on to one of its producers."""
        record = next(records_in(request.body), None)
        group = record.properties.get(PGROUP, record.topic) if record is not None else ""
        broker = await self._session.master_at(connection)
        client = self._reachable_producer(group)
        if client is None or broker is None:
            _log.info("no client of this proxy can be asked about a transaction of %s", group)
        else:
            self.on_command(client, broker, request)

    def _reachable_producer(self, topic: str) -> ProxyClient | None:
        """Return a client that publishes to a topic and has a stream; another one next time."""
        clients = self._producers.get(topic, {})
        for client in clients:
            if any(stream.is_open for stream in client.streams):
                clients[client] = clients.pop(client)
                return client
        return None


def _ack_command(ack: PopAck) -> RemotingCommand:
    receipt = ack.receipt
    header = AckHeader(ack.group, ack.topic, receipt.queue_id, receipt.encode(), receipt.offset)
    return RemotingCommand(RequestCode.ACK_MESSAGE, header.encode())


def _masters(route: TopicRouteData) -> Iterator[str]:
    return (data.master for data in route.broker_datas if data.master is not None)
