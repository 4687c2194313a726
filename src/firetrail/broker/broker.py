"""The broker: its parts, the order in which they start, and the order in which they stop.

::

    async with Broker.running() as broker:
        ...  # clients connect to broker.namesrv
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Self

from firetrail.broker.config import BrokerConfig, check_id
from firetrail.broker.parts import Environment, Parts, build, handlers_of
from firetrail.broker.takeover import unsupported
from firetrail.format.names import CONFIG
from firetrail.namesrv.config import NameServerConfig
from firetrail.namesrv.server import NameServer
from firetrail.remoting.connection import Connection
from firetrail.remoting.handlers import Handler
from firetrail.remoting.server import RemotingServer, ServerLimits
from firetrail.settings.table import Live
from firetrail.store.broker_store import BrokerStore
from firetrail.store.config import StoreConfig
from firetrail.store.lifecycle.inventory import CONFIG_FILES
from firetrail.system import SYSTEM, System

STOP_S = 2.0
"""How long a stop may spend on dispatching queues and index. Service managers give a process little
time to stop, and the next start can derive what is left."""
SWEEP_S = 10.0
"""Pause between two searches for expired clients and locks."""

VIP_BELOW = 2
"""The VIP port, which clients with ``vipChannelEnabled`` use, is this far below the main port."""

_log = logging.getLogger(__name__)


class Broker:
    """A RocketMQ broker with its store and, on request, a name server in the same process.

    Attributes:
        config: The settings of the broker. Administrators can change some of them at run time.
        address: ``ip:port`` that clients connect to; empty before the start.
        namesrv: ``ip:port`` of the name server; empty before the start and without one.
        listens: Addresses that the broker listens on. Clients are sent to ``address``, which may
            be another one.
        namesrv_listens: Addresses that the name server listens on.
        store: The open store, after the start.
        topics: The table of topics, after the start.
        groups: The table of consumer groups, after the start.
        offsets: The consumer offsets, after the start.
        clients: The connected clients, after the start.
    """

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
        system: System | None = None,
    ) -> None:
        """Prepare a broker; :meth:`start` opens the store and listens.

        Args:
            folder: Folder of the store. A new store is created if there is none.
            config: Settings of the broker. Default: ``BrokerConfig()``.
            store: Settings of the store. Its ``store_host`` is the address that clients are sent
                to and the port to listen on; port 0 picks a free one. Default: ``StoreConfig()``.
            name_server: Settings of the name server to run in this process. Default: none is run.
            limits: Limits on connections and waiting requests. Default: ``ServerLimits()``.
            conf: The file that the settings come from. Changes that administrators make at run time
                are written to it. Default: such changes are lost when the broker stops.
            ignore_unsupported: Names of unsupported features of a Java broker's folder that do not
                keep the broker from starting (:mod:`firetrail.broker.takeover.unsupported`).
                Default: none.
            system: Files and clock to use; tests replace them. Default: those of the machine.

        Raises:
            ConfigError: The broker id is not that of a master.
        """
        self._folder = Path(folder)
        self._live = Live(config or BrokerConfig())
        check_id(self.config, store or StoreConfig())
        self._conf = conf
        self._ignored = ignore_unsupported
        self._system = system or SYSTEM
        self._store_config = store or StoreConfig()
        self._handlers: dict[int, Handler] = {}
        self._limits = limits or ServerLimits()
        self._server = RemotingServer(self._handlers, self._limits, on_closed=self._closed)
        self._name_server = (
            NameServer(name_server, self._system) if name_server is not None else None
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._resources = AsyncExitStack()
        self.address = ""
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
    ) -> AsyncIterator[Self]:
        """Run a broker with a name server on free ports of the loopback interface, for tests.

        Args:
            folder: Folder of the store. Default: a temporary folder that is deleted afterwards.
            config: Settings of the broker. Default: ``BrokerConfig()``.
            store: Settings of the store. Its port is ignored. Default: ``StoreConfig()``.

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
        async with AsyncExitStack() as resources:  # closes them if the start fails
            asked = self._store_config.store_host
            port = await self._server.start(self.config.bind, asked.port)
            resources.push_async_callback(self._server.stop)
            # Nothing is awaited until all handlers exist, so no client finds a broker without them.
            host = asked._replace(port=port)
            self.address = str(host)
            config = self._store_config.replace(store_host=host)
            unsupported.check(
                unsupported.refused_files(self._system.files, self._folder), self._ignored
            )
            self.store = BrokerStore.open(self._folder, config, system=self._system)
            resources.callback(self.store.close, STOP_S)
            self._log_missing_files()
            parts = self._build()
            self._log_unsupported()
            resources.callback(parts.state.traffic.stop)
            # They stop and save in reverse order: services first, then the tables they change.
            for part in (
                self.groups,
                self.topics,
                parts.assignment,
                self.offsets,
                parts.schedule,
                parts.orders,
                parts.revive,
            ):
                resources.push_async_callback(part.stop)
            if self._name_server is not None:
                namesrv_port = await self._name_server.start()
                resources.push_async_callback(self._name_server.stop)
                self.namesrv = str(host._replace(port=namesrv_port))
                self.namesrv_listens = self._name_server.listens
            # Pushed a second time, so that the server stops before the parts above. The first
            # callback then does nothing; it closes the port if the start fails before this line.
            resources.push_async_callback(self._server.stop)
            await self._listen_for_vips(asked.port)
            self.listens = self._server.listens
            await parts.registration.start()
            resources.push_async_callback(parts.registration.stop)
            resources.callback(parts.state.long_polling.stop)
            self.topics.on_change = parts.registration.changed
            parts.schedule.start()
            parts.revive.start()
            resources.push_async_callback(self._stop_tasks)
            self._start_tasks()
            self._resources = resources.pop_all()

    def _log_missing_files(self) -> None:
        """Warn about missing files of the broker that nothing but a backup can restore."""
        for name in self.store.missing_config:
            path = self._folder / CONFIG / name
            if not path.with_name(f"{name}.bak").exists():  # if it does, loading it is logged
                _log.warning(
                    "%s is missing, and there is no %s.bak: %s; to restore the previous state, "
                    "stop the broker and copy the file back from a backup",
                    path,
                    name,
                    CONFIG_FILES[name],
                )

    def _log_unsupported(self) -> None:
        """Warn about data of a Java broker in the folder that this broker does not use."""
        found = unsupported.remarks(
            self._system.files, self._folder, self.topics.content().topic_config_table.values()
        )
        for remark in found:
            _log.warning("found in %s: %s", self._folder, remark)
        if self._parts.timers.count:
            _log.warning("found in %s: %s", self._folder, self._parts.timers)

    async def _listen_for_vips(self, port: int) -> None:
        """Listen on the VIP port as well, which clients with ``vipChannelEnabled`` connect to."""
        if not self.config.vip_channel or port <= VIP_BELOW:
            return
        try:
            await self._server.start(self.config.bind, port - VIP_BELOW)
        except OSError as error:
            _log.warning(
                "clients with vipChannelEnabled cannot connect, all others can: %s; free the port, "
                "or set vip_channel=false",
                error,
            )

    def _start_tasks(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._save_regularly()),
            loop.create_task(self._save_delays_regularly()),
            loop.create_task(self._sweep_regularly()),
            loop.create_task(self._check_regularly()),
        ]

    async def _stop_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _build(self) -> Parts:
        self._parts = parts = build(
            Environment(
                self._folder,
                self._live,
                self.store,
                self._system,
                self._limits,
                self.address,
                self._name_server,
            )
        )
        state = parts.state
        self.topics, self.groups = state.topics, state.groups
        self.offsets, self.clients = state.offsets, state.clients
        self._handlers.update(handlers_of(parts, self._conf))
        return parts

    async def stop(self) -> None:
        """Answer the requests received so far, save everything and close the store.

        Raises:
            OSError: A file cannot be saved.
            StoreError: The store cannot be closed cleanly.
        """
        await self._resources.aclose()

    @property
    def answered_codes(self) -> tuple[set[int], set[int]]:
        """The request codes that the broker handles, and those that its name server handles."""
        names = self._name_server.handlers if self._name_server is not None else {}
        return set(self._handlers), set(names)

    async def check_transactions(self) -> None:
        """Check half messages now: ask their producers for the outcome of the transactions."""
        await self._parts.transactions.check()

    def _closed(self, connection: Connection) -> None:
        self._parts.state.long_polling.closed(connection)
        self.clients.closed(connection)

    # -- periodic tasks -----------------------------------------------------------------------

    async def _save_regularly(self) -> None:
        while True:
            await asyncio.sleep(self.config.offsets_interval_ms / 1000)
            try:
                self.offsets.saver.save_changes()
                self._parts.orders.saver.save_changes()
            except Exception:
                _log.exception("consumer offsets could not be saved; will retry")

    async def _save_delays_regularly(self) -> None:
        while True:
            await asyncio.sleep(self.config.delay_interval_ms / 1000)
            try:
                self._parts.schedule.saver.save_changes()
            except Exception:
                _log.exception("offsets of delayed messages could not be saved; will retry")

    async def _sweep_regularly(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                self.clients.expire()
                self._parts.locks.expire()
                self._parts.runtime.sample()
                await asyncio.to_thread(self._parts.state.traffic.sample)
            except Exception:
                _log.exception("client expiry and statistics sampling failed; will retry")

    async def _check_regularly(self) -> None:
        while True:
            await asyncio.sleep(self.config.transaction_check_interval_ms / 1000)
            try:
                await self.check_transactions()
            except Exception:
                _log.exception("half messages could not be checked; will retry")
