"""The queues of brokers, for planning reads: their ends, times, physical offsets and sizes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple, Self, TypeVar

from firetrail.client.administration.admin import Admin
from firetrail.client.cluster.session import Session
from firetrail.client.consumers.pull_client import PullClient, PullResult
from firetrail.client.consumers.subscription import by_tags
from firetrail.errors import PipelineError, RequestError
from firetrail.format.names import OFFSET_MAX
from firetrail.format.record import Record, decode_received
from firetrail.pipeline.kernels.pick import TIME_MAX, TIME_MIN
from firetrail.pipeline.logger import LOGGER
from firetrail.pipeline.source.plan.ranges import Bounds, check_topics_in, is_in
from firetrail.pipeline.source.source_options import QueueName, ReadOptions
from firetrail.pipeline.wire.broker_access_file import access_in
from firetrail.pipeline.wire.loop import Loop
from firetrail.pipeline.wire.request_retry import RequestRetry, no_broker
from firetrail.remoting.messages.bodies import MessageQueue
from firetrail.remoting.wire.codes import ResponseCode

REQUESTS_MAX = 64
"""Limit for concurrent requests."""
NO_ENDS: Mapping[MessageQueue, int] = MappingProxyType({})
SAMPLE = 32
"""Messages whose sizes are used to estimate the size of a queue's others."""

Item = TypeVar("Item")
Found = TypeVar("Found")


class OffsetRange(NamedTuple):
    """A queue, and the range of its offsets."""

    queue: MessageQueue
    low: int
    high: int

    @property
    def name(self) -> str:
        """Name of the queue for messages."""
        return f"{self.queue.topic}/{name_of(self.queue)}"


def name_of(queue: MessageQueue) -> QueueName:
    """Return the name of a queue in options."""
    return QueueName(queue.broker_name, queue.queue_id)


async def gathered(items: Iterable[Item], ask: Callable[[Item], Awaitable[Found]]) -> list[Found]:
    """Return the results of ``ask`` for all items, in order; at most REQUESTS_MAX run at a time."""
    room = asyncio.Semaphore(REQUESTS_MAX)

    async def one(item: Item) -> Found:
        async with room:
            return await ask(item)

    return await asyncio.gather(*map(one, items))


def _not_listed(topic: str) -> RequestError:
    remark = f"the name server lists no broker for queues of topic {topic}"
    return RequestError(ResponseCode.TOPIC_NOT_EXIST, remark)


