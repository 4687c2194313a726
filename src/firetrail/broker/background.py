"""A broker for programs without an event loop. It runs in its own thread.

::

    with BackgroundBroker() as broker:
        ...  # clients connect to broker.namesrv
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.store.settings.store_config import StoreConfig
from firetrail.store.store import Store


class BackgroundBroker:
    """A broker and a name server on free ports of the loopback interface, in a thread.

    They run from the beginning of a ``with`` block to its end. An error of the start, and one of
    the stop, is raised in the thread that uses the ``with`` block.

    Attributes:
        namesrv: Address of the name server as ``ip:port``.
        address: Address of the broker as ``ip:port``.
        store: The broker's store, to look at stored messages: ``broker.store.read(topic,
            queue_id)``.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        config: BrokerConfig | None = None,
        store: StoreConfig | None = None,
    ) -> None:
        """Prepare a broker; entering the ``with`` block starts it.

        Args:
            folder: Folder of the store. Default: a temporary folder that is deleted afterwards.
            config: Settings of the broker. Default: ``BrokerConfig()``.
            store: Settings of the store. Its port is ignored: the broker listens on a free one.
                Default: ``StoreConfig()``.
        """
        self._arguments = folder, config, store
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="firetrail-broker", daemon=True)
        self.namesrv = ""
        self.address = ""
        self.store: Store

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        self._raise_failure()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None and self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with self._running() as broker:
            self.namesrv, self.address = broker.namesrv, broker.address
            self.store = broker.store
            self._started.set()
            await self._stop.wait()

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[Broker]:
        """Run the broker; subclasses run more beside it."""
        async with Broker.running(*self._arguments) as broker:
            yield broker
