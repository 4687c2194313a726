"""The push consumer: the members of its group share the queues of the topics they subscribe to."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from firetrail.client.cluster.client_arguments import checked_group, checked_queue, one_of
from firetrail.client.cluster.cluster_client import ClusterClient
from firetrail.client.cluster.independent_steps import StepFailures
from firetrail.client.cluster.offsets import Offsets
from firetrail.client.consumers.pull_client import PullClient
from firetrail.client.consumers.push.callbacks import CallbackHandlers
from firetrail.client.consumers.push.commits import Commits
from firetrail.client.consumers.push.group_requests import GroupRequests
from firetrail.client.consumers.push.listener import Listener, ListenerCall
from firetrail.client.consumers.push.local_offsets import INSTANCE, LocalOffsets, Place
from firetrail.client.consumers.push.process_queue import ProcessQueue, drop_all
from firetrail.client.consumers.push.queue_locks import (
    HANDOVER_POLL_S,
    LOCK_RENEWAL_S,
    QueueLocks,
    by_broker,
)
from firetrail.client.consumers.push.rebalance import Strategy, averagely
from firetrail.client.consumers.push.start_position import StartPosition, has_consumed
from firetrail.client.consumers.subscription import by_tags, check_with_brokers, wanted_of
from firetrail.client.consumers.topic_queues import TOPIC_POLL_S, TopicQueues
from firetrail.client.messages.received_message import Received
from firetrail.errors import FiretrailError
from firetrail.format.names import retry_topic
from firetrail.format.values.arguments import function, mapping, number, truth
from firetrail.format.values.integers import INT32_MAX
from firetrail.pace.periodic import woken
from firetrail.remoting.connections.access import Access
from firetrail.remoting.messages.bodies import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    MessageQueue,
    SubscriptionData,
)
from firetrail.system import SYSTEM

REBALANCE_S = 20.0
"""Interval of rebalances while no change of the group's members is reported."""
COMMIT_S = 5.0
"""Interval of commits."""
HANDOVER_GRACE_S = 1.0
"""The time for which running listeners may delay the handover of a queue to another member. Without
``in_order``, messages whose listeners take longer are redelivered to the other member."""
IN_ORDER_RETRY_S = 1.0
"""With ``in_order``: pause before a failed message, or a queue in use elsewhere, is retried."""
DEFAULT_RETRIES = 16
"""Without ``in_order``: how often a failed message is redelivered by default."""

_log = logging.getLogger(__name__)


