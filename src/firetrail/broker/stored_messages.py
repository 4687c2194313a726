"""Messages in the store: how a put ended, and those that the broker reads back or copies."""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping

from firetrail.errors import FormatError
from firetrail.format.files.timer import TIMER_TOPIC
from firetrail.format.kernels.draft import Message
from firetrail.format.layout import TRANSACTION_COMMIT
from firetrail.format.names import RETRY_PREFIX, SCHEDULE_TOPIC
from firetrail.format.properties import ORIGIN_MESSAGE_ID, REAL_QID, REAL_TOPIC, RETRY_TOPIC
from firetrail.format.record import Record, decode_message
from firetrail.format.system_topics import HALF_TOPIC
from firetrail.format.values.integers import INT32_MAX, number_in
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.broker_store import BrokerStore
from firetrail.store.results import OUTCOMES, UNCONFIRMED, PutResult, PutStatus

_log = logging.getLogger(__name__)

CODES: Mapping[PutStatus, ResponseCode] = {
    status: ResponseCode(outcome.code) for status, outcome in OUTCOMES.items()
}
"""The codes that clients get for the outcome of a put."""


def require_stored(result: PutResult) -> PutResult:
    """Return the result of a put if the message is in the log, otherwise raise its error.

    This is for records of the broker itself, such as the end of a transaction. Putting an
    unconfirmed one again would only create a second copy. If a failover removes it, it also removes
    all later messages.
    """
    return result if result.status in UNCONFIRMED else result.require_ok()


def answer_with_outcome(
    request: RemotingCommand,
    result: PutResult | Awaitable[PutResult],
    answer: Callable[[PutResult], RemotingCommand] | None = None,
) -> RemotingCommand | Awaitable[RemotingCommand]:
    """Return the answer to a request that has put a message; an awaitable only if it has to wait.

    Args:
        request: The request.
        result: The outcome of the put, or an awaitable of it.
        answer: Returns the answer for an outcome. Default: one with the code of the outcome.
    """

    def answered(put: PutResult) -> RemotingCommand:
        if answer is not None:
            return answer(put)
        return request.answer(CODES[put.status], put.detail or None)

    async def later(put: Awaitable[PutResult]) -> RemotingCommand:
        return answered(await put)

    return answered(result) if isinstance(result, PutResult) else later(result)


def copy_record(
    record: Record,
    topic: str,
    queue_id: int,
    properties: bytes,
    *,
    committed: bool = False,
    more_attempts: int = 0,
    delay_level: int = 0,
    wait_for_flush: bool = True,
) -> Message:
    """Make a message with the content of a stored one, for another topic or queue.

    Args:
        record: The stored message.
        topic: Where the copy goes.
        queue_id: The queue of that topic.
        properties: The encoded properties of the copy.
        committed: Whether the record is a half message, and the copy that of its commit.
        more_attempts: How much higher the count of deliveries is in the copy. It starts from 0 if
            a producer has set a negative one, which would delay the end of the retries, and stays
            at the highest number that a record can hold.
        delay_level: The time for which the copy is delayed; 0 delivers it at once.
        wait_for_flush: Whether a put waits for the disk if the store is configured to.
    """
    attempts = record.reconsume_times
    if more_attempts:
        attempts = min(record.retries + more_attempts, INT32_MAX)
    return Message(
        topic,
        record.body,
        queue_id=queue_id,
        delay_level=delay_level,
        flag=record.flag,
        sys_flag=record.sys_flag | (TRANSACTION_COMMIT if committed else 0),
        born_time=record.born_time,
        born_host=record.born_host,
        reconsume_times=attempts,
        prepared_offset=record.physical_offset if committed else 0,
        raw_properties=properties,
        wait_for_flush=wait_for_flush,
    )


def origin_of(record: Record) -> tuple[str, str]:
    """Return the topic and the id that a message had before it was first redelivered.

    A message of a retry topic has them in its properties. In another topic, such properties were
    set by the producer: they could make consumers believe that the message is from a topic for
    which the producer has no permission.
    """
    if not record.topic.startswith(RETRY_PREFIX):
        return record.topic, record.message_id
    properties = record.properties
    topic = properties.get(RETRY_TOPIC, record.topic)
    return topic, properties.get(ORIGIN_MESSAGE_ID, record.message_id)


def destination_of(properties: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the topic and queue for which a message waits in another topic; None if it has none.

    A message never waits for the topic of half messages, where its transaction would never end.
    """
    topic, queue_id = properties.get(REAL_TOPIC), number_in(properties.get(REAL_QID), 0, INT32_MAX)
    return None if not topic or topic == HALF_TOPIC or queue_id is None else (topic, queue_id)


def internal_records(
    store: BrokerStore, topic: str, queue_id: int, offset: int
) -> Iterator[Record]:
    """Yield the records of one of the broker's own queues, starting at ``offset``.

    A damaged record is logged and skipped: it must not delay all other messages.
    """
    while True:
        result = store.reads.get_hashed(topic, queue_id, offset)
        if result.next_offset <= offset:
            return
        for buffer in result.buffers:
            try:
                yield decode_message(buffer)
            except FormatError as error:
                _log.error(
                    "%s, queue %d: an internal record at or after offset %d is damaged and "
                    "skipped (%s); firetrail fsck shows where it is",
                    topic,
                    queue_id,
                    offset,
                    error,
                )
        offset = result.next_offset


def pending_destinations(store: BrokerStore, since_ms: int) -> Iterator[tuple[str, int]]:
    """Yield topic and queue of the delayed, timer and half messages stored since a time.

    A topic that was created for one of them has no queue until the message is delivered.
    """
    for waiting in (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC):
        for queue_id in store.queues.of(waiting):
            first = store.embedded.offset_at(waiting, queue_id, since_ms)
            for record in store.embedded.read(waiting, queue_id, first):
                destination = destination_of(record.properties)
                if destination is not None:
                    yield destination
