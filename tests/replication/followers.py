"""Stores with an HA port, and stores that follow them, without brokers."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.helpers import PATIENCE_S
from tests.replication.logs import SMALL

from firetrail import Message
from firetrail.errors import FiretrailError
from firetrail.replication.ha.ha_client import HAClient
from firetrail.replication.ha.ha_port import HAPort
from firetrail.replication.ha.ha_service import HAService
from firetrail.replication.ha.ha_source import HALimits, HASource
from firetrail.store.broker_store import BrokerStore
from firetrail.store.log.flusher import ThreadWaiter
from firetrail.store.settings.store_config import BrokerRole, StoreConfig
from firetrail.system import SYSTEM

MASTER = SMALL.replace(commit_log_file_size=16 << 10, role=BrokerRole.SYNC_MASTER)
LIMITS = HALimits(batch_size=1000, heartbeat_s=0.05, silence_s=PATIENCE_S)
REPLICA = SMALL.replace(commit_log_file_size=16 << 10, role=BrokerRole.SLAVE)


class Master:
    """A store with its HA port."""

    def __init__(
        self,
        folder: Path,
        config: StoreConfig = MASTER,
        limits: HALimits = LIMITS,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._loop = loop
        self.store = BrokerStore.open(folder, config, system=SYSTEM)
        self.acks = self.store.replica_acks
        self.port = HAPort(SYSTEM)
        self.port.open("127.0.0.1", 0)
        source = HASource(
            self.store.log, self.acks, limits, SYSTEM.clock, SYSTEM.threads, loop=loop
        )
        self.service = HAService(source, self.port)
        self.service.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port.port}"

    def fill(self, count: int, size: int = 100) -> None:
        """Put messages; in the event loop that serves the replicas, if there is one."""
        if self._loop is None:
            self._fill(count, size)
            return

        async def fill() -> None:
            self._fill(count, size)

        asyncio.run_coroutine_threadsafe(fill(), self._loop).result(PATIENCE_S)

    def _fill(self, count: int, size: int) -> None:
        for number in range(count):
            message = Message("T", b"%05d" % number * (size // 5), wait_for_flush=False)
            assert self.store.embedded.try_put(message).ok

    def wait_acked(self) -> None:
        """Wait until a replica has everything."""
        waiter = ThreadWaiter(self.store.log.max_offset, SYSTEM.threads)
        self.acks.add(waiter)
        assert waiter.wait(PATIENCE_S)
        assert waiter.durable

    def close(self) -> None:
        self.service.stop()
        self.port.close()
        self.store.close()


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()


@contextmanager
def following(
    folder: Path,
    address: str,
    config: StoreConfig = REPLICA,
    errors: list[FiretrailError] | None = None,
    begin: int | None = None,
    *,
    is_java: bool = False,
) -> Iterator[BrokerStore]:
    """A replica that follows the master at an address.

    ``errors`` receives what ends the following; without it, following must not fail. ``begin`` is
    the offset at which an empty replica begins.
    """
    failures: list[FiretrailError] = [] if errors is None else errors
    with BrokerStore.open(folder, config, system=SYSTEM) as store:
        log = store.log_copy()
        start = log.max_offset if begin is None else begin
        client = HAClient(log, address, start, SYSTEM.clock, heartbeat_s=0.05)
        client.is_confirmed = not is_java

        def follow() -> None:
            try:
                client.follow()
            except FiretrailError as error:
                failures.append(error)

        thread = threading.Thread(target=follow)
        thread.start()
        try:
            yield store
        finally:
            client.stop()
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
    assert errors is not None or not failures, failures