class PushConsumer(ClusterClient):
    """Consumes topics as a member of a group::

        async with PushConsumer("127.0.0.1:9876", "billing", on_message, {"orders": "paid"}):
            await asyncio.sleep(3600)

    Every message is delivered at least once. All members of a group must subscribe to the same
    topics in the same way.

    Args:
        namesrv: The address ``host:port`` of a name server, or several: a sequence, or a string
            that separates them by ``;``.
        group: The name of the consumer group.
        listener: The function, plain or async, that consumes a message. The message is retried if
            it raises; its return value is ignored.
        topics: The subscriptions by topic: tags such as ``"a || b"``, ``"*"`` for all messages, or
            the result of :func:`by_sql`.
        in_order: Whether the messages of a queue are consumed one at a time, in their order. A
            failed message is then retried every second, and the messages after it wait. Default:
            False.
        model: ``CLUSTERING`` (the default) shares the messages among the members of the group;
            ``BROADCASTING`` delivers every message to every member, without redelivery.
        start: Where a group without offsets starts: ``LAST_OFFSET`` (the end, the default),
            ``FIRST_OFFSET``, or ``TIMESTAMP`` for ``start_time_ms``.
        start_time_ms: The store time to start at, in ms since 1970; only with ``TIMESTAMP``.
            Default: Half an hour ago.
        strategy: How the queues are distributed over the members, the same in every member.
            Default: :func:`averagely`.
        concurrency: The number of messages of each queue that may be consumed at once. Default: 20.
        max_retries: Maximum retries of a failed message; then it is moved to the dead-letter
            topic ``%DLQ%group``. Default: 16; with ``in_order``, without limit.
        offsets_folder: With ``BROADCASTING``, the folder for the offsets of this member. Default:
            ``~/.rocketmq_offsets``, as in Java.
        instance: With ``BROADCASTING``, the name of this member in ``offsets_folder``, different
            for each member on a machine. Default: ``DEFAULT``, as in Java.
        access: Credentials and TLS. Default: those in the environment
            (:mod:`firetrail.remoting.connections.access`).

    Raises:
        ConfigError: An argument is out of range; WrongTypeError if it has the wrong type.
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
        access: Access | None = None,
    ) -> None:
        super().__init__(namesrv, CallbackHandlers(self).handlers, access)
        self.group = checked_group(group)
        self._listening = ListenerCall(listener)
        self.in_order = truth("in_order", in_order)
        self._model = one_of(MessageModel, "model", model)
        self._start = StartPosition(one_of(ConsumeFromWhere, "start", start), start_time_ms)
        self._strategy = function("strategy", strategy, "averagely")
        self._concurrency = number("concurrency", concurrency, 1)
        if max_retries is not None:
            number("max_retries", max_retries, most=INT32_MAX)
        self._max_retries = DEFAULT_RETRIES if max_retries is None and not in_order else max_retries
        self.wanted = wanted_of(topics)
        if self._model is MessageModel.CLUSTERING:
            retry = retry_topic(group)
            self.wanted[retry] = by_tags(retry)
        self._requests = GroupRequests(self._session, group)
        self._puller = PullClient(self._session, group)
        self._offsets = Offsets(self._session)
        self._place = Place(offsets_folder, instance)
        self._local: LocalOffsets | None = None
        self._changed = asyncio.Event()
        self._rebalancing = asyncio.Lock()
        self._rebalancer: asyncio.Task[None] | None = None
        self._is_leaving = False
        self._topics = TopicQueues(self._session, group)
        self._resets: dict[MessageQueue, int] = {}  # offsets set by an administrator, not yet used
        self._locks = QueueLocks(self._session, group)
        self._commits = Commits(group, self._offsets, self._locks)
        self.opened_ms = 0
        """The time at which this member joined the group, in ms since 1970."""
        self.assigned: dict[MessageQueue, ProcessQueue] = {}
        """The queues that are assigned to this member."""

    async def _join(self) -> None:
        self.opened_ms = SYSTEM.clock.now_ms()
        self._is_leaving = False
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
            renewal_s = IN_ORDER_RETRY_S if self.in_order else LOCK_RENEWAL_S
            self._session.every(renewal_s, self._renew_locks)

    async def _leave(self, grace_s: float, end_s: float) -> None:
        if self._rebalancer is not None:
            self._rebalancer.cancel()
        for task in await drop_all(self.assigned.values(), grace_s):
            task.cancel()
        await self._listening.end(end_s)
        is_repeated, self._is_leaving = self._is_leaving, True
        may_release = True
        try:
            await self._commit(is_last=True)
        except asyncio.CancelledError:
            may_release = is_repeated  # this is called again, and the next member must wait for it
            raise
        finally:
            if may_release:
                await self._release()
        self.assigned.clear()

    async def _release(self) -> None:
        """Let other members take over the queues."""
        try:
            await self._locks.unlock()
        finally:
            await self._session.leave(self.group)

    def _heartbeat(self) -> HeartbeatData:
        wanted = list(self.wanted.values())
        me = ConsumerData(self.group, ConsumeType.PASSIVELY, self._model, self._start.where, wanted)
        return HeartbeatData(self._session.client_id, consumer_data_set=[me])

    # -- assignment of queues -----------------------------------------------------------------

    def notice_change(self) -> None:
        """Rebalance soon, because the members of the group have changed."""
        self._changed.set()

    async def _rebalance_on_change(self) -> None:
        while True:
            await woken(self._changed, TOPIC_POLL_S if self._topics.missing else REBALANCE_S)
            try:
                await self._rebalance()
            except Exception as error:
                _log.warning("%s: a rebalance failed; retrying in 1 s: %r", self.group, error)
                await asyncio.sleep(1)
                self._changed.set()

    async def rebalance(self) -> None:
        """Take the queues that are assigned to this member now, and give up the others.

        The consumer does so by itself when members join or leave, and every 20 s.
        """
        self._session.check_open()
        await self._rebalance()

    async def _rebalance(self) -> None:
        async with self._rebalancing:
            failures = StepFailures()
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
        """Return this member's queues of a topic; None if the group does not know it yet."""
        queues = await self._topics.find(topic)
        if self._model is MessageModel.BROADCASTING or not queues:
            return queues
        brokers = dict.fromkeys(queue.broker_name for queue in queues)
        members = await self._requests.members(brokers)
        if self._session.client_id not in members:
            await self._session.beat_now()
            return None
        return self._strategy(self._session.client_id, members, queues)

    async def _take_over(self, topic: str, mine: Sequence[MessageQueue]) -> None:
        """Start to consume the newly assigned queues of a topic that no other member uses."""
        await self._locks.keep_only(topic, [*mine, *self.assigned])
        new = [queue for queue in mine if queue not in self.assigned]
        if new and self._is_shared:
            take = self._locks.lock if self.in_order else self._locks.take_over
            wanted, new = new, await take(new)
            if len(new) < len(wanted):
                pause_s = IN_ORDER_RETRY_S if self.in_order else HANDOVER_POLL_S
                asyncio.get_running_loop().call_later(pause_s, self._changed.set)
        if new and await self._has_begun(topic):
            self._topics.late.add(topic)
        failures = StepFailures()
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
        """Stop consuming queues. If this is cancelled, the next rebalance completes it.

        The queues wait for their listeners in parallel, because other members wait for the queues.
        """
        given_up = list(queues)
        await drop_all([self.assigned[queue] for queue in given_up], HANDOVER_GRACE_S)
        failures = StepFailures()
        for queue in given_up:
            with failures.noted():
                await self._hand_over(queue, self.assigned[queue])
        failures.raise_first()

    async def _hand_over(self, queue: MessageQueue, taken: ProcessQueue) -> None:
        """Release a queue to the next member, which continues where this one stopped.

        A queue is given up even if its offset cannot be committed, for example because the broker
        has left the cluster. Only an offset set by an administrator must be committed first.
        """
        if self.in_order and taken.is_busy:  # the next message must wait for the end of this one
            asyncio.get_running_loop().call_later(IN_ORDER_RETRY_S, self._changed.set)
            return
        try:
            await self._save_offset(queue, taken)
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
        """Return the offset at which the group continues in a queue of this member."""
        return self._resets.get(queue, taken.offset)

    async def _save_offset(self, queue: MessageQueue, taken: ProcessQueue) -> None:
        offset = self._reached(queue, taken)
        if self._local is not None:
            await self._local.save({queue: offset})
        elif queue in self._resets:
            await self._commits.force(queue, taken, offset)
        else:
            await self._commits.advance(queue, taken, offset)

    async def continue_at(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at other offsets. Messages that are being consumed may be redelivered.

        If this call is cancelled, either all queues continue at the new offsets or none.

        Args:
            offsets: The new offsets; queues that are not assigned to this member are ignored.
        """
        self._session.check_open()
        for queue, offset in mapping("offsets", offsets).items():
            number(f"offsets[{checked_queue(queue)}]", offset)
        async with self._rebalancing:
            self._resets |= {queue: at for queue, at in offsets.items() if queue in self.assigned}
            for queue in self._resets:
                self.assigned[queue].dropped = True
            self._changed.set()  # the rebalance completes what a cancellation interrupts here
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
        """Return whether the group consumes a topic already, so queues without offset are new."""
        if self._local is not None or self._start.where is not ConsumeFromWhere.LAST_OFFSET:
            return False
        if topic in self._topics.late or any(queue.topic == topic for queue in self.assigned):
            return True
        return await has_consumed(self._offsets, self.group, await self._topics.find(topic))

    # -- locks --------------------------------------------------------------------------------

    @property
    def _is_shared(self) -> bool:
        """Whether the members share the queues, so that each is consumed by one at a time."""
        return self._model is MessageModel.CLUSTERING

    def _may_consume(self, queue: MessageQueue) -> bool:
        return not (self.in_order and self._is_shared) or self._locks.holds(queue)

    async def _renew_locks(self) -> None:
        """Renew locks that are old, were lost with a connection, or were refused the last time.

        The lock of a queue that is being given up is renewed only until its listener returns.
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
        """Consume a message, with retries; return False if the queue was given up first."""
        while not self.in_order or await taken.is_mine():
            error = taken.interruption_of(message) or await self.consume_now(message)
            if error is None:
                return True
            retried = message.record.retries + 1
            _log.warning(
                "%s: the listener failed on message %s: %r", self.group, message.message_id, error
            )
            if self.in_order and (self._max_retries is None or retried <= self._max_retries):
                await asyncio.sleep(IN_ORDER_RETRY_S)
                if await taken.was_reset(self._puller, message):
                    return False
                message = taken.retried(message.tried(retried))
            elif self._model is MessageModel.BROADCASTING:
                _log.error("%s: message %s is skipped", self.group, message.message_id)
                return True
            else:
                return await self._requests.send_back(
                    message,
                    max_retries=self._max_retries,
                    dead_letter=self.in_order,  # such a message has been retried in place
                    is_dropped=lambda: taken.dropped,
                )
        return False

    async def consume_now(self, message: Received) -> BaseException | None:
        """Call the listener with a message; return None, or the error that it raised.

        Args:
            message: The message. It is neither committed nor retried.
        """
        return await self._listening.outcome(message)

    async def commit(self) -> None:
        """Commit the offsets up to which all messages are consumed, instead of within 5 s."""
        self._session.check_open()
        await self._commit()

    async def _commit(self, *, is_last: bool = False) -> None:
        if self._local is not None:
            await self._local.save({q: self._reached(q, t) for q, t in self.assigned.items()})
            return
        failures = StepFailures()
        self._commits.begin_round(is_last=is_last)
        for _, queues in by_broker(self.assigned):
            with failures.noted():
                await self._commit_all(queues)
        failures.raise_first()

    async def _commit_all(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            taken = self.assigned.get(queue)
            if taken is None:  # it was given up during an earlier commit
                continue
            offset = self._reached(queue, taken)
            if self._commits.is_due(queue, taken, offset):
                save = self._commits.force if queue in self._resets else self._commits.commit
                await save(queue, taken, offset)
