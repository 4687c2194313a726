"""Fixtures for pytest. To use them, import them in your ``conftest.py``::

from firetrail.testing import rocketmq
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from firetrail.broker.background import BackgroundBroker
from firetrail.broker.broker import Broker
from firetrail.client import Admin, MessageType
from firetrail.proxy.grpc_extra import is_missing

try:
    from firetrail.proxy.proxy import Proxy
except ModuleNotFoundError as missing:
    if not is_missing(missing):
        raise
    Proxy = None  # type: ignore[assignment, misc]

__all__ = ["RocketMQ", "rocketmq"]


class RocketMQ(BackgroundBroker):
    """A broker, a name server and the gRPC service on free ports, in a thread.

    Attributes:
        grpc: Address for gRPC clients as ``ip:port``; empty if the extra ``grpc`` is not
            installed.
    """

    grpc = ""

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[Broker]:
        async with super()._running() as broker:
            if Proxy is None:
                yield broker
                return
            proxy = Proxy.of_broker(broker)
            await proxy.start(broker.config.bind, 0)
            self.grpc = proxy.address
            try:
                yield broker
            finally:
                await proxy.stop()

    def create_topic(
        self, topic: str, message_type: MessageType = MessageType.NORMAL, *, queues: int = 8
    ) -> None:
        """Create a topic: gRPC clients, unlike others, can use only topics that exist.

        Args:
            topic: The name of the topic.
            message_type: The type of messages that gRPC clients can send to it. Default: NORMAL.
            queues: The number of queues. Default: 8.

        Raises:
            RequestError: The broker refuses it.
        """

        self._administer(lambda admin: admin.create_topic(topic, queues, message_type=message_type))

    def create_group(self, group: str, *, orderly: bool = False) -> None:
        """Create a consumer group. Otherwise, it is created when a consumer first uses it.

        Args:
            group: The name of the group.
            orderly: Whether gRPC clients get the messages in order. Default: False.

        Raises:
            RequestError: The broker refuses it.
        """
        self._administer(lambda admin: admin.create_group(group, orderly=orderly))

    def _administer(self, call: Callable[[Admin], Coroutine[Any, Any, object]]) -> None:
        async def administer() -> None:
            async with Admin(self.namesrv) as admin:
                await call(admin)

        assert self._loop is not None, "the broker has been started"
        asyncio.run_coroutine_threadsafe(administer(), self._loop).result()


@pytest.fixture
def rocketmq() -> Iterator[RocketMQ]:
    """Start a broker and a name server on free ports, with an empty store, for one test.

    Yields:
        The running broker. Point your clients at its ``namesrv``, and gRPC clients at its ``grpc``;
        look at what they stored through its ``store``. The broker stops and its store is deleted
        after the test.
    """
    with RocketMQ() as broker:
        yield broker
