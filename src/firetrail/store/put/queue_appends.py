"""Numbered appends to the log: new queues, delays, light queues and batches."""

from collections.abc import Container

from firetrail.errors import IllegalMessageError
from firetrail.format.kernels.draft import Draft, Message
from firetrail.format.names import QUEUE_ID_MAX, check_topic
from firetrail.store.admission.drafter import Batch, Drafter, LightNumbers
from firetrail.store.dispatch.dispatcher import Dispatcher
from firetrail.store.log.commit_log import CommitLog
from firetrail.store.queues.consume_queue import ConsumeQueue
from firetrail.store.queues.queue_table import QueueTable
from firetrail.store.results import PutResult


class QueueAppends:
    """Appends messages that take more than a write to the active file of the log.

    All methods raise a StoreError or an OSError if nothing was stored.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        batched: Container[str],
        drafter: Drafter,
        dispatcher: Dispatcher,
    ) -> None:
        self._log = log
        self._queues = queues
        self._loaded = queues.loaded
        self._batched = batched
        self._drafter = drafter
        self._rules = drafter.rules
        self._light = LightNumbers(queues)
        self._dispatcher = dispatcher

    def append(self, message: Message) -> PutResult:
        """Store a message that takes more than a write to the active file."""
        self._dispatcher.wait_if_far_behind()
        queue = self._target(message)
        draft = Draft(message, queue.encoded_topic, self._rules)
        if draft.may_delay:
            draft, queue = self._delayed(message, draft, queue)
        if draft.names_light_queues:
            return self._append_numbered(message, draft, queue)
        return self._stored(self._log.append(draft, queue), queue)

    def _append_numbered(self, message: Message, draft: Draft, queue: ConsumeQueue) -> PutResult:
        """Store a message that is in light queues as well, unless it was delayed."""
        numbers = self._light
        light: list[ConsumeQueue] = []
        self._dispatcher.wait_for_new_queues()
        with numbers.guard:
            if queue.topic == message.topic:
                message, light = numbers.numbered(message)
                draft = Draft(message, queue.encoded_topic, self._rules)
            result = self._log.append(draft, queue)
            for found in light:
                self._note_if_new(found, found.next_offset, result.end_offset)
                found.next_offset += 1
        return self._stored(result, queue)

    def _target(self, message: Message | Batch) -> ConsumeQueue:
        """Return the queue of a message; create it if its topic may have one."""
        queue = self._loaded.get((message.topic, message.queue_id))
        if queue is not None:
            return queue
        check_topic(message.topic)
        if not 0 <= message.queue_id <= QUEUE_ID_MAX:
            raise IllegalMessageError("queue_id", f"{message.queue_id} is not in 0..{QUEUE_ID_MAX}")
        if message.topic in self._batched:
            detail = f"{message.topic} has batch queues, which only RocketMQ can append to"
            raise IllegalMessageError("topic", detail)
        self._dispatcher.wait_for_new_queues()
        return self._queues.open(message.topic, message.queue_id)

    def _delayed(
        self, message: Message, draft: Draft, queue: ConsumeQueue
    ) -> tuple[Draft, ConsumeQueue]:
        """Return draft and queue of a message that may have a delay level."""
        waiting = self._drafter.delayed(message, draft)
        if waiting is message:
            return draft, queue
        queue = self._target(waiting)
        return Draft(waiting, queue.encoded_topic, self._rules), queue

    def append_batch(self, batch: Batch) -> PutResult:
        """Store a batch."""
        self._dispatcher.wait_if_far_behind()
        queue = self._target(batch)
        return self._stored(self._log.append_batch(self._drafter.draft_batch(batch), queue), queue)

    def _stored(self, result: PutResult, queue: ConsumeQueue) -> PutResult:
        self._note_if_new(queue, result.queue_offset, result.end_offset)
        return result

    def _note_if_new(self, queue: ConsumeQueue, offset: int, end: int) -> None:
        """Tell the dispatcher if a message at ``offset`` is the first one of a new queue."""
        if offset == 0 and queue.files.last is None:
            self._dispatcher.note_new_queue(queue, end)
