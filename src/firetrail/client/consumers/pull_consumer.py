"""The pull consumer: reads given queues from given offsets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from firetrail.client.cluster.backoff import REACH_S
from firetrail.client.cluster.client_arguments import (
    checked_group,
    checked_queue,
    checked_subscription,
)
from firetrail.client.cluster.cluster_client import ClusterClient, finished_by_close
from firetrail.client.cluster.offsets import Offsets
from firetrail.client.cluster.topic_route import queues_of
from firetrail.client.consumers.pull_client import BATCH, PullClient, Pulled
from firetrail.client.consumers.subscription import by_tags
from firetrail.client.messages.received_message import Received
from firetrail.errors import ConfigError
from firetrail.format.values.arguments import number, seconds, text
from firetrail.format.values.integers import INT32_MAX
from firetrail.remoting.connections.access import Access
from firetrail.remoting.messages.bodies import MessageQueue, SubscriptionData
from firetrail.remoting.wire.codes import Permission


class PullConsumer(ClusterClient):
    """Reads the queues of a cluster at offsets that the program chooses::

        async with PullConsumer("127.0.0.1:9876", "audit") as consumer:
            for queue in await consumer.queues("T"):
                async for message in consumer.read(queue):
                    print(message.body)

    Reading has no effect on other consumers: this client does not join the group, and the offsets
    of the group change only by :meth:`commit`.

    Args:
        namesrv: The address ``host:port`` of a name server, or several: a sequence, or a string
            that separates them by ``;``.
        group: The name of the consumer group whose offsets are read and committed. Default:
            ``FIRETRAIL_PULL_CONSUMER``.
        access: Credentials and TLS. Default: those in the environment
            (:mod:`firetrail.remoting.connections.access`).

    Raises:
        ConfigError: An argument is out of range; WrongTypeError if it has the wrong type.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str = "FIRETRAIL_PULL_CONSUMER",
        *,
        access: Access | None = None,
    ) -> None:
        super().__init__(namesrv, access=access)
        self.group = checked_group(group)
        self._puller = PullClient(self._session, group)
        self.offsets = Offsets(self._session)
        """Requests for the offsets of queues and groups."""

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic.

        Args:
            topic: The name of the topic.

        Raises:
            RequestError: The topic does not exist.
        """
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
        """Return messages of a queue, starting at ``offset``, as many as fit into one answer.

        Args:
            queue: The queue to read.
            offset: The queue offset to start at.
            subscription: The messages to return, from :func:`by_tags` or :func:`by_sql`. Default:
                all messages.
            count: The most messages to return; brokers may return fewer. Default: 32.
            wait_s: How long the broker may wait for the first message, in seconds, and how long
                this waits for a broker that cannot be reached. Default: 0.

        Raises:
            RequestError: A broker or name server answered with an error.
            OSError: A broker could not be reached, or did not answer in time (TimeoutError).
        """
        checked_queue(queue)
        number("offset", offset)
        checked_subscription("subscription", subscription, queue.topic)
        number("count", count, 1, INT32_MAX)
        seconds("wait_s", wait_s)
        wanted = subscription or by_tags(queue.topic)

        async def pull() -> Pulled:
            await self._session.route(queue.topic)
            return await self._puller.pull(queue, offset, wanted, count=count, wait_s=wait_s)

        return await self._backoff.until_reached(pull, wait_s)

    def read(
        self,
        queue: MessageQueue,
        start: int | None = None,
        end: int | None = None,
        subscription: SubscriptionData | None = None,
    ) -> AsyncIterator[Received]:
        """Yield the messages of a queue.

        Args:
            queue: The queue to read.
            start: The queue offset to start at. Default: the first message.
            end: The queue offset to stop before. Default: the end of the queue as it is when the
                iteration starts.
            subscription: The messages to yield, from :func:`by_tags` or :func:`by_sql`. Default:
                all messages.

        Raises:
            The same errors as :meth:`pull`, during the iteration.
        """
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
            if pulled.next_offset <= at >= pulled.max_offset:
                return
            at = max(at, pulled.next_offset)  # equal while a damaged message is being repaired

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group in a queue; None if it has none.

        Args:
            queue: The queue.
        """
        checked_queue(queue)

        async def ask() -> int | None:
            await self._session.route(queue.topic)
            return await self.offsets.committed(self.group, queue)

        return await self._backoff.until_reached(ask, REACH_S)

    @finished_by_close
    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit an offset: the group has consumed all messages of the queue before it.

        Args:
            queue: The queue.
            offset: The queue offset at which the group continues.

        Raises:
            ConfigError: ``offset`` is beyond the end of the queue.
            RequestError: A broker or name server answered with an error.
            OSError: A broker could not be reached, or did not answer in time (TimeoutError).
        """
        checked_queue(queue)
        number("offset", offset)

        async def commit() -> None:
            await self._session.route(queue.topic)
            end = await self.offsets.end(queue)
            if offset > end:  # the group would skip messages
                raise ConfigError("offset", offset, f"is beyond the end of the queue, {end}")
            await self.offsets.commit(self.group, queue, offset)

        await self._backoff.until_reached(commit, REACH_S)
