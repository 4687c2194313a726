"""One broker with all ways to it, which are fed with the same tables."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.broker.brokers import SMALL, Talk, talking
from tests.proxy.fakes import FakeCall
from tests.proxy.services import Service

from firetrail.broker.broker_config import BrokerConfig
from firetrail.client import Producer, PullConsumer
from firetrail.pipeline.batch_plan import plan_batch
from firetrail.pipeline.source.source_options import parse_options
from firetrail.pipeline.source.split_reader import read_split
from firetrail.pipeline.wire.broker_reader import read_wire
from firetrail.pipeline.wire.broker_splits import WireSplit
from firetrail.proxy.calls.status_codes import status_of
from firetrail.proxy.schema.messages import (
    Broker,
    FilterExpression,
    MessageQueue,
    PullMessageRequest,
    PullMessageResponse,
    Resource,
)
from firetrail.remoting.messages.bodies import TopicConfig
from firetrail.store.settings.store_config import StoreConfig
from firetrail.system import System

REFUSED = "refused"
"""The outcome of an input that a way does not accept."""


def rows(*given: tuple[Any, ...]) -> dict[str, Any]:
    return {text: outcome for outcome, *texts in given for text in texts}


class Ways(NamedTuple):
    """The ways to one broker."""

    talk: Talk
    """Remoting requests."""
    service: Service
    """Calls of gRPC clients, in the same process."""
    producer: Producer
    consumer: PullConsumer
    folder: Path
    """The store, whose files Spark reads."""

    @property
    def places(self) -> list[dict[str, str]]:
        """The options of Spark for the files of the store, and for the broker."""
        return [{"path": str(self.folder)}, {"namesrv": self.namesrv}]

    @property
    def namesrv(self) -> str:
        return self.talk.broker.namesrv

    def create(self, topic: str, queues: int = 1) -> None:
        self.talk.broker.topics.put([TopicConfig(topic, queues, queues)])

    async def dispatched(self) -> None:
        """Wait until all messages can be read."""
        await asyncio.to_thread(self.talk.broker.store.wait_dispatched)


@asynccontextmanager
async def all_ways(
    folder: Path,
    config: BrokerConfig | None = None,
    store: StoreConfig = SMALL,
    system: System | None = None,
) -> AsyncIterator[Ways]:
    async with talking(folder, config, store, system=system) as talk:
        service = Service(talk.broker)
        namesrv = talk.broker.namesrv
        try:
            async with Producer(namesrv, "PG") as producer, PullConsumer(namesrv, "CG") as consumer:
                yield Ways(talk, service, producer, consumer, folder)
        finally:
            await service.renewals.stop()
            await service.receiving.stop()


async def pulled(service: Service, topic: str, wanted: FilterExpression | None = None) -> Any:
    """Return the frames of a PullMessage of a whole queue; an error becomes its status."""
    queue = MessageQueue(topic=Resource(name=topic), id=0, broker=Broker(name="broker-a"))
    request = PullMessageRequest(
        group=Resource(name="CG"), message_queue=queue, batch_size=32, filter_expression=wanted
    )
    try:
        return await service.offsets.pull(FakeCall(), service.client, request)
    except Exception as error:
        return [PullMessageResponse(status=status_of(error))]


async def grpc_pull(service: Service, topic: str) -> list[Any]:
    frames = await pulled(service, topic)
    return [each.message for each in frames if each.WhichOneof("content") == "message"]


def spark(column: str, **given: str) -> list[Any]:
    """Return a column of the rows that Spark reads with some options, from files or brokers."""
    options = parse_options(given)
    how: dict[str, Any] = {"decompress": options.decompress, "permissive": options.permissive}
    found = []
    for split in plan_batch(options).splits:
        read: Any = read_wire if isinstance(split, WireSplit) else read_split
        for batch in read(split, **how):
            found += batch.column(column).to_pylist()
    return found
