"""The push consumer: its group shares the queues of the topics, and messages come by themselves."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from firetrail.client.asked import Answers
from firetrail.client.assigned import Assigned
from firetrail.client.local_offsets import FOLDER, INSTANCE, LocalOffsets
from firetrail.client.offsets import Offsets
from firetrail.client.pulling import Puller
from firetrail.client.rebalance import Strategy, averagely
from firetrail.client.received import Received
from firetrail.client.session import Session, queues_of
from firetrail.client.subscription import by_tags
from firetrail.errors import FiretrailError, RequestError
from firetrail.format.names import RETRY_PREFIX
from firetrail.remoting.bodies import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumerIdList,
    ConsumeType,
    HeartbeatData,
    LockBody,
    LockedBody,
    MessageModel,
    MessageQueue,
    SubscriptionData,
)
from firetrail.remoting.codes import Permission, RequestCode, ResponseCode
from firetrail.remoting.headers import GroupHeader, SendBackHeader

REBALANCE_S = 20.0
COMMIT_S = 5.0
RELOCK_S = 20.0
AGAIN_S = 1.0
"""Before a message whose consumption failed is tried again, where the order matters."""
SEND_BACK_S = 5.0
"""Before a message is given back again to a broker that has not taken it."""

Listener = Callable[[Received], Awaitable[None] | None]
"""Consumes a message. If it raises, the message comes again later."""

_log = logging.getLogger(__name__)


class PushConsumer:
    """Consumes topics as a member of a group::

        async with PushConsumer("127.0.0.1:9876", "billing", on_message, {"orders": "paid"}):
            await asyncio.sleep(3600)

    ``topics`` says which messages of which topic: tags such as ``"a || b"``, ``"*"`` for all, or
    what :func:`by_sql` makes. Every message comes at least once. One whose listener raises comes
    again later, up to ``max_retries`` times, and then goes to the dead-letter topic ``%DLQ%group``.

    ``in_order`` hands over the messages of a queue one after the other, each until it succeeds.
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
        max_retries: int = 16,
        offsets_folder: Path | None = None,
        instance: str = INSTANCE,
    ) -> None:
        self.group = group
        self._listener = listener
        self.in_order = in_order
        self._model = model
        self._start = start
        self._start_time_ms = start_time_ms
        self._strategy = strategy
        self._concurrency = concurrency
        self._max_retries = max_retries
        self.wanted: dict[str, SubscriptionData] = {
            topic: by_tags(topic, wanted) if isinstance(wanted, str) else wanted
            for topic, wanted in topics.items()
        }
        if model is MessageModel.CLUSTERING:
            retry = RETRY_PREFIX + group
            self.wanted[retry] = by_tags(retry)
        self._session = Session(namesrv, Answers(self).handlers)
        self._puller = Puller(self._session, group)
        self._offsets = Offsets(self._session)
        self._offsets_folder = offsets_folder
        self._instance = instance
        self._local: LocalOffsets | None = None
        self._changed = asyncio.Event()
        self._rebalancing = asyncio.Lock()
        self.opened_ms = 0
        """When it joined the group."""
        self.assigned: dict[MessageQueue, Assigned] = {}
        """The queues that this member has."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Join the group."""
        await self._session.open()
        self.opened_ms = time.time_ns() // 1_000_000
        try:
            if self._model is MessageModel.BROADCASTING:
                await self._open_local_offsets()
            for topic in self.wanted:
                await self._find(topic)
            self._session.beat(self._heartbeat)
            await self._session.beat_now()
            await self.rebalance()
        except BaseException:
            await self._session.close()
            raise
        self._session.spawn(self._rebalance_on_change())
        self._session.every(COMMIT_S, self.commit)
        if self.in_order:
            self._session.every(RELOCK_S, self._renew_locks)

    async def close(self, grace_s: float = 5.0) -> None:
        """Finish what is being consumed, store the offsets, leave the group."""
        await asyncio.gather(*(taken.stop(grace_s) for taken in self.assigned.values()))
        try:
            await self.commit()
            if self.in_order and self._model is MessageModel.CLUSTERING:
                await self._unlock(list(self.assigned))
        except (OSError, TimeoutError, FiretrailError) as error:
            _log.warning("%s: leaving the group: %s", self.group, error)
        await self._session.leave(self.group)
        await self._session.close()

    async def _open_local_offsets(self) -> None:
        ip = self._session.client_id.partition("@")[0]
        folder = self._offsets_folder or Path.home() / FOLDER
        self._local = LocalOffsets(folder, f"{ip}@{self._instance}", self.group)
        await self._local.load()

    def _heartbeat(self) -> HeartbeatData:
        wanted = list(self.wanted.values())
        me = ConsumerData(self.group, ConsumeType.PASSIVELY, self._model, self._start, wanted)
        return HeartbeatData(self._session.client_id, consumer_data_set=[me])

    # -- who has which queues -----------------------------------------------------------------

    async def _find(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic; none if there is no such topic yet."""
        try:
            return queues_of(topic, await self._session.route(topic), Permission.READ)
        except RequestError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return []

    def notice_change(self) -> None:
        """The members of the group have changed."""
        self._changed.set()

    async def _rebalance_on_change(self) -> None:
        while True:
            try:
                async with asyncio.timeout(REBALANCE_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            try:
                await self.rebalance()
            except (OSError, TimeoutError, FiretrailError) as error:
                _log.warning("%s: rebalance: %s", self.group, error)
                await asyncio.sleep(1)
                self._changed.set()

    async def rebalance(self) -> None:
        """Take the queues that are this member's by now, and give up the others."""
        async with self._rebalancing:
            for topic in self.wanted:
                mine = await self._mine(topic)
                if mine is not None:
                    await self._set_assigned(topic, mine)

    async def _mine(self, topic: str) -> list[MessageQueue] | None:
        """This member's queues of a topic; None if the group does not know this member yet."""
        queues = await self._find(topic)
        if self._model is MessageModel.BROADCASTING or not queues:
            return queues
        broker = queues[0].broker_name
        answer = await self._session.ask(
            self._session.address_of(broker),
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            GroupHeader(self.group),
        )
        members = sorted(ConsumerIdList.decode(answer.content).consumer_id_list)
        if self._session.client_id not in members:
            await self._session.beat_now()
            return None
        return self._strategy(self._session.client_id, members, queues)

    async def _set_assigned(self, topic: str, mine: Sequence[MessageQueue]) -> None:
        for queue in [q for q in self.assigned if q.topic == topic and q not in mine]:
            await self._give_up(queue)
        new = [queue for queue in mine if queue not in self.assigned]
        if new and self.in_order and self._model is MessageModel.CLUSTERING:
            new = await self._lock(new)
        for queue in new:
            taken = Assigned(
                queue, self.wanted[topic], await self._first_offset(queue), self._concurrency
            )
            taken.locked_at = asyncio.get_running_loop().time()
            self.assigned[queue] = taken
            taken.start(self._session, self._puller, self._consume, in_order=self.in_order)

    async def _give_up(self, queue: MessageQueue) -> None:
        taken = self.assigned.pop(queue)
        await taken.stop(AGAIN_S)
        await self._keep(queue, taken.offset)
        if self.in_order and self._model is MessageModel.CLUSTERING:
            await self._unlock([queue])

    async def _keep(self, queue: MessageQueue, offset: int) -> None:
        if self._local is None:
            await self._offsets.commit(self.group, queue, offset)
        else:
            await self._local.save({queue: offset})

    async def go_on_at(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Consume queues from other offsets on; of those that this member does not have, nothing.

        What is being consumed meanwhile may come again.
        """
        async with self._rebalancing:
            for queue, offset in offsets.items():
                taken = self.assigned.pop(queue, None)
                if taken is not None:
                    await taken.stop(AGAIN_S)
                    await self._keep(queue, offset)
        self._changed.set()

    async def _first_offset(self, queue: MessageQueue) -> int:
        if self._local is None:
            stored = await self._offsets.committed(self.group, queue)
        else:
            stored = self._local.get(queue)
        if stored is not None:
            return stored
        if self._start is ConsumeFromWhere.TIMESTAMP:
            half_an_hour_ago = time.time_ns() // 1_000_000 - 30 * 60 * 1000
            return await self._offsets.at_time(queue, self._start_time_ms or half_an_hour_ago)
        if self._start is ConsumeFromWhere.LAST_OFFSET and queue.topic in self.wanted:
            return 0 if queue.topic.startswith(RETRY_PREFIX) else await self._offsets.end(queue)
        return await self._offsets.lowest(queue)

    # -- locks --------------------------------------------------------------------------------

    async def _lock(self, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        """The queues of these that no other client consumes."""
        locked: list[MessageQueue] = []
        for broker in {queue.broker_name for queue in queues}:
            some = [queue for queue in queues if queue.broker_name == broker]
            body = LockBody(self.group, self._session.client_id, some).encode()
            address = self._session.address_of(broker)
            answer = await self._session.ask(address, RequestCode.LOCK_BATCH_MQ, body=body)
            locked += LockedBody.decode(answer.content).locked
        if len(locked) < len(queues):
            asyncio.get_running_loop().call_later(AGAIN_S, self._changed.set)
        return [queue for queue in queues if queue in locked]

    async def _unlock(self, queues: Sequence[MessageQueue]) -> None:
        for broker in {queue.broker_name for queue in queues}:
            some = [queue for queue in queues if queue.broker_name == broker]
            body = LockBody(self.group, self._session.client_id, some).encode()
            address = self._session.address_of(broker)
            await self._session.ask(address, RequestCode.UNLOCK_BATCH_MQ, body=body)

    async def _renew_locks(self) -> None:
        if self._model is MessageModel.CLUSTERING:
            locked = await self._lock(list(self.assigned))
        else:
            locked = list(self.assigned)
        for queue in locked:
            if queue in self.assigned:
                self.assigned[queue].locked_at = asyncio.get_running_loop().time()

    # -- consuming ----------------------------------------------------------------------------

    async def _consume(self, taken: Assigned, message: Received) -> bool:
        """Let the listener have it, until it is done with or on its way to come again."""
        attempt = message.reconsume_times
        while not (self.in_order and taken.dropped):
            try:
                await self.consume_now(message)
                return True
            except Exception as error:
                _log.warning("%s: message %s: %r", self.group, message.message_id, error)
            attempt += 1
            if self.in_order and attempt <= self._max_retries:
                await asyncio.sleep(AGAIN_S)
                message = message.tried(attempt)
            elif self._model is MessageModel.BROADCASTING:
                return True
            else:
                await self._send_back(message)
                return True
        return False

    async def consume_now(self, message: Received) -> None:
        """Give a message to the listener, whose failure is raised."""
        done = self._listener(message)
        if inspect.isawaitable(done):
            await done

    async def _send_back(self, message: Received) -> None:
        """Give a message back to its broker, which sends it again later or buries it."""
        header = SendBackHeader(
            offset=message.record.physical_offset,
            group=self.group,
            delay_level=0,
            origin_msg_id=message.message_id,
            origin_topic=message.topic,
            max_reconsume_times=self._max_retries,
        )
        while True:
            try:
                address = self._session.address_of(message.queue.broker_name)
                await self._session.ask(address, RequestCode.CONSUMER_SEND_MSG_BACK, header)
                return
            except (OSError, TimeoutError, FiretrailError) as error:
                _log.warning("%s: giving %s back: %s", self.group, message.message_id, error)
                await asyncio.sleep(SEND_BACK_S)

    async def commit(self) -> None:
        """Store the offsets up to which everything is consumed."""
        if self._local is not None:
            await self._local.save({q: taken.offset for q, taken in self.assigned.items()})
            return
        for queue, taken in list(self.assigned.items()):
            offset = taken.offset
            if offset != taken.committed:
                await self._offsets.commit(self.group, queue, offset)
                taken.committed = offset  # it may be further by now
