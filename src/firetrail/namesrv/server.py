"""The name server: its tables, its request handlers, and the removal of expired brokers."""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from pathlib import Path

from firetrail.access.file_access import FileAccess
from firetrail.access.guard import Guard
from firetrail.access.user_limits import user_limits
from firetrail.namesrv.admin_processor import AdminProcessor
from firetrail.namesrv.kv import KVConfig
from firetrail.namesrv.name_server_config import SETTINGS, NameServerConfig
from firetrail.namesrv.route_requests import RouteProcessor
from firetrail.namesrv.routes import Registration
from firetrail.namesrv.state import NameServerState
from firetrail.pace.periodic import GuardedStep, every
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.messages.bodies import MASTER_ID, TopicConfigTable
from firetrail.remoting.servers.configured_limits import server_limits
from firetrail.remoting.servers.costly_requests import CostlyRequests
from firetrail.remoting.servers.exposure import check_exposure
from firetrail.remoting.servers.remoting_server import RemotingServer
from firetrail.settings.file_changes import ConfEntries, FileChanges, changes_between
from firetrail.system import SYSTEM, System
from firetrail.tls.server_tls import ServerTls

_log = logging.getLogger(__name__)


class NameServer:
    """A name server, in its own process or in that of a broker.

    Attributes:
        routes: The table of brokers and topics.
        handlers: The handlers by request code. A broker may serve them on its own port as well.
    """

    def __init__(
        self,
        config: NameServerConfig | None = None,
        system: System | None = None,
        guard: Guard | None = None,
        tls: ServerTls | None = None,
        *,
        insecure: bool = False,
        costly: CostlyRequests | None = None,
    ) -> None:
        """Prepare a name server; :meth:`start` listens.

        Args:
            config: The settings. Default: ``NameServerConfig()``.
            system: Files and clock to use; tests replace them. Default: those of the machine.
            guard: Decides about every request: that of the broker in the same process. Default:
                one for the users of ``config``, if it requires signatures.
            tls: The TLS of the port. Default: plaintext only.
            insecure: Whether it may listen beyond the loopback interface without access control.
                Default: False.
            costly: The costly requests of the broker in the same process, which take turns with
                those of the name server. Default: there is no broker.

        Raises:
            ConfigError: The file of the key-value store cannot be read, the settings of access
                control contradict each other, or the server would be exposed without any.
        """
        config, system = config or NameServerConfig(), system or SYSTEM
        path = config.kv_config_path
        kv = KVConfig(Path(path) if path else None, system)
        self._state = NameServerState(config, kv, clock=system.clock)
        self.routes = self._state.routes
        self.handlers: Mapping[int, Handler] = {
            **RouteProcessor(self._state).handlers,
            **AdminProcessor(self._state).handlers,
        }
        self._access: FileAccess | None = None  # its own; a broker has that of its process
        if guard is None and config.authentication:
            folder = Path(config.users_folder)
            limits = user_limits(config, system.clock.monotonic)
            self._access = FileAccess(folder, config.access_policy(), config, system, limits)
            guard = self._access.guard
        check_exposure(config.bind_address, tls, guard, insecure=insecure)
        audit = guard.audit if guard is not None else None
        self._server = RemotingServer(
            self.handlers,
            system,
            server_limits(config),
            guard=guard,
            tls=tls,
            audit=audit.answered if audit is not None else None,
        )
        self._server.on_closed = self.disconnected
        self._server.costly = costly or self._server.costly
        self._sweeper: asyncio.Task[None] | None = None

    def take_changes(self, before: ConfEntries, now: ConfEntries) -> FileChanges:
        """Put the live settings into effect that differ between two versions of ``namesrv.conf``.

        Args:
            before: The file with which the name server was started.
            now: The file as it is.

        Raises:
            ConfigError: A setting in the file is not allowed; none takes effect.
        """
        NameServerConfig.from_entries(now)
        changes = changes_between(before, now, SETTINGS)
        self._state.config = replace(self._state.config, **changes.live)
        self._state.config.log_level.apply()
        return changes

    async def start(self) -> int:
        """Start listening; return the port.

        Raises:
            AddressInUseError: The port is in use.
            OSError: The address cannot be bound.
            StoreError: The file with the users cannot be used.
        """
        config = self._state.config
        if self._access is not None:
            self._access.open(config.init_user)
        port = await self._server.start(config.bind_address, config.listen_port)
        self._sweeper = asyncio.create_task(self._sweep())
        return port

    @property
    def listens(self) -> list[str]:
        """The addresses that the name server listens on, after the start."""
        return self._server.listens

    async def stop(self) -> None:
        """Answer the requests received so far, and close all connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._server.stop()
        if self._access is not None:
            await asyncio.to_thread(self._access.close)

    def register_local(
        self,
        *,
        cluster: str,
        name: str,
        address: str,
        topics: TopicConfigTable,
        broker_id: int = MASTER_ID,
        ha_address: str = "",
        complete: bool = True,
    ) -> None:
        """Register a broker of this process. It does not expire.

        A warning is logged if another broker has the same name and id.

        Args:
            cluster: Name of the cluster.
            name: Name of the broker.
            address: ``ip:port`` that clients connect to.
            topics: Topics of the broker.
            broker_id: Id of the broker. Default: that of a master.
            ha_address: Address for replication. Default: none.
            complete: Whether ``topics`` are all topics; other topics of the broker are then
                removed. Default: True.
        """
        who = Registration(cluster, name, address, broker_id, ha_address, expiry_s=None)
        rival = self.routes.register(who, topics, self._state.clock.monotonic(), complete=complete)
        if not self.routes.is_former(who, topics):
            self._state.duplicates.remark(who, rival)

    def unregister_local(self, *, name: str, address: str, broker_id: int = MASTER_ID) -> None:
        """Remove a broker of this process.

        Args:
            name: Name of the broker.
            address: The address it was registered with.
            broker_id: Id of the broker. Default: that of a master.
        """
        self.routes.unregister(name, broker_id, address)

    def disconnected(self, connection: Connection) -> None:
        """Remove the brokers that registered over a connection that is closed."""
        for address in self.routes.disconnected(connection):
            _log.warning("broker %s is removed, because its connection is closed", address)

    def _sweep(self) -> Coroutine[None, None, None]:
        """Return the task that keeps routes and users up to date."""
        steps = [GuardedStep(self._expire, "silent brokers could not be removed; will retry", _log)]
        if (access := self._access) is not None:
            trouble = "changed users could not be read; will retry"
            steps.append(GuardedStep(lambda: asyncio.to_thread(access.refresh), trouble, _log))
        return every(lambda: self._state.config.scan_interval_ms / 1000, *steps)

    def _expire(self) -> None:
        for address in self.routes.expire(self._state.clock.monotonic()):
            _log.warning("broker %s is removed, because it has sent nothing for long", address)