class Cluster:
    """The current state of a cluster's queues; used as a context manager."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        access = access_in(options.access_file)
        self._retry = RequestRetry(options.namesrv, options.retry_ms, access=access)
        self._loop = Loop()
        self._admin = Admin(options.namesrv, access=access)
        self._session = Session(options.namesrv, access=access)
        self._puller = PullClient(self._session, options.group)

    def __enter__(self) -> Self:
        self._loop.__enter__()
        try:
            self._loop.run(self._retry.ask(self._open, "connecting to the cluster"))
        except BaseException:
            self.__exit__()
            raise
        return self

    async def _open(self) -> None:
        await self._admin.__aenter__()
        await self._session.open()

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._close())
        self._loop.__exit__()

    async def _close(self) -> None:
        await self._session.close()
        await self._admin.__aexit__()

    def _each(
        self,
        items: Iterable[Item],
        ask: Callable[[Item], Awaitable[Found]],
        queue_of: Callable[[Item], MessageQueue],
    ) -> list[Found]:
        """Return the answers for all items, in order."""

        async def one(item: Item) -> Found:
            queue = queue_of(item)
            return await self._retry.ask(
                lambda: ask(item),
                f"reading topic {queue.topic}",
                queue.topic,
                broker=queue.broker_name,
            )

        return self._loop.run(gathered(items, one))

    # -- queues -------------------------------------------------------------------------------

    def queues(self, bounds: Bounds, known: Iterable[str] = ()) -> list[MessageQueue]:
        """Return the queues to read from, sorted by name.

        If the name server does not list a topic that is ``known`` to exist, wait for it.
        """

        async def ask() -> list[MessageQueue]:
            topics = await self._admin.topics()
            if not topics:  # every broker has some topics
                raise no_broker()
            for topic in known:
                if topic not in topics:
                    raise _not_listed(topic)
            check_topics_in(topics, self._options)
            wanted = [t for t in topics if self._options.follows(t)]
            if bounds.topics is not None:
                wanted = [topic for topic in wanted if topic in bounds.topics]
            # If a topic is deleted or its broker stops in between, the retry does not list it.
            found = await gathered(wanted, self._admin.queues)
            return [q for queues in found for q in queues if is_in(bounds, q.topic, q.queue_id)]

        return self._loop.run(self._retry.ask(ask, "listing the topics"))

    def await_queues(self, needed: Mapping[str, Collection[QueueName]]) -> None:
        """Wait until the name server lists these queues; log a warning after the retry timeout."""

        async def ask() -> None:
            for topic, names in needed.items():
                listed = {name_of(queue) for queue in await self._admin.queues(topic)}
                if not listed.issuperset(names):
                    raise _not_listed(topic)

        try:
            self._loop.run(self._retry.ask(ask, "waiting for queues"))
        except PipelineError as error:
            if not isinstance(error.__cause__, RequestError):
                raise
            LOGGER.warning("%s", error)

    def masters(self) -> set[str]:
        """Return the names of the brokers that are registered as masters."""
        return set(self._loop.run(self._retry.ask(self._admin.masters, "listing the brokers")))

    def ends(
        self, queues: Iterable[MessageQueue], reach: Mapping[MessageQueue, int] = NO_ENDS
    ) -> list[OffsetRange]:
        """Return the current first and end offsets of queues.

        Args:
            queues: The queues.
            reach: Ends that queues must reach, for which this waits. Default: none.
        """

        async def ask(queue: MessageQueue) -> OffsetRange:
            low = max(await self._admin.offsets.lowest(queue), 0)
            found = OffsetRange(queue, low, max(await self._admin.offsets.end(queue), low))
            if found.high < reach.get(queue, 0):
                remark = (
                    f"queue {found.name} ends at {found.high}, but was read up to {reach[queue]}: "
                    "the broker may show the rest when its replicas have confirmed it"
                )
                raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
            return found

        return self._each(queues, ask, lambda queue: queue)

    def commit(self, offsets: Iterable[tuple[MessageQueue, int]], group: str) -> None:
        """Write the offsets of a consumer group."""

        async def ask(item: tuple[MessageQueue, int]) -> str:
            return await self._admin.offsets.commit(group, *item)

        self._each(offsets, ask, lambda item: item[0])

    # -- single messages ----------------------------------------------------------------------

    def sizes(self, queues: Iterable[tuple[MessageQueue, int, int]]) -> list[int]:
        """Estimate the size of each range in bytes from its first messages."""

        async def ask(asked: tuple[MessageQueue, int, int]) -> int:
            queue, begin, end = asked
            records = (await self._pull(queue, begin, SAMPLE)).records
            count, at = 0, 0
            while size := int.from_bytes(records[at : at + 4], "big"):  # 0 after the last one
                at += size
                count += 1
            return (end - begin) * (len(records) // max(count, 1))

        return self._each(queues, ask, lambda asked: asked[0])

    def cut(
        self,
        ranges: Iterable[tuple[MessageQueue, int, int]],
        times_of: Callable[[MessageQueue], tuple[int, int]],
        physical_offsets: tuple[int, int] = (0, OFFSET_MAX),
    ) -> list[tuple[int, int]]:
        """Cut ranges to the messages within the given store times and physical offsets.

        The search is an exact bisection. Brokers can search by time themselves, but some versions
        return the message nearest to it and others the first one after it.
        """

        async def ask(asked: tuple[MessageQueue, int, int]) -> tuple[int, int]:
            queue, begin, end = asked
            for (low, high), limits, field in (
                (times_of(queue), (TIME_MIN, TIME_MAX), attrgetter("store_time")),
                (physical_offsets, (0, OFFSET_MAX), attrgetter("physical_offset")),
            ):
                if low > limits[0]:
                    begin = await self._first(queue, begin, end, field, low, unknown=True)
                if high < limits[1]:
                    end = await self._first(queue, begin, end, field, high, unknown=False)
            return begin, end

        return self._each(ranges, ask, lambda asked: asked[0])

    async def _first(
        self,
        queue: MessageQueue,
        begin: int,
        end: int,
        field: Callable[[Record], int],
        value: int,
        *,
        unknown: bool,
    ) -> int:
        """Return the first offset whose message has at least ``value`` in an increasing field.

        Messages that retention has deleted count as smaller. A message that the broker does not
        return although it should have it must not hide others, so ``unknown`` says whether it
        counts: it must in a search for the beginning of a range, and must not for its end.
        """
        while begin < end:
            middle = (begin + end) // 2
            answer = await self._pull(queue, middle, 1)
            if answer.records:
                is_reached = field(decode_received(answer.records)) >= value
            else:
                is_reached = unknown and middle >= answer.min_offset
            if is_reached:
                end = middle
            else:
                begin = middle + 1
        return begin

    async def _pull(self, queue: MessageQueue, offset: int, count: int) -> PullResult:
        await self._session.route(queue.topic)
        return await self._puller.ask(queue, offset, by_tags(queue.topic), count=count)
