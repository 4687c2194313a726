"""The pull consumer: reads the queues that its user names, from where its user says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from firetrail.client.arguments import (
    INT32_MAX,
    checked_group,
    checked_queue,
    checked_subscription,
)
from firetrail.client.cluster_client import ClusterClient, finished_by_close
from firetrail.client.offsets import Offsets
from firetrail.client.pull import BATCH, Pulled, Puller
from firetrail.client.received import Received
from firetrail.client.session import queues_of
from firetrail.client.subscription import by_tags
from firetrail.errors import ConfigError
from firetrail.format.arguments import number, seconds, text
from firetrail.remoting.bodies import ALL_TAGS, MessageQueue, SubscriptionData
from firetrail.remoting.codes import Permission


class PullConsumer(ClusterClient):
    """Reads queues of a cluster::

        async with PullConsumer("127.0.0.1:9876", "audit") as consumer:
            for queue in await consumer.queues("T"):
                async for message in consumer.read(queue):
                    print(message.body)

    Nobody else is affected: the group has no members, and its offsets change by ``commit`` only.
    """

    def __init__(
        self, namesrv: str | Sequence[str], group: str = "FIRETRAIL_PULL_CONSUMER"
    ) -> None:
        super().__init__(namesrv)
        self.group = checked_group(group)
        self._puller = Puller(self._session, group)
        self.offsets = Offsets(self._session)
        """What brokers know about offsets."""

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be read."""
        route = await self._session.route(text("topic", topic))
        return queues_of(topic, route, Permission.READ)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        subscription: SubscriptionData | None = None,
        *,
        count: int = BATCH,
        wait_s: float = 0.0,
    ) -> Pulled:
        """Messages from ``offset`` on, as many as fit into one answer."""
        checked_queue(queue)
        number("offset", offset)
        checked_subscription("subscription", subscription, queue.topic)
        number("count", count, 1, INT32_MAX)
        seconds("wait_s", wait_s)
        await self._session.route(queue.topic)
        wanted = subscription or by_tags(queue.topic, ALL_TAGS)
        return await self._puller.pull(queue, offset, wanted, count=count, wait_s=wait_s)

    def read(
        self,
        queue: MessageQueue,
        start: int | None = None,
        end: int | None = None,
        subscription: SubscriptionData | None = None,
    ) -> AsyncIterator[Received]:
        """The messages of a queue from ``start`` (the first) up to ``end`` (the end by now)."""
        checked_queue(queue)
        checked_subscription("subscription", subscription, queue.topic)
        for name, offset in (("start", start), ("end", end)):
            if offset is not None:
                number(name, offset)
        return self._read(queue, start, end, subscription)

    async def _read(
        self,
        queue: MessageQueue,
        start: int | None,
        end: int | None,
        subscription: SubscriptionData | None,
    ) -> AsyncIterator[Received]:
        await self._session.route(queue.topic)
        at = await self.offsets.lowest(queue) if start is None else start
        stop = await self.offsets.end(queue) if end is None else end
        while at < stop:
            pulled = await self.pull(queue, at, subscription)
            for message in pulled.messages:
                if message.queue_offset >= stop:
                    return
                yield message
            if pulled.next_offset <= at:
                return
            at = pulled.next_offset

    async def committed(self, queue: MessageQueue) -> int | None:
        """Up to where the group has consumed."""
        await self._session.route(checked_queue(queue).topic)
        return await self.offsets.committed(self.group, queue)

    @finished_by_close
    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """The group has consumed all before ``offset``, which is not beyond the queue's end."""
        checked_queue(queue)
        number("offset", offset)
        await self._session.route(queue.topic)
        end = await self.offsets.end(queue)
        if offset > end:  # the group would skip messages
            raise ConfigError("offset", offset, f"is beyond the end of the queue, {end}")
        await self.offsets.commit(self.group, queue, offset)
