"""A broker in a simulated world, without sockets: requests go directly to its handlers."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, cast
from unittest.mock import patch

from tests.broker.brokers import Field, Talk, text
from tests.crash.ledger import Ledger
from tests.crash.world.loop import WorldLoop
from tests.crash.world.simulation import Process, tiny_config

from firetrail import StoreConfig
from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.format.values.delay import DelayLevels
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import answer_to, outcome_of
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.servers.remoting_server import RemotingServer
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.system import System

BROKER = BrokerConfig(
    offsets_interval_ms=1_000,
    delay_interval_ms=1_000,
    revive_queues=2,
    transaction_timeout_ms=60_000,
    timer_log_file_size=500,
)
WHEEL_SLOTS = 2400
"""Enough for the time between two lives of a broker; each image has the whole wheel."""


def broker_config(mode: str, **changes: Any) -> StoreConfig:
    """Return the settings of a broker's store, with small files."""
    settings: dict[str, Any] = {
        "commit_log_file_size": 16_384,
        "consume_queue_file_size": 400,
        "delay_levels": DelayLevels.parse("1s 2s"),
        "property_crc": True,
    }
    return tiny_config(mode, **settings | changes)


class NoServer:
    """A server that is not bound."""

    listens: Sequence[str] = ()

    async def start(self, host: str, port: int) -> int:
        return port

    async def stop(self) -> None:
        """Nothing was opened."""

    async def drain(self) -> None:
        """No request is in progress: each one is awaited."""


class NoHAPort:
    """An HA port that is not bound: a simulated process has no sockets."""

    listens: Sequence[str] = ()
    port = 10912
    on_connected: object = None

    def __init__(self, system: System) -> None:
        """Nothing is started."""

    def open(self, host: str, port: int) -> None:
        """Nothing is bound."""

    def close(self) -> None:
        """Nothing was opened."""


class _Peer:
    """The connection of a client; it passes each answer to the task that waits for it."""

    peer = "127.0.0.1:50000"
    host = "127.0.0.1"
    local = "127.0.0.1:10911"
    is_closed = False

    def __init__(self) -> None:
        self.waiting: dict[int, asyncio.Future[RemotingCommand]] = {}

    def reply(self, request: RemotingCommand, response: RemotingCommand) -> None:
        self.waiting.pop(request.opaque).set_result(response)


class Requests(Talk):
    """Requests to a broker that has no port."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, cast(RemotingClient, None))
        self._peer = _Peer()
        self._numbers = 0

    async def _request(
        self, code: int, body: bytes, version: int, fields: Mapping[str, Field]
    ) -> RemotingCommand:
        texts = {name: text(value) for name, value in fields.items() if value is not None}
        self._numbers += 1
        request = RemotingCommand(code, texts, body, opaque=self._numbers)
        connection = cast(Connection, self._peer)
        future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        self._peer.waiting[request.opaque] = future
        answer = answer_to(self.broker._handlers, connection, request)
        if answer is not None and not isinstance(answer, RemotingCommand):
            answer = await outcome_of(request, answer)
        if answer is not None:
            self._peer.waiting.pop(request.opaque, None)
            return answer
        return await future


class BrokerProcess(Process):
    """A process in which a broker has the store open."""

    ledger: Ledger
    talk: Requests

    def open(self) -> Any:
        self._threading.__enter__()
        self.loop = WorldLoop(self.world)
        try:
            self.broker = Broker(self.disk.root, BROKER, self.config, system=self.files.system())
            self.broker._server = cast(RemotingServer, NoServer())
            slots = patch("firetrail.broker.timer.timer_service.WHEEL_SLOTS", WHEEL_SLOTS)
            with patch("firetrail.broker.ports.HAPort", NoHAPort), slots:
                self.run(self.broker.start())
        except BaseException:
            self._end()
            raise
        self._store = self.broker.store
        self.talk = Requests(self.broker)
        return self._store

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something in the broker's event loop until it is done."""
        return self.loop.run_until_complete(work)

    def close(self) -> None:
        try:
            self.run(self.broker.stop())
        finally:
            self._end()

    def _end(self) -> None:
        super()._end()
        self.loop.leave()
