"""The simple consumer: receives messages on request and acknowledges each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from firetrail.client.cluster.backoff import REACH_S
from firetrail.client.cluster.client_arguments import checked_group, one_of
from firetrail.client.cluster.cluster_client import ClusterClient, finished_by_close
from firetrail.client.cluster.independent_steps import StepFailures
from firetrail.client.consumers.pending_pops import PendingPops, PopArguments
from firetrail.client.consumers.pop_client import PopClient, Popped
from firetrail.client.consumers.subscription import check_with_brokers, wanted_of
from firetrail.client.consumers.topic_queues import TOPIC_POLL_S, TopicQueues
from firetrail.errors import RequestError, WrongTypeError
from firetrail.format.values.arguments import MS, instance, number, seconds
from firetrail.remoting.connections.access import Access
from firetrail.remoting.messages.bodies import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)
from firetrail.remoting.wire.codes import ResponseCode

BROKER_POLL_S = 0.5
"""Pause before brokers are asked again that all failed for the moment."""
COUNT_MAX = 32
"""Maximum number of messages that a broker returns for one pop."""


class _PopSource(NamedTuple):
    """A subscription, and a broker that has queues of its topic."""

    wanted: SubscriptionData
    broker_name: str


class SimpleConsumer(ClusterClient):
    """Receives messages of topics as a member of a group, whenever the program asks for some::

        async with SimpleConsumer("127.0.0.1:9876", "billing", {"orders": "paid"}) as consumer:
            for message in await consumer.receive(invisible_s=30):
                print(message.body)
                await consumer.ack(message)

    A received message is invisible to the other members for ``invisible_s``. If it is not
    acknowledged by then, it is redelivered to any member, with its ``reconsume_times`` one higher.
    The brokers must support POP: Firetrail, or RocketMQ 5.x.

    Args:
        namesrv: The address ``host:port`` of a name server, or several: a sequence, or a string
            that separates them by ``;``.
        group: The name of the consumer group.
        topics: The subscriptions by topic: tags such as ``"a || b"``, ``"*"`` for all messages, or
            the result of :func:`by_sql`.
        start: Where a group without offsets starts. ``FIRST_OFFSET``: at the first message of each
            queue. Otherwise (``LAST_OFFSET``, the default) the broker decides for each queue, as in
            RocketMQ: At message 0 if the queue still has it and it is recent enough to be in the
            broker's memory, else at the last message. So a queue with few messages is received
            from its first one. A topic that is created later is always received from its first
            message.
        access: Credentials and TLS. Default: those in the environment
            (:mod:`firetrail.remoting.connections.access`).

    Raises:
        ConfigError: An argument is out of range; WrongTypeError if it has the wrong type.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        topics: Mapping[str, str | SubscriptionData],
        *,
        start: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET,
        access: Access | None = None,
    ) -> None:
        super().__init__(namesrv, access=access)
        self.group = checked_group(group)
        self._start = one_of(ConsumeFromWhere, "start", start)
        self._wanted = list(wanted_of(topics).values())
        self._topics = TopicQueues(self._session, group)
        self._popper = PopClient(self._session, group, self._starts_at_first)
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

    def _starts_at_first(self, topic: str) -> bool:
        return self._start is ConsumeFromWhere.FIRST_OFFSET or topic in self._topics.late

    # -- receiving ----------------------------------------------------------------------------

    async def receive(
        self, count: int = 16, *, invisible_s: float = 60.0, wait_s: float = 15.0
    ) -> list[Popped]:
        """Return messages as soon as there are any, or an empty list after ``wait_s``.

        If a topic does not exist yet, this looks for it every second. If a broker does not answer,
        the others are asked nevertheless; the failure is raised only if they have no messages. If
        all brokers fail with a retriable error, for example while a replica becomes the master,
        they are asked again until ``wait_s`` is over.

        If this call is cancelled, messages that arrive afterwards go to the next call with the
        same ``count`` and ``invisible_s``. If no such call is waiting, they are returned to the
        broker, which redelivers them at once, with their ``reconsume_times`` one higher.

        Args:
            count: The most messages to return, 1 to 32. Default: 16.
            invisible_s: How long the messages are hidden from the other members, in seconds; they
                have to be acknowledged within this time. Default: 60.
            wait_s: The time for which to wait for the first message, in seconds. Default: 15.

        Raises:
            RequestError: A broker or name server answered with an error.
            OSError: A broker could not be reached, or did not answer in time (TimeoutError).
            ClientClosedError: The consumer is not open, or was closed during the call.
        """
        self._session.check_open()
        number("count", count, 1, COUNT_MAX)
        seconds("invisible_s", invisible_s, MS)
        seconds("wait_s", wait_s)
        clock = asyncio.get_running_loop().time
        deadline = clock() + wait_s
        while True:
            sources = await self._sources()
            step = min(deadline, clock() + TOPIC_POLL_S) if self._topics.missing else deadline
            alone = len(sources) == 1
            failures = StepFailures()
            answered: list[_PopSource] = []
            for source in sources:
                poll_s = max(step - clock(), 0.0) if alone else 0.0
                ask = PopArguments(*source, count, invisible_s)
                with failures.noted():
                    found = await self._receiving.messages(ask, poll_s)
                    if found:
                        return found
                    answered.append(source)
            has_failed = bool(sources) and not answered
            if has_failed and failures.may_pass and clock() + BROKER_POLL_S < deadline:
                await self._receiving.pause(BROKER_POLL_S)
                continue
            if has_failed or clock() >= deadline:
                failures.raise_first()
                return []
            if alone or await self._wait(answered, step - clock()):
                continue
            if not self._topics.missing:
                failures.raise_first()
                return []
            await self._receiving.pause(max(step - clock(), 0.0))

    async def _sources(self) -> list[_PopSource]:
        """Return the sources of all existing topics, each time starting with another one."""
        found = []
        for wanted in self._wanted:
            queues = await self._topics.find(wanted.topic)
            names = dict.fromkeys(queue.broker_name for queue in queues)
            found += [_PopSource(wanted, name) for name in names]
        if not found and not self._topics.missing:
            topics = ", ".join(wanted.topic for wanted in self._wanted)
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"no broker has queues of {topics}")
        self._turn += 1
        first = self._turn % len(found) if found else 0
        return found[first:] + found[:first]

    async def _wait(self, sources: Sequence[_PopSource], wait_s: float) -> bool:
        """Wait until one of several brokers has messages; return False if none has in time."""
        asked = [
            asyncio.ensure_future(self._popper.has_messages(broker_name, wanted.topic, wait_s))
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

    # -- acknowledging ------------------------------------------------------------------------

    @finished_by_close
    async def ack(self, *messages: Popped) -> None:
        """Acknowledge messages, so that they are not redelivered.

        A message whose invisible time is over is redelivered anyway, without an error here. If the
        call is cancelled, some messages may be acknowledged; repeating the call does no harm. While
        a broker cannot be reached, this waits for it, for at most 10 s.

        Args:
            messages: Messages that :meth:`receive` or :meth:`change_invisible` returned.

        Raises:
            RequestError: A broker rejected the acknowledgement.
            OSError: A broker could not be reached, or did not answer in time (TimeoutError).
            ClientClosedError: The consumer is not open, or was closed during the call.
        """
        self._session.check_open()
        for message in messages:
            _check_popped(message)

        async def ack() -> None:
            await self._refresh_routes()
            await self._receiving.ack(messages)

        await self._backoff.until_reached(ack, REACH_S, is_harmless=True)

    @finished_by_close
    async def change_invisible(self, message: Popped, invisible_s: float) -> Popped:
        """Change the invisible time of a message, to keep it longer or have it redelivered soon.

        From then on, only the returned message can be acknowledged. If the call is cancelled, the
        change may have taken effect, and the message is then redelivered after ``invisible_s``.

        Args:
            message: A message that was received and not acknowledged.
            invisible_s: The new invisible time, in seconds from now; 0 redelivers at once.

        Returns:
            The message with a new receipt.

        Raises:
            The same errors as :meth:`ack`.
        """
        self._session.check_open()
        _check_popped(message)
        seconds("invisible_s", invisible_s)

        async def change() -> Popped:
            await self._refresh_routes()
            return await self._popper.change(message, invisible_s)

        return await self._backoff.until_reached(change, REACH_S)

    async def _refresh_routes(self) -> None:
        """Request outdated routes: another broker may have become the master."""
        for wanted in self._wanted:
            await self._topics.find(wanted.topic)


def _check_popped(message: object) -> None:
    if isinstance(message, list | tuple):
        raise WrongTypeError("message", message, "unpack the list: ack(*messages)")
    instance("message", message, Popped)
