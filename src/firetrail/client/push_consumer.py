"""The push consumer: its group shares the queues of the topics, and messages come by themselves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from firetrail.client.arguments import INT32_MAX, checked_group, checked_queue, one_of
from firetrail.client.callbacks import CallbackHandlers
from firetrail.client.cluster_client import ClusterClient
from firetrail.client.failures import Failures
from firetrail.client.listener import Listener, ListenerCall
from firetrail.client.local_offsets import INSTANCE, LocalOffsets, Place
from firetrail.client.offsets import Offsets
from firetrail.client.process_queue import ProcessQueue, drop_all
from firetrail.client.pull import Puller
from firetrail.client.queue_locks import HANDOVER_LOOK_S, RELOCK_S, QueueLocks
from firetrail.client.rebalance import Strategy, averagely
from firetrail.client.received import Received
from firetrail.client.start_position import StartPosition, has_consumed
from firetrail.client.subscription import by_tags, check_with_brokers, wanted_of
from firetrail.client.topic_queues import TOPIC_S, TopicQueues
from firetrail.errors import FiretrailError
from firetrail.format.arguments import function, mapping, number, truth
from firetrail.format.names import RETRY_PREFIX
from firetrail.remoting.bodies import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumerIdList,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    MessageQueue,
    SubscriptionData,
)
from firetrail.remoting.codes import RequestCode
from firetrail.remoting.headers import GroupHeader, SendBackHeader

REBALANCE_S = 20.0
COMMIT_S = 5.0
GIVE_UP_S = 1.0
"""How long a queue that goes to another member waits for messages that are being consumed. Where
the order does not matter, those that take longer are redelivered to the other member."""
AGAIN_S = 1.0
"""Before a message whose consumption failed is tried again, where the order matters."""
SEND_BACK_S = 5.0
"""Before a message is given back again to a broker that has not taken it."""
RETRIES = 16
"""How often a message comes again whose consumption failed, where the order does not matter."""
_BURIED = -1
"""The delay level with which a broker moves a message to the dead-letter topic."""

_log = logging.getLogger(__name__)


class PushConsumer(ClusterClient):
    """Consumes topics as a member of a group::

        async with PushConsumer("127.0.0.1:9876", "billing", on_message, {"orders": "paid"}):
            await asyncio.sleep(3600)

    ``topics`` says which messages of which topic: tags such as ``"a || b"``, ``"*"`` for all, or
    what :func:`by_sql` makes. Every message comes at least once. One whose listener raises comes
    again later, up to ``max_retries`` times (16), and then goes to the dead-letter topic
    ``%DLQ%group``. What the listener returns is ignored.

    ``in_order`` hands over the messages of a queue one after the other. One whose listener raises
    is retried every second, and nothing behind it is consumed until it succeeds. Only if
    ``max_retries`` is given, it goes to the dead-letter topic after so many retries, and the next
    one is consumed.
    With ``MessageModel.BROADCASTING`` each member gets every message from now on, once. How far it
    is stands in a file below ``offsets_folder`` (default: ``~/.rocketmq_offsets``, as in Java), for
    which the members of a group on one machine need an ``instance`` name each. ``concurrency`` is
    the number of messages being consumed at once, of each queue.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        listener: Listener,
        topics: Mapping[str, str | SubscriptionData],
        *,
        in_order: bool = False,
        model: MessageModel = MessageModel.CLUSTERING,
        start: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET,
        start_time_ms: int | None = None,
        strategy: Strategy = averagely,
        concurrency: int = 20,
        max_retries: int | None = None,
        offsets_folder: Path | None = None,
        instance: str = INSTANCE,
    ) -> None:
        super().__init__(namesrv, CallbackHandlers(self).handlers)
        self.group = checked_group(group)
        self._listening = ListenerCall(listener)
        self.in_order = truth("in_order", in_order)
        self._model = one_of(MessageModel, "model", model)
        self._start = StartPosition(one_of(ConsumeFromWhere, "start", start), start_time_ms)
        self._strategy = function("strategy", strategy, "averagely")
        self._concurrency = number("concurrency", concurrency, 1)
        if max_retries is not None:
            number("max_retries", max_retries, most=INT32_MAX)
        self._max_retries = RETRIES if max_retries is None and not in_order else max_retries
        self.wanted = wanted_of(topics)
        if self._model is MessageModel.CLUSTERING:
            retry = RETRY_PREFIX + group
            self.wanted[retry] = by_tags(retry)
        self._puller = Puller(self._session, group)
        self._offsets = Offsets(self._session)
        self._place = Place(offsets_folder, instance)
        self._local: LocalOffsets | None = None
        self._changed = asyncio.Event()
        self._rebalancing = asyncio.Lock()
        self._rebalancer: asyncio.Task[None] | None = None
        self._topics = TopicQueues(self._session, group)
        self._resets: dict[MessageQueue, int] = {}  # where queues that are given up go on
        self._locks = QueueLocks(self._session, group)
        self.opened_ms = 0
        """When it joined the group."""
        self.assigned: dict[MessageQueue, ProcessQueue] = {}
        """The queues that this member has."""

    async def _join(self) -> None:
        self.opened_ms = time.time_ns() // 1_000_000
        if self._model is MessageModel.BROADCASTING:
            self._local = await self._place.open(self._session.client_id, self.group)
        await check_with_brokers(self._session, self.group, self.wanted.values())
        for topic in self.wanted:
            await self._topics.find(topic)
        self._session.beat(self._heartbeat)
        await self._session.beat_now()
        await self._rebalance()
        self._rebalancer = self._session.spawn(self._rebalance_on_change())
        self._session.every(COMMIT_S, self._commit)
        if self._is_shared:
            self._session.every(AGAIN_S if self.in_order else RELOCK_S, self._renew_locks)

    async def _leave(self, grace_s: float, end_s: float) -> None:
        if self._rebalancer is not None:
            self._rebalancer.cancel()
        for task in await drop_all(self.assigned.values(), grace_s):
            task.cancel()
        await self._listening.end(end_s)
        try:
            try:
                await self._commit()
            finally:
                await self._locks.unlock()
        finally:
            await self._session.leave(self.group)
        self.assigned.clear()

    def _heartbeat(self) -> HeartbeatData:
        wanted = list(self.wanted.values())
        me = ConsumerData(self.group, ConsumeType.PASSIVELY, self._model, self._start.where, wanted)
        return HeartbeatData(self._session.client_id, consumer_data_set=[me])

    # -- who has which queues -----------------------------------------------------------------

    def notice_change(self) -> None:
        """The members of the group have changed."""
        self._changed.set()

    async def _rebalance_on_change(self) -> None:
        while True:
            try:
                async with asyncio.timeout(TOPIC_S if self._topics.missing else REBALANCE_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            try:
                await self._rebalance()
            except Exception as error:
                _log.warning("%s: rebalance: %r", self.group, error)
                await asyncio.sleep(1)
                self._changed.set()

    async def rebalance(self) -> None:
        """Take the queues that are this member's by now, and give up the others."""
        self._session.check_open()
        await self._rebalance()

    async def _rebalance(self) -> None:
        async with self._rebalancing:
            failures = Failures()
            shares: dict[str, list[MessageQueue]] = {}
            for topic in self.wanted:
                with failures.noted():
                    mine = await self._mine(topic)
                    if mine is not None:
                        shares[topic] = mine
            with failures.noted():
                await self._give_up(
                    queue
                    for queue, taken in self.assigned.items()
                    if taken.dropped or queue not in shares.get(queue.topic, [queue])
                )
            for topic, mine in shares.items():
                with failures.noted():
                    await self._take_over(topic, mine)
            failures.raise_first()

    async def _mine(self, topic: str) -> list[MessageQueue] | None:
        """This member's queues of a topic; None if the group does not know this member yet."""
        queues = await self._topics.find(topic)
        if self._model is MessageModel.BROADCASTING or not queues:
            return queues
        members = await self._members(dict.fromkeys(queue.broker_name for queue in queues))
        if self._session.client_id not in members:
            await self._session.beat_now()
            return None
        return self._strategy(self._session.client_id, members, queues)

    async def _members(self, brokers: Iterable[str]) -> list[str]:
        """The members of the group, as the first of the brokers says that answers."""
        failures = Failures()
        for broker in brokers:
            with failures.noted():
                answer = await self._session.ask(
                    self._session.address_of(broker),
                    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
                    GroupHeader(self.group),
                )
                return sorted(ConsumerIdList.decode(answer.content).consumer_id_list)
        failures.raise_first()
        return []

    async def _take_over(self, topic: str, mine: Sequence[MessageQueue]) -> None:
        """Begin to consume the queues of a topic that are new, and not in use by others."""
        await self._locks.keep_only(topic, [*mine, *self.assigned])
        new = [queue for queue in mine if queue not in self.assigned]
        if new and self._is_shared:
            take = self._locks.lock if self.in_order else self._locks.take_over
            wanted, new = new, await take(new)
            if len(new) < len(wanted):
                pause_s = AGAIN_S if self.in_order else HANDOVER_LOOK_S
                asyncio.get_running_loop().call_later(pause_s, self._changed.set)
        if new and await self._has_begun(topic):
            self._topics.late.add(topic)
        failures = Failures()
        for queue in new:
            with failures.noted():
                first = await self._first_offset(queue)
                taken = ProcessQueue(
                    queue, self.wanted[topic], first, self._concurrency, self._may_consume
                )
                self.assigned[queue] = taken
                taken.start(self._session, self._puller, self._consume, in_order=self.in_order)
        failures.raise_first()

    async def _give_up(self, queues: Iterable[MessageQueue]) -> None:
        """Stop consuming queues. If this is cancelled, the next rebalance goes on with it.

        All of them wait for their listeners at the same time: other members wait for the queues.
        """
        given_up = list(queues)
        await drop_all([self.assigned[queue] for queue in given_up], GIVE_UP_S)
        failures = Failures()
        for queue in given_up:
            with failures.noted():
                await self._hand_over(queue, self.assigned[queue])
        failures.raise_first()

    async def _hand_over(self, queue: MessageQueue, taken: ProcessQueue) -> None:
        """Let the next member have a queue, from where this one has stopped.

        A broker that has left the cluster cannot be told the offset; that keeps no queue. Only an
        offset that was set by an administrator is committed before anything else.
        """
        if self.in_order and taken.is_busy:  # nobody may have the next message before that ends
            asyncio.get_running_loop().call_later(AGAIN_S, self._changed.set)
            return
        try:
            await self._keep(queue, self._reached(queue, taken))
        except (OSError, FiretrailError) as error:
            if queue in self._resets:
                raise
            _log.warning(
                "%s: %s queue %d on %s was given up, but its offset could not be committed, so "
                "some of its messages may be redelivered: %s",
                self.group,
                queue.topic,
                queue.queue_id,
                queue.broker_name,
                error,
            )
        await self._locks.unlock([queue])
        self._resets.pop(queue, None)
        del self.assigned[queue]

    def _reached(self, queue: MessageQueue, taken: ProcessQueue) -> int:
        """Where the group goes on with a queue of this member."""
        return self._resets.get(queue, taken.offset)

    async def _keep(self, queue: MessageQueue, offset: int) -> None:
        if self._local is None:
            await self._offsets.commit(self.group, queue, offset)
        else:
            await self._local.save({queue: offset})

    async def go_on_at(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Consume queues from other offsets on; of those that this member does not have, nothing.

        What is being consumed may be redelivered. If this is cancelled, all queues go on at
        the other offsets, or none.
        """
        self._session.check_open()
        for queue, offset in mapping("offsets", offsets).items():
            number(f"offsets[{checked_queue(queue)}]", offset)
        async with self._rebalancing:
            self._resets |= {queue: at for queue, at in offsets.items() if queue in self.assigned}
            for queue in self._resets:
                self.assigned[queue].dropped = True
            self._changed.set()  # the rebalance finishes what is not finished here
            await self._give_up(self._resets)
        self._changed.set()

    async def _first_offset(self, queue: MessageQueue) -> int:
        if self._local is None:
            stored = await self._offsets.committed(self.group, queue)
        else:
            stored = self._local.get(queue)
        if stored is not None:
            return stored
        return await self._start.offset(
            self._offsets, queue, is_new=queue.topic in self._topics.late
        )

    async def _has_begun(self, topic: str) -> bool:
        """Whether the group consumes a topic already; then queues without an offset are new."""
        if self._local is not None or self._start.where is not ConsumeFromWhere.LAST_OFFSET:
            return False
        if topic in self._topics.late or any(queue.topic == topic for queue in self.assigned):
            return True
        return await has_consumed(self._offsets, self.group, await self._topics.find(topic))

    # -- locks --------------------------------------------------------------------------------

    @property
    def _is_shared(self) -> bool:
        """Whether each queue is consumed by one member at a time."""
        return self._model is MessageModel.CLUSTERING

    def _may_consume(self, queue: MessageQueue) -> bool:
        return not (self.in_order and self._is_shared) or self._locks.holds(queue)

    async def _renew_locks(self) -> None:
        """Renew locks that are old, lost with a connection, or refused the last time.

        That of a queue that is being given up is renewed only until the listener is done with it.
        """
        due = [
            queue
            for queue, taken in self.assigned.items()
            if self._locks.is_due(queue)
            and (not taken.dropped or (self.in_order and taken.is_busy))
        ]
        if due:
            await self._locks.lock(due)

    # -- consuming ----------------------------------------------------------------------------

    async def _consume(self, taken: ProcessQueue, message: Received) -> bool:
        """Let the listener have it, until it is done with or on its way to come again."""
        while not self.in_order or await taken.is_mine():
            error = await self.consume_now(message)
            if error is None:
                return True
            retried = message.reconsume_times + 1
            _log.warning("%s: message %s: %r", self.group, message.message_id, error)
            if self.in_order and (self._max_retries is None or retried <= self._max_retries):
                await asyncio.sleep(AGAIN_S)
                if await taken.is_elsewhere(self._puller, message):
                    return False
                message = message.tried(retried)
            elif self._model is MessageModel.BROADCASTING:
                _log.error("%s: message %s is skipped", self.group, message.message_id)
                return True
            else:
                return await self._send_back(taken, message)
        return False

    async def consume_now(self, message: Received) -> BaseException | None:
        """Give a message to the listener; None, or why it has not consumed it."""
        return await self._listening.outcome(message)

    async def _send_back(self, taken: ProcessQueue, message: Received) -> bool:
        """Give a message back to its broker, which sends it again later or buries it.

        An ordered one has been retried in place: it is buried at once. False if the queue was
        given up before the broker took it.
        """
        header = SendBackHeader(
            offset=message.record.physical_offset,
            group=self.group,
            delay_level=_BURIED if self.in_order else 0,
            origin_msg_id=message.message_id,
            origin_topic=message.topic,
            max_reconsume_times=self._max_retries,
        )
        while not taken.dropped:
            try:
                address = self._session.address_of(message.queue.broker_name)
                await self._session.ask(address, RequestCode.CONSUMER_SEND_MSG_BACK, header)
                return True
            except (OSError, FiretrailError) as error:
                _log.warning("%s: giving %s back: %s", self.group, message.message_id, error)
                await asyncio.sleep(SEND_BACK_S)
        return False

    async def commit(self) -> None:
        """Store the offsets up to which everything is consumed."""
        self._session.check_open()
        await self._commit()

    async def _commit(self) -> None:
        if self._local is not None:
            await self._local.save({q: self._reached(q, t) for q, t in self.assigned.items()})
            return
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in self.assigned:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        failures = Failures()
        for queues in by_broker.values():
            with failures.noted():
                await self._commit_all(queues)
        failures.raise_first()

    async def _commit_all(self, queues: Iterable[MessageQueue]) -> None:
        """Commit the offsets of queues of one broker."""
        for queue in queues:
            taken = self.assigned.get(queue)
            if taken is None:  # given up meanwhile
                continue
            offset = self._reached(queue, taken)
            if offset != taken.committed:
                await self._offsets.commit(self.group, queue, offset)
                taken.committed = offset  # it may be further by now
