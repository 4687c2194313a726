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

from firetrail.broker.admin.assignment import AssignmentProcessor
from firetrail.broker.admin.config import ConfigProcessor
from firetrail.broker.admin.consumers import ConsumerProcessor
from firetrail.broker.admin.inspection import InspectionProcessor
from firetrail.broker.admin.runtime_info import RuntimeInfo
from firetrail.broker.admin.stats import StatsProcessor
from firetrail.broker.admin.topics_groups import TopicGroupProcessor
from firetrail.broker.config import BrokerConfig, check_id
from firetrail.broker.filter.selection import MessageSelector
from firetrail.broker.pop.ack import AckProcessor
from firetrail.broker.pop.checkpoints import PopCheckpoints
from firetrail.broker.pop.orders import PopOrders
from firetrail.broker.pop.pop import PopProcessor
from firetrail.broker.pop.revive import ReviveService
from firetrail.broker.processors.pull import PullProcessor
from firetrail.broker.processors.query import QueryProcessor
from firetrail.broker.processors.reply import ReplyProcessor
from firetrail.broker.processors.send import SendProcessor
from firetrail.broker.processors.send_back import SendBackProcessor
from firetrail.broker.services.clients import Clients
from firetrail.broker.services.long_polling import LongPolling
from firetrail.broker.services.queue_locks import QueueLocks
from firetrail.broker.services.registration import Registration
from firetrail.broker.services.schedule import Schedule
from firetrail.broker.services.traffic import Traffic
from firetrail.broker.services.transactions import Transactions
from firetrail.broker.state.config_file import ORDERS, ConfigFile
from firetrail.broker.state.groups import GroupTable
from firetrail.broker.state.offset_files import OffsetFiles
from firetrail.broker.state.offsets import OffsetTable
from firetrail.broker.state.overruns import log_overruns, overshoot_in
from firetrail.broker.state.topics import TopicTable
from firetrail.broker.stored import pending_destinations
from firetrail.broker.takeover import unsupported
from firetrail.broker.takeover.java_timer import take_over
from firetrail.broker.takeover.waiting_timers import count_waiting
from firetrail.format.names import (
    CONFIG,
    DELAY_OFFSETS,
    GROUPS_JSON,
    TOPICS_JSON,
)
from firetrail.namesrv.config import NameServerConfig
from firetrail.namesrv.server import NameServer
from firetrail.remoting.connection import Connection
from firetrail.remoting.handlers import Handler
from firetrail.remoting.server import Server, ServerLimits
from firetrail.store.broker_store import BrokerStore
from firetrail.store.config import StoreConfig
from firetrail.store.lifecycle.inventory import CONFIG_FILES
from firetrail.system import System

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
        self.config = (config or BrokerConfig()).replace()  # a copy, because it can change
        check_id(self.config, store or StoreConfig())
        self._conf = conf
        self._ignored = ignore_unsupported
        self._system = system or System()
        self._store_config = store or StoreConfig()
        self._handlers: dict[int, Handler] = {}
        self._limits = limits or ServerLimits()
        self._server = Server(self._handlers, self._limits, on_closed=self._closed)
        self._name_server = NameServer(name_server) if name_server is not None else None
        self._tasks: list[asyncio.Task[None]] = []
        self._resources = AsyncExitStack()
        self.address = ""
        self.namesrv = ""
        self.listens: Sequence[str] = ()
        self.namesrv_listens: Sequence[str] = ()

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
            self._build()
            self._log_unsupported()
            resources.callback(self._traffic.stop)
            parts = (self.groups, self.topics, self._assignment, self.offsets, self._schedule)
            for part in (*parts, self._orders, self._revive_service):
                resources.push_async_callback(part.stop)
            if self._name_server is not None:
                namesrv_port = await self._name_server.start()
                resources.push_async_callback(self._name_server.stop)
                self.namesrv = str(host._replace(port=namesrv_port))
                self.namesrv_listens = self._name_server.listens
            resources.push_async_callback(self._server.stop)
            await self._listen_for_vips(asked.port)
            self.listens = self._server.listens
            await self._registration.start()
            resources.push_async_callback(self._registration.stop)
            resources.callback(self._long_polling.stop)
            self.topics.on_change = self._registration.changed
            self._schedule.start()
            self._revive_service.start()
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
        if self._timers.count:
            _log.warning("found in %s: %s", self._folder, self._timers)

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

    def _build(self) -> None:
        store, config = self.store, self.config
        system = self._system
        loop = asyncio.get_running_loop()
        now_ms = system.clock.now_ms
        levels = store.config.delay_levels

        def file(name: str) -> ConfigFile:
            return ConfigFile(system, self._folder, name)

        def progress(name: str) -> ConfigFile:
            """Return a file that is saved only after the log is flushed.

            It says how far messages were popped or delivered, which the log must show as well.
            """
            return ConfigFile(system, self._folder, name, store.flush)

        self.topics = TopicTable(file(TOPICS_JSON), config, levels.max_level, now_ms)
        self.topics.has_light_queues = store.has_light_queues
        if not store.recovery.clean or TOPICS_JSON in store.missing_config:
            since = self.topics.version.timestamp
            self.topics.recover(
                store.queue_pairs(), store.newest_time, pending_destinations(store, since)
            )
        self.groups = GroupTable(file(GROUPS_JSON), config, now_ms)
        offset_files = OffsetFiles(
            system, self._folder, store.flush, light_queues=store.config.light_queues
        )
        self.offsets = OffsetTable(offset_files, store, self.topics)
        is_unread = unsupported.unread_topics(system.files, self._folder)
        overshoot = overshoot_in(store, is_unread)
        overruns = self.offsets.set_back(overshoot)
        self.clients = Clients(self.topics, self.groups, loop.time, config)
        self._long_polling = LongPolling(store, loop)
        self._traffic = Traffic(store, loop.time)
        self._locks = QueueLocks(loop.time)
        self._schedule = Schedule(progress(DELAY_OFFSETS), store, levels, now_ms)
        overruns += self._schedule.set_back(overshoot)
        self._transactions = Transactions(
            store, self.topics, self.offsets, self.clients, config, now_ms
        )
        self._transactions.load()
        self._registration = Registration(
            config, self.address, self.topics.offered, self._name_server
        )
        self._assignment = AssignmentProcessor(
            file("messageRequestMode.json"), self.clients, self._registration.route
        )
        checkpoints = PopCheckpoints(store, self.topics, self.offsets, config.name, now_ms)
        checkpoints.load()
        if not store.recovery.clean:
            self.groups.recover(checkpoints.pops())
        take_over(store, self.topics, self.offsets, checkpoints, self._system.files, self._folder)
        self._orders = PopOrders(file(ORDERS), self.topics, self.groups, self.offsets, now_ms)
        log_overruns(overruns + self._orders.set_back(overshoot))
        self._revive_service = ReviveService(store, self.topics, self.groups, checkpoints, now_ms)
        self._statistics = StatsProcessor(
            store,
            self.topics,
            self.offsets,
            self.clients,
            self._traffic,
            config,
            now_ms,
            self.address,
        )
        self._timers = count_waiting(store, system.files, self._folder, self.topics.revive)
        self._runtime = RuntimeInfo(store, self._limits, self._timers, now_ms)
        self._take_requests(system, checkpoints)

    def _take_requests(self, system: System, checkpoints: PopCheckpoints) -> None:
        """Create the processors, and register the handlers of all parts by request code."""
        store, config = self.store, self.config
        now_ms = system.clock.now_ms
        selector = MessageSelector(store, config)
        sending = SendProcessor(store, self.topics, self.groups, self._transactions, config)
        parts = (
            sending,
            ReplyProcessor(sending, self.clients, system.clock, self.address),
            PullProcessor(
                store,
                selector,
                self.topics,
                self.groups,
                self.clients,
                self.offsets,
                self._long_polling,
                config,
                self._traffic,
            ),
            PopProcessor(
                store,
                self.topics,
                self.groups,
                self.offsets,
                selector,
                self._long_polling,
                checkpoints,
                self._orders,
                config,
                self._traffic,
                now_ms,
            ),
            AckProcessor(
                store,
                self.topics,
                checkpoints,
                self._orders,
                self._long_polling,
                config.name,
                now_ms,
            ),
            self._assignment,
            SendBackProcessor(store, self.topics, self.groups, self._traffic),
            QueryProcessor(store, self.topics),
            self.offsets,
            self.clients,
            self._locks,
            self._transactions,
            self._statistics,
            self._runtime,
            InspectionProcessor(store, self.offsets, self.clients, self._traffic, config, now_ms),
            TopicGroupProcessor(
                store,
                self.topics,
                self.groups,
                self.offsets,
                self._schedule,
                self.address,
            ),
            ConfigProcessor(system, store, config, self._conf, self.topics.reconfigured),
            ConsumerProcessor(
                store,
                self.topics,
                self.groups,
                self.offsets,
                self.clients,
                self._long_polling,
                config,
            ),
        )
        for part in parts:
            self._handlers.update(part.handlers)

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
        await self._transactions.check()

    def _closed(self, connection: Connection) -> None:
        self._long_polling.closed(connection)
        self.clients.closed(connection)

    # -- periodic tasks -----------------------------------------------------------------------

    async def _save_regularly(self) -> None:
        while True:
            await asyncio.sleep(self.config.offsets_interval_ms / 1000)
            try:
                self.offsets.saver.save_changes()
                self._orders.saver.save_changes()
            except Exception:
                _log.exception("consumer offsets could not be saved; will retry")

    async def _save_delays_regularly(self) -> None:
        while True:
            await asyncio.sleep(self.config.delay_interval_ms / 1000)
            try:
                self._schedule.saver.save_changes()
            except Exception:
                _log.exception("offsets of delayed messages could not be saved; will retry")

    async def _sweep_regularly(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                self.clients.expire()
                self._locks.expire()
                self._runtime.sample()
                await asyncio.to_thread(self._traffic.sample)
            except Exception:
                _log.exception("client expiry and statistics sampling failed; will retry")

    async def _check_regularly(self) -> None:
        while True:
            await asyncio.sleep(self.config.transaction_check_interval_ms / 1000)
            try:
                await self.check_transactions()
            except Exception:
                _log.exception("half messages could not be checked; will retry")
