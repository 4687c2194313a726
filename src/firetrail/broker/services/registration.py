"""Registration of the broker and its topics with name servers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.services.registered_masters import RegisteredMaster, RegisteredMasters
from firetrail.broker.services.route_info import TopicRouteInfoManager
from firetrail.errors import FiretrailError
from firetrail.namesrv.server import NameServer
from firetrail.pace.periodic import repeat, woken
from firetrail.remoting.connections.access import Access
from firetrail.remoting.connections.remoting_client import REQUEST_S, RemotingClient
from firetrail.remoting.messages.bodies import (
    ClusterInfo,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
)
from firetrail.remoting.messages.headers import RegisterBrokerHeader, RegisterBrokerResponse
from firetrail.remoting.messages.registration_body import checksum, encode_registration
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.settings.settings_table import Live

PAUSE_FACTOR = 10
"""The pause after a registration, as a multiple of the time that encoding all topics took."""
REGISTER_S = 1.0
"""The time that the broker waits for the registration of new topics before it answers their
creator."""
RETRY_S = 1.0
"""Pause before the next attempt to reach a name server that was not reached or has left."""

_HERE = ""
"""The name server of this process, among the addresses of others."""

_log = logging.getLogger(__name__)


class RegistrationService:
    """Registers a broker with the name server of its process, and with others over the wire.

    A slave learns its master from name servers.

    Attributes:
        masters: The masters that name servers name.
        routes: The routes of topics that name servers know.
        on_answer: Called for every answer of a name server with the highest state version that it
            has seen from a master of the name; 0 if it does not report one.
        newest_epoch: The highest of these state versions.
        permit: Called with name servers before the broker registers with them; returns whether it
            may. A former master must not: name servers of RocketMQ 4.x route to the broker that
            registered last.
        is_withheld: Whether the broker is not registered and only looks for its master, because its
            log is not known to be that of the master. Set it before :meth:`start`; :meth:`withhold`
            and :meth:`release` change it later.
    """

    def __init__(
        self,
        config: Live[BrokerConfig],
        address: str,
        topics: Callable[[Iterable[TopicConfig] | None], TopicConfigTable],
        name_server: NameServer | None,
        epoch: Callable[[], int] = lambda: 0,
        access: Access | None = None,
    ) -> None:
        """Prepare to register.

        Args:
            config: Settings of the broker.
            address: ``ip:port`` that clients connect to.
            topics: Returns some topics with their settings, or all.
            name_server: The name server of this process, if there is one.
            epoch: Returns the number of the broker's epoch; 0 if it has none. Of two masters with
                one name, name servers prefer the one with the larger number. Default: none.
            access: Credentials and TLS. Default: those in the environment.
        """
        self._live = config
        self._epoch = epoch
        self._address = address
        self._topics = topics
        self._name_server = name_server
        self._client = RemotingClient(on_closed=self._disconnected, access=access)
        self._absent: set[str] = set()  # name servers that may not know all topics
        self._due = 0.0  # when all topics are registered next, by the clock of the event loop
        self._remarks: dict[str, str] = {}  # their last remarks
        self._has_changes = asyncio.Event()  # all topics have to be registered
        self._is_complete = asyncio.Event()  # all topics are registered
        self._new: dict[str, TopicConfig] = {}  # topics that are registered alone
        self._new_registered: asyncio.Future[None] | None = None
        self._new_task: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._changes: dict[str, TopicConfig] | None = None  # None: topics may be missing
        self._scheduled = False
        self.routes = TopicRouteInfoManager(config, self._client, name_server)
        self.masters = RegisteredMasters(config, address)
        self.on_answer: Callable[[int], None] = lambda version: None
        self.newest_epoch = 0
        self._is_permitted = True
        self.is_withheld = False
        self.permit: Callable[[list[str]], Awaitable[bool]] = _always

    async def start(self) -> None:
        """Register with all name servers; retry later with those that cannot be reached."""
        self._register_here()
        if self._live.current.name_servers:
            await self._register_all()
            self._is_complete.set()
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def withhold(self) -> None:
        """Unregister at once, and only look for the master from now on."""
        if self.is_withheld:
            return
        self.is_withheld = True
        self._unregister_here()
        if self._task is not None:
            await self._send_to_all(RequestCode.UNREGISTER_BROKER, b"")

    async def release(self) -> None:
        """Register if that was withheld; return when all name servers that answer know it."""
        if not self.is_withheld:
            return
        self.is_withheld = False
        self._changes = None
        self._register_here()
        if self._task is not None:
            await self._register_all()

    def changed(self, topics: Iterable[TopicConfig] | None = None) -> None:
        """Register changed topics soon, so that their routes can be found.

        ``topics`` is None if any topic may have changed or was deleted.
        """
        if self._task is not None:
            self._register_later(topics)
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

    def _register_later(self, topics: Iterable[TopicConfig] | None) -> None:
        if topics is None:
            self._new.clear()  # the registration of all topics includes those that still exist
            self._is_complete.clear()
            self._has_changes.set()
            return
        loop = asyncio.get_running_loop()
        self._new.update((topic.topic_name, topic) for topic in topics)
        self._new_registered = self._new_registered or loop.create_future()
        if self._new_task is None or self._new_task.done():
            self._new_task = loop.create_task(self._register_new())

    def pending(self) -> asyncio.Future[None] | None:
        """Return the registration of the topics that changed last; None if it is complete or in
        progress.

        Call this right after the change, and wait with :func:`wait_for_registration`.
        """
        return self._new_registered

    def look_for_master(self, *, ask: bool = True) -> None:
        """Look for the master again; with ``ask``, also at name servers of other processes."""
        self._look_here()
        if ask and self._task is not None:
            self._has_changes.set()

    def _look_here(self) -> None:
        if self._name_server is not None:
            found = self._name_server.routes.master_of(self._live.current.name)
            self.masters.note(_HERE, RegisteredMaster(*found) if found is not None else None)

    async def members(self) -> set[str]:
        """Return the addresses of all brokers with the name of this one that name servers know."""
        config = self._live.current
        here = self._name_server.routes.broker(config.name) if self._name_server else None
        found = set(here.broker_addrs.values()) if here is not None else set()
        for address in config.name_servers:
            command = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
            try:
                answer = await self._client.ask(address, command)
                data = ClusterInfo.decode(answer.content).broker_addr_table.get(config.name)
                found |= set(data.broker_addrs.values()) if data is not None else set()
            except (OSError, TimeoutError, FiretrailError) as error:
                _log.info("name server %s did not list the brokers: %s", address, error)
        return found

    async def stop(self) -> None:
        """Unregister from all name servers."""
        tasks = [task for task in (self._task, self._new_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        _resolve(self._new_registered)
        if self._task is not None:
            self._task = None
            if not self.is_withheld:  # otherwise another broker may be registered with this id
                await self._send_to_all(RequestCode.UNREGISTER_BROKER, b"")
        self._unregister_here()
        await self._client.close()

    def _unregister_here(self) -> None:
        if self._name_server is not None:
            self._name_server.unregister_local(
                name=self._live.current.name,
                address=self._address,
                broker_id=self._live.current.broker_id,
            )

    def _register_here(self) -> None:
        self._scheduled = False
        if self._name_server is not None and self.is_withheld:
            self._look_here()
        elif self._name_server is not None:
            self._name_server.register_local(
                cluster=self._live.current.cluster,
                name=self._live.current.name,
                address=self._address,
                topics=self._offered(self._changes.values() if self._changes is not None else None),
                broker_id=self._live.current.broker_id,
                ha_address=self._live.current.ha_address,
                complete=self._changes is None,
            )
            self._look_here()
            self._answered(self._name_server.routes.state_version(self._live.current.name))

    def _answered(self, state_version: int) -> None:
        self.newest_epoch = max(self.newest_epoch, state_version)
        self.on_answer(state_version)

    def _offered(self, topics: Iterable[TopicConfig] | None) -> TopicConfigTable:
        """Return topics with the number of the epoch in their version."""
        table, epoch = self._topics(topics), self._epoch()
        if not epoch:
            return table
        return replace(table, data_version=replace(table.data_version, state_version=epoch))

    def _disconnected(self, address: str) -> None:
        """Note that a name server has left; it knows nothing when it starts again."""
        self._absent.add(address)

    async def _run(self) -> None:
        self._due = self._next_due()
        await repeat(self._round, "the topics cannot be registered; will retry", _log)

    async def _round(self) -> float:
        """Wait until a registration is due, and send it; return how long to rest after it."""
        now = asyncio.get_running_loop().time
        changed = await woken(self._has_changes, min(max(self._due - now(), 0), RETRY_S))
        if changed or now() >= self._due:
            self._due = self._next_due()
            took = await self._register_all()
            if not self._has_changes.is_set():
                self._is_complete.set()
            return PAUSE_FACTOR * took
        return PAUSE_FACTOR * await self._register_all(self._absent) if self._absent else 0.0

    async def _register_new(self) -> None:
        """Register new and changed topics, all those together that wait at the same time.

        A name server ignores the topics of a registration whose version it already has, and this
        registration has the newest version. So it waits until a registration of all topics that is
        due has been sent, and a name server that misses it gets all topics next.
        """
        while self._new_registered is not None:
            await self._is_complete.wait()
            topics, self._new = self._new, {}
            registered, self._new_registered = self._new_registered, None
            try:
                if not topics:
                    continue
                body = encode_registration(RegisterBrokerBody(self._offered(topics.values())))
                present = [a for a in self._live.current.name_servers if a not in self._absent]
                if not self._is_permitted or self.is_withheld:
                    continue
                await self._send_to_all(RequestCode.REGISTER_BROKER, body, present, REGISTER_S)
            finally:
                _resolve(registered)
            if not self._absent.isdisjoint(present):
                self._register_later(None)

    def _next_due(self) -> float:
        return asyncio.get_running_loop().time() + self._live.current.register_interval_ms / 1000

    async def _register_all(self, addresses: Iterable[str] | None = None) -> float:
        """Register all topics; return how many seconds encoding them took.

        The time spent waiting for an absent name server is not included.
        """
        asked = list(self._live.current.name_servers if addresses is None else addresses)
        if self.is_withheld:
            await asyncio.gather(*(self._ask_for_master(address) for address in asked))
            return 0.0
        self._is_permitted = await self.permit(asked)
        if not self._is_permitted:
            return 0.0
        now = asyncio.get_running_loop().time
        began = now()
        content = RegisterBrokerBody(self._offered(None))
        body = await asyncio.to_thread(encode_registration, content)
        took = now() - began
        if not self.is_withheld:  # meanwhile
            await self._send_to_all(RequestCode.REGISTER_BROKER, body, asked)
        return took

    async def _ask_for_master(self, address: str) -> None:
        """Ask a name server for the master without registering.

        If the name server still lists this broker, for example after a crash, it is unregistered.
        """
        name, listed = self._live.current.name, []
        try:
            command = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
            clusters = ClusterInfo.decode((await self._client.ask(address, command)).content)
        except (OSError, FiretrailError) as error:
            self._note_failure(address, error)
            return
        self._absent.discard(address)
        self._note_remark(address, "", "it answers again")
        known = clusters.broker_addr_table.get(name)
        master = known.master if known is not None else None
        found = RegisteredMaster(master, "") if master is not None else None
        if known is not None and self.is_withheld:
            listed = [key for key, each in known.broker_addrs.items() if each == self._address]
        for broker_id in listed:
            header = replace(self._header(b""), broker_id=int(broker_id))
            command = RemotingCommand(RequestCode.UNREGISTER_BROKER, header.encode())
            await self._send(address, command, REQUEST_S)
        self.masters.note(address, found)

    def _header(self, body: bytes) -> RegisterBrokerHeader:
        config = self._live.current
        return RegisterBrokerHeader(
            config.name,
            self._address,
            config.cluster,
            config.broker_id,
            ha_server_addr=config.ha_address,
            body_crc32=checksum(body),
        )

    async def _send_to_all(
        self,
        code: RequestCode,
        body: bytes,
        addresses: Iterable[str] | None = None,
        timeout_s: float = REQUEST_S,
    ) -> None:
        config, header = self._live.current, self._header(body)
        await asyncio.gather(
            *(
                self._send(address, RemotingCommand(code, header.encode(), body), timeout_s)
                for address in list(config.name_servers if addresses is None else addresses)
            )
        )

    async def _send(self, address: str, command: RemotingCommand, timeout_s: float) -> None:
        try:
            answer = await self._client.ask(address, command, timeout_s)
            self._absent.discard(address)
            remark = answer.remark or ""
            if command.code == RequestCode.REGISTER_BROKER:
                found = RegisterBrokerResponse.decode(answer.fields)
                self.masters.note(
                    address,
                    RegisteredMaster(found.master_addr, found.ha_server_addr or "")
                    if found.master_addr
                    else None,
                )
                self._answered(found.state_version or 0)
        except (OSError, TimeoutError, FiretrailError) as error:
            self._note_failure(address, error)
            return
        self._note_remark(address, remark, "the broker is registered again")

    def _note_failure(self, address: str, error: Exception) -> None:
        self._absent.add(address)
        self.masters.note(address, None)
        self._note_remark(address, str(error).removeprefix(f"{address}: ") or type(error).__name__)

    def _note_remark(self, address: str, remark: str, without: str = "") -> None:
        """Log the remark of a name server once, not with every retry; ``without`` is its end."""
        if remark != self._remarks.get(address, ""):
            self._remarks[address] = remark
            if remark:
                _log.warning("name server %s: %s", address, remark)
            else:
                _log.info("name server %s: %s", address, without)


async def _always(name_servers: list[str]) -> bool:
    return True


def _resolve(registered: asyncio.Future[None] | None) -> None:
    if registered is not None and not registered.done():
        registered.set_result(None)


async def wait_for_registration(pending: asyncio.Future[None] | None) -> None:
    """Wait until topics are registered with all name servers that answer within ``REGISTER_S``."""
    if pending is not None:
        await asyncio.wait([pending], timeout=REGISTER_S)
