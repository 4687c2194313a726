"""The broker: its parts, the order in which they start, and the order in which they stop.

::

    async with Broker.running() as broker:
        ...  # clients connect to broker.namesrv
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Self

from firetrail.broker.admin.config_processor import take_file
from firetrail.broker.broker_access import BrokerAccess
from firetrail.broker.broker_conf_file import check_id
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.broker_parts import Environment, Parts, combined
from firetrail.broker.ports import (
    client_access_of,
    listen_for_vips,
    open_ha_port,
    reachable,
    tls_of,
)
from firetrail.broker.replica.epoch_fence import EpochFence
from firetrail.broker.replica.replica_service import ReplicaService
from firetrail.broker.replica.replicated_broker import newest_epoch
from firetrail.broker.roles.replicas_manager import ReplicasManager
from firetrail.broker.roles.term_changes import RoleChange, Terms
from firetrail.broker.services.clients import Clients
from firetrail.broker.state.group_table import GroupTable
from firetrail.broker.state.offset_table import OffsetTable
from firetrail.broker.state.slave_mark import SlaveMark
from firetrail.broker.state.topic_table import TopicTable
from firetrail.broker.term import Term, TermPlan
from firetrail.namesrv.name_server_config import NameServerConfig
from firetrail.namesrv.server import NameServer
from firetrail.remoting.connections.access import Access
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Answer, Handler
from firetrail.remoting.servers.client_limits import ServerLimits
from firetrail.remoting.servers.configured_limits import server_limits
from firetrail.remoting.servers.exposure import check_exposure
from firetrail.remoting.servers.remoting_server import RemotingServer
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.replication.group.group_status import GroupStatus
from firetrail.replication.log.epochs import EpochFile
from firetrail.replication.replica.master_check import MasterAddress
from firetrail.settings.file_changes import ConfEntries, FileChanges
from firetrail.settings.settings_table import Live
from firetrail.store.broker_store import BrokerStore
from firetrail.store.settings.store_config import BrokerRole, StoreConfig
from firetrail.store.store import Store
from firetrail.system import SYSTEM, System
from firetrail.tls.server_tls import ServerTls


class Broker:
    """A RocketMQ broker with its store and, on request, a name server in the same process.

    Attributes:
        config: The settings of the broker. Administrators can change some of them at run time.
        address: ``ip:port`` that clients connect to; empty before the start.
        namesrv: ``ip:port`` of the name server; empty before the start and without one.
        listens: Addresses that the broker listens on. Clients are sent to ``address``, which may
            be another one.
        namesrv_listens: Addresses that the name server listens on.
        tls: The TLS of its ports; None without any.
        client_access: Credentials and TLS of its own requests; None for those in the environment.
        epochs: The masters of the parts of the log, after the start.
        roles: The file that keeps a changed role over a restart.
        access: The permissions of users; the gRPC service asks it, too.
        insecure: Whether other machines may connect without access control.
        slave_mark: Tells whether the store was last a slave's, after the start.
    """

    epochs: EpochFile
    slave_mark: SlaveMark

    def __init__(
        self,
        folder: str | Path,
        config: BrokerConfig | None = None,
        store: StoreConfig | None = None,
        *,
        name_server: NameServerConfig | None = None,
        limits: ServerLimits | None = None,
        conf: Path | None = None,
        ignore_unsupported: Collection[str] = (),
        tls: ServerTls | None = None,
        client_access: Access | None = None,
        insecure: bool = False,
        ignore_users: bool = False,
        system: System | None = None,
    ) -> None:
        """Prepare a broker; :meth:`start` opens the store and listens.

        Args:
            folder: Folder of the store. A new store is created if there is none.
            config: Settings of the broker. Default: ``BrokerConfig()``.
            store: Settings of the store. Its ``store_host`` is the address that clients are sent
                to and the port to listen on; port 0 picks a free one. Default: ``StoreConfig()``.
            name_server: Settings of the name server to run in this process. Default: None, which
                runs no name server.
            limits: Limits on connections and waiting requests. Default: those in ``config``.
            conf: The file that the settings come from. Changes that administrators make at run time
                are written to it. Default: None; changes are lost when the broker stops.
            ignore_unsupported: Names of unsupported features of a Java broker's folder that do not
                keep the broker from starting (:mod:`firetrail.broker.unsupported`).
                Default: None.
            tls: The TLS of all ports, that of the name server included. Default: that in the
                settings.
            client_access: Credentials and TLS for requests to name servers and other brokers.
                Default: those in the settings, or in the environment.
            insecure: Whether the broker may listen beyond the loopback interface without access
                control. Default: False.
            ignore_users: Whether the broker may start without access control on a store that has
                users. Default: False.
            system: Files and clock to use; tests replace them. Default: those of the machine.

        Raises:
            ConfigError: The broker would be exposed without access control, the store has users
                although access control is switched off, the id does not fit the role, or a file of
                TLS cannot be used.
            StoreError: Access control is switched off, and the file with the users cannot be read.
        """
        self._folder = Path(folder)
        self._live = Live(config or BrokerConfig())
        check_id(self.config, store or StoreConfig())
        self._conf = conf
        self._ignored = ignore_unsupported
        self.system = system or SYSTEM
        self._store_config = store or StoreConfig()
        self._handlers: dict[int, Handler] = {}
        self._limits = limits or server_limits(self.config)
        self.tls = tls = tls if tls is not None else tls_of(self.config, self.system)
        self.client_access = client_access or client_access_of(self.config)
        self.address = ""
        self.access = BrokerAccess(
            self.config, self._folder, self.system, lambda: self.address, ignore_users=ignore_users
        )
        guard, audit = self.access.guard, self.access.audit
        check_exposure(self.config.bind, tls, guard, insecure=insecure)
        self.insecure = insecure
        self._server = RemotingServer(
            self._handlers,
            self.system,
            self._limits,
            guard=guard,
            tls=tls,
            audit=audit.answered if audit is not None else None,
        )
        self._server.on_closed = self.closed
        costly = self._server.costly
        self._name_server = (
            NameServer(name_server, self.system, guard, tls, insecure=insecure, costly=costly)
            if name_server is not None
            else None
        )
        role = self._store_config.role
        self._replicas = ReplicasManager(self, self.system, self._folder, role)
        self.roles = self._replicas.roles
        self._resources = AsyncExitStack()
        own_handlers = combined([self._replicas.handlers, self.access.handlers])
        self._terms = Terms(self._handlers, own_handlers, self._drain, self._server)
        self.namesrv = ""
        self.listens: Sequence[str] = ()
        self.namesrv_listens: Sequence[str] = ()

    @property
    def config(self) -> BrokerConfig:
        """The settings in force; an administrator can change some of them."""
        return self._live.current

    @classmethod
    @asynccontextmanager
    async def running(
        cls,
        folder: str | Path | None = None,
        config: BrokerConfig | None = None,
        store: StoreConfig | None = None,
        *,
        system: System | None = None,
    ) -> AsyncIterator[Self]:
        """Run a broker with a name server on free ports of the loopback interface, for tests.

        Args:
            folder: Folder of the store. Default: a temporary folder that is deleted afterwards.
            config: Settings of the broker. Default: ``BrokerConfig()``.
            store: Settings of the store. Its port is ignored. Default: ``StoreConfig()``.
            system: Files and clock to use; tests replace them. Default: those of the machine.

        Yields:
            The running broker. It stops at the end of the ``async with`` block.
        """
        with tempfile.TemporaryDirectory(prefix="firetrail-") as temporary:
            settings = store or StoreConfig()
            broker = cls(
                folder if folder is not None else temporary,
                config,
                settings.replace(store_host=settings.store_host._replace(port=0)),
                name_server=NameServerConfig(listen_port=0),
                system=system,
            )
            await broker.start()
            try:
                yield broker
            finally:
                await broker.stop()

    # -- start and stop -----------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store and serve it.

        If the start fails, everything that it has opened is closed again.

        Raises:
            AddressInUseError: A port is in use.
            OSError: An address cannot be bound, or a file cannot be read.
            StoreError: The store cannot be opened.
            UnsupportedError: The folder needs a feature of RocketMQ that Firetrail lacks.
        """
        async with self._terms.starting(), AsyncExitStack() as resources:
            asked = self._store_config.store_host
            port = await self._server.start(self.config.bind, asked.port)
            resources.push_async_callback(self.access.close)
            resources.push_async_callback(self._server.stop)
            # Nothing is awaited until all handlers exist, so no client finds a broker without them.
            host = asked._replace(port=port)
            self.address = str(host)
            self._ha_port, self._live.current = open_ha_port(self.system, self.config, asked)
            resources.push_async_callback(asyncio.to_thread, self._ha_port.close)
            self.epochs = EpochFile(self.system, self._folder)
            self.slave_mark = SlaveMark(self.system, self._folder)
            self._live.current, store = self._replicas.begin(self._store_config)
            resources.push_async_callback(self._replicas.leave)
            plan = TermPlan(
                self._environment(),
                store.replace(store_host=host),
                self._conf,
                self._ignored,
                known_epoch=self.roles.known_epoch,
            )
            if self._name_server is not None:
                resources.push_async_callback(self._name_server.stop)
            # Pushed a second time, so that the server stops first if the store cannot be opened.
            # What is stopped before it would let the event loop read requests without handlers.
            resources.push_async_callback(self._server.stop)
            self._terms.open(plan)
            resources.push_async_callback(self._terms.end)
            self._replicas.opened()
            self.access.open()
            resources.push_async_callback(self._replicas.stop)
            if self._name_server is not None:
                namesrv_port = await self._name_server.start()
                self.namesrv_listens = self._name_server.listens
                self.namesrv = reachable(
                    self.namesrv_listens, str(host._replace(port=namesrv_port))
                )
            await listen_for_vips(self._server, self.config, asked.port)
            self.listens = self._server.listens
            await self._term.start()
            self._resources = resources.pop_all()
            self._replicas.start()

    def _environment(self) -> Environment:
        return Environment(
            folder=self._folder,
            live=self._live,
            system=self.system,
            limits=self._limits,
            address=self.address,
            name_server=self._name_server,
            ha_port=self._ha_port,
            epochs=self.epochs,
            slave_mark=self.slave_mark,
            keeper=self._replicas.keeper,
            client_access=self.client_access,
            guard=self.access.guard,
            users=self.access.users,
            tls=self.tls,
        )

    async def stop(self) -> None:
        """Answer the requests received so far, save everything and close the store.

        Raises:
            OSError: A file cannot be saved.
            StoreError: The store cannot be closed cleanly.
        """
        await self._replicas.hold()
        async with self._terms.ending():
            await self._resources.aclose()

    async def become(
        self, role: BrokerRole, broker_id: int, *, epoch: int = 0, master_address: str = ""
    ) -> None:
        """Change the role of the running broker: end its term and begin another.

        Requests in progress are answered first; those that arrive during the change wait for its
        end. Clients stay connected. If the broker cannot start in the new role, it continues in the
        old one.

        Args:
            role: The new role.
            broker_id: The new broker id; 0 for a master, at least 1 for a slave.
            epoch: The number of the epoch that begins with a new master. Default: 0, which leaves
                the number to the term.
            master_address: The master of a slave that does not ask name servers for it. Default:
                empty, which changes nothing.

        Raises:
            ConfigError: The broker id does not fit the role.
            StoreError: The store cannot be closed or opened.
            OSError: A file cannot be saved or read.
        """
        known = newest_epoch(self)
        await self._terms.become(
            RoleChange(role, broker_id, epoch, master_address, known_epoch=known)
        )

    async def rewind(self, master: MasterAddress, *, keep_confirmed: bool = False) -> None:
        """Remove messages that a master does not have, so that this slave can follow it.

        The store is closed meanwhile. A copy of the removed messages is kept in its folder.

        Args:
            master: The master.
            keep_confirmed: Whether to fail if a message would be removed that all replicas had
                confirmed. Default: False.

        Raises:
            FiretrailError: The master cannot be asked, the logs have nothing in common, or the
                store cannot be cut. The slave continues with its log as it was.
            OSError: A file cannot be written.
        """
        await self._terms.rewind(master, keep_confirmed=keep_confirmed)

    async def freeze(self, reason: str) -> None:
        """Change neither log nor tables before a hand-over: see :meth:`Terms.freeze`.

        Args:
            reason: The reason, as refusals state it.
        """
        await self._terms.freeze(reason)

    def thaw(self) -> None:
        """Continue as the master, because the hand-over has failed."""
        self._terms.thaw()

    async def _drain(self) -> None:
        """Wait until all requests in progress are finished."""
        if self._terms.is_stopping:
            await self._server.stop()
        else:
            await self._server.drain()

    def take_changes(self, before: ConfEntries, now: ConfEntries) -> FileChanges:
        """Put the live settings into effect that differ between two versions of ``broker.conf``.

        Args:
            before: The file with which the broker was started.
            now: The file as it is.

        Raises:
            ConfigError: A setting in the file is not allowed; none takes effect.
        """
        return take_file(self._parts.state, before, now)

    @property
    def answered_codes(self) -> tuple[set[int], set[int]]:
        """The request codes that the broker handles, and those that its name server handles."""
        names = self._name_server.handlers if self._name_server is not None else {}
        return set(self._handlers), set(names)

    @property
    def _term(self) -> Term:
        return self._terms.current

    @property
    def _parts(self) -> Parts:
        return self._term.parts

    @property
    def store(self) -> Store:
        """The open store, after the start. A change of role replaces it."""
        return self._term.store.embedded

    @property
    def broker_store(self) -> BrokerStore:
        """The parts of the open store, after the start. A change of role replaces it."""
        return self._term.store

    @property
    def role(self) -> BrokerRole:
        """The current role, after the start."""
        return self._term.plan.store.role

    @property
    def group(self) -> GroupStatus | None:
        """The state of the group of brokers, after the start; None if the role is fixed."""
        return self._replicas.group

    @property
    def topics(self) -> TopicTable:
        """The table of topics, after the start. A change of role replaces it."""
        return self._parts.state.topics

    @property
    def groups(self) -> GroupTable:
        """The table of consumer groups, after the start. A change of role replaces it."""
        return self._parts.state.groups

    @property
    def offsets(self) -> OffsetTable:
        """The consumer offsets, after the start. A change of role replaces them."""
        return self._parts.state.offsets

    @property
    def clients(self) -> Clients:
        """The connected clients, after the start."""
        return self._parts.state.clients

    @property
    def registered_epoch(self) -> int:
        """The largest epoch number with which a master has registered, after the start."""
        return self._parts.registration.newest_epoch

    @property
    def epoch_fence(self) -> EpochFence | None:
        """The fence of a former master, which then accepts no messages; None for a slave."""
        return self._term.epoch_fence

    @property
    def replica(self) -> ReplicaService | None:
        """The service that follows the master; None if this broker is a master itself."""
        return self._term.replica

    async def check_transactions(self) -> None:
        """Check half messages now: ask their producers for the outcome of the transactions."""
        await self._parts.transactions.check()

    def ask(self, connection: Connection, request: RemotingCommand) -> Answer:
        """Answer a request of this process, in the present role of the broker.

        Args:
            connection: Represents the client, until :meth:`closed` is called with it.
            request: The request.

        Returns:
            The response, an awaitable of it, or None if the broker replies on the connection later.
        """
        return self._server.ask(connection, request)

    def release_polls(self) -> None:
        """Answer all requests that wait for messages as if their time limit had passed."""
        self._parts.state.long_polling.release()

    def withdraw(self, connection: Connection) -> bool:
        """Drop the requests of a connection that wait for messages.

        Args:
            connection: The connection.

        Returns:
            Whether there were any. If not, they have been answered, or will be very soon.
        """
        return self._parts.state.long_polling.closed(connection)

    def closed(self, connection: Connection) -> None:
        """Forget the client of a closed connection, and the requests of it that wait.

        Args:
            connection: The connection.
        """
        if not self._handlers:
            return  # the start has failed, so the connection was never served
        self._parts.state.long_polling.closed(connection)
        self.clients.closed(connection)
