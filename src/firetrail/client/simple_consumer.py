"""The simple consumer: takes messages when its user asks for some, and acknowledges each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from firetrail.client.arguments import checked_group, one_of
from firetrail.client.cluster_client import ClusterClient, finished_by_close
from firetrail.client.failures import Failures
from firetrail.client.pending_pops import Ask, PendingPops
from firetrail.client.pop import Popped, Popper
from firetrail.client.subscription import check_with_brokers, wanted_of
from firetrail.client.topic_queues import TOPIC_S, TopicQueues
from firetrail.errors import RequestError, WrongTypeError
from firetrail.format.arguments import MS, instance, number, seconds
from firetrail.remoting.bodies import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)
from firetrail.remoting.codes import ResponseCode

COUNT_MAX = 32
"""Messages that a broker gives away at once."""


class _Source(NamedTuple):
    """What is wanted of a topic, and a broker that has queues of it."""

    wanted: SubscriptionData
    broker_name: str


class SimpleConsumer(ClusterClient):
    """Takes messages of topics as one of a group::

        async with SimpleConsumer("127.0.0.1:9876", "billing", {"orders": "paid"}) as consumer:
            for message in await consumer.receive(invisible_s=30):
                print(message.body)
                await consumer.ack(message)

    A message that is received is invisible to the rest of the group for ``invisible_s``. If it is
    not acknowledged by then, somebody receives it again, with one more in its
    ``reconsume_times``. Needs a broker with POP: Firetrail, or RocketMQ 5.x.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        topics: Mapping[str, str | SubscriptionData],
        *,
        start: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET,
    ) -> None:
        super().__init__(namesrv)
        self.group = checked_group(group)
        self._start = one_of(ConsumeFromWhere, "start", start)
        self._wanted = list(wanted_of(topics).values())
        self._topics = TopicQueues(self._session, group)
        self._popper = Popper(self._session, group, self._begins_at_first)
        self._receiving: PendingPops
        self._turn = 0

    async def _join(self) -> None:
        self._receiving = PendingPops(self._session, self._popper)
        await check_with_brokers(self._session, self.group, self._wanted)
        self._session.beat(self._heartbeat)
        await self._sources()

    async def _leave(self, grace_s: float, end_s: float) -> None:
        self._receiving.stop()
        await self._session.leave(self.group)
        await self._receiving.settle()

    def _heartbeat(self) -> HeartbeatData:
        model = MessageModel.CLUSTERING
        me = ConsumerData(self.group, ConsumeType.POP, model, self._start, self._wanted)
        return HeartbeatData(self._session.client_id, consumer_data_set=[me])

    def _begins_at_first(self, topic: str) -> bool:
        return self._start is ConsumeFromWhere.FIRST_OFFSET or topic in self._topics.late

    # -- receiving ----------------------------------------------------------------------------

    async def receive(
        self, count: int = 16, *, invisible_s: float = 60.0, wait_s: float = 15.0
    ) -> list[Popped]:
        """Up to ``count`` messages (32 at most) as soon as there are any, none after ``wait_s``.

        A topic that does not exist yet is looked for every second, and gives all its messages.
        If a broker does not answer, the others are asked all the same; its failure is raised only
        if these have no messages.
        If this is cancelled, messages that were on their way go to the next call with the same
        ``count`` and ``invisible_s``; if there is none when they arrive, they are given back to the
        broker, and are redelivered at once with one more in their ``reconsume_times``.
        """
        self._session.check_open()
        number("count", count, 1, COUNT_MAX)
        seconds("invisible_s", invisible_s, MS)
        seconds("wait_s", wait_s)
        clock = asyncio.get_running_loop().time
        deadline = clock() + wait_s
        while True:
            sources = await self._sources()
            step = min(deadline, clock() + TOPIC_S) if self._topics.missing else deadline
            alone = len(sources) == 1
            failures = Failures()
            answered: list[_Source] = []
            for source in sources:
                patience_s = max(step - clock(), 0.0) if alone else 0.0
                ask = Ask(*source, count, invisible_s)
                with failures.noted():
                    found = await self._receiving.messages(ask, patience_s)
                    if found:
                        return found
                    answered.append(source)
            if (sources and not answered) or clock() >= deadline:
                failures.raise_first()
                return []
            if alone or await self._wait(answered, step - clock()):
                continue
            if not self._topics.missing:
                failures.raise_first()
                return []
            await self._receiving.pause(max(step - clock(), 0.0))

    async def _sources(self) -> list[_Source]:
        """Of the topics that exist, each time beginning with another."""
        found = []
        for wanted in self._wanted:
            queues = await self._topics.find(wanted.topic)
            names = dict.fromkeys(queue.broker_name for queue in queues)
            found += [_Source(wanted, name) for name in names]
        if not found and not self._topics.missing:
            topics = ", ".join(wanted.topic for wanted in self._wanted)
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"no broker has queues of {topics}")
        self._turn += 1
        first = self._turn % len(found) if found else 0
        return found[first:] + found[:first]

    async def _wait(self, sources: Sequence[_Source], wait_s: float) -> bool:
        """Wait until one of several brokers has something; False if none has in time."""
        asked = [
            asyncio.ensure_future(
                self._popper.is_something_there(broker_name, wanted.topic, wait_s)
            )
            for wanted, broker_name in sources
        ]
        try:
            for answer in asyncio.as_completed(asked):
                if await answer:
                    return True
            return False
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    # -- afterwards ---------------------------------------------------------------------------

    @finished_by_close
    async def ack(self, *messages: Popped) -> None:
        """Acknowledge messages, so that they are not redelivered.

        A message whose time is over is redelivered anyway; that is not an error here. If the call
        is cancelled, some may have been acknowledged; calling it again does no harm.
        """
        self._session.check_open()
        for message in messages:
            _check_popped(message)
        await self._receiving.ack(messages)

    @finished_by_close
    async def change_invisible(self, message: Popped, invisible_s: float) -> Popped:
        """Have the message for so many seconds more, or let it come again soon.

        From then on only the message that this returns can be acknowledged. If this is cancelled,
        it may have happened all the same, and the message is then redelivered after that time.
        """
        self._session.check_open()
        _check_popped(message)
        seconds("invisible_s", invisible_s)
        return await self._popper.change(message, invisible_s)


def _check_popped(message: object) -> None:
    if isinstance(message, list | tuple):
        raise WrongTypeError("message", message, "give the messages one by one, as *messages")
    instance("message", message, Popped)
