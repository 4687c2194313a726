"""The name server as a whole: its tables, who answers what, and the clean-up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from firetrail.namesrv.admin import AdminAnswers
from firetrail.namesrv.answers import RouteAnswers
from firetrail.namesrv.config import NameServerConfig
from firetrail.namesrv.kv import KVConfig
from firetrail.namesrv.routes import Registration
from firetrail.namesrv.state import State
from firetrail.remoting.bodies import MASTER_ID, TopicConfigTable
from firetrail.remoting.connection import Connection
from firetrail.remoting.handlers import Handler
from firetrail.remoting.server import Server
from firetrail.system import SYSTEM, System

_log = logging.getLogger(__name__)


class NameServer:
    """A name server, alone in its process or inside that of a broker.

    Args:
        config: The settings; the defaults of :class:`NameServerConfig` if omitted.
        system: Files and clock; those of the operating system if omitted.
    """

    def __init__(
        self, config: NameServerConfig | None = None, system: System | None = None
    ) -> None:
        config, system = config or NameServerConfig(), system or SYSTEM
        path = config.kv_config_path
        kv = KVConfig(Path(path) if path else None, system)
        self._state = State(config, kv, clock=system.clock)
        self.routes = self._state.routes
        self.handlers: Mapping[int, Handler] = {
            **RouteAnswers(self._state).handlers,
            **AdminAnswers(self._state).handlers,
        }
        """Who answers which request code; a broker may serve them on its own port as well."""
        self._server = Server(self.handlers, on_closed=self.disconnected)
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Listen; the port."""
        config = self._state.config
        port = await self._server.start(config.bind_address, config.listen_port)
        self._sweeper = asyncio.create_task(self._sweep())
        return port

    @property
    def listens(self) -> list[str]:
        """The addresses that it listens on, after the start."""
        return self._server.listens

    async def stop(self) -> None:
        """Answer what was asked, and close all connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._server.stop()

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
        """Register a broker of this process, with all its topics or some. It does not expire.

        That another one has its name and id is logged here, for the broker as well.
        """
        who = Registration(cluster, name, address, broker_id, ha_address, expiry_s=None)
        rival = self.routes.register(who, topics, self._state.clock.monotonic(), complete=complete)
        self._state.rivals.remark(who, rival)

    def unregister_local(self, *, name: str, address: str, broker_id: int = MASTER_ID) -> None:
        """A broker of this process stops."""
        self.routes.unregister(name, broker_id, address)

    def disconnected(self, connection: Connection) -> None:
        """A connection is closed: the brokers that registered over it are gone."""
        for address in self.routes.disconnected(connection):
            _log.warning("broker %s: its connection is closed", address)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._state.config.scan_interval_ms / 1000)
            for address in self.routes.expire(self._state.clock.monotonic()):
                _log.warning("broker %s: not heard of for too long", address)
