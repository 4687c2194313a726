"""Messages that a consumer could not consume. They are retried later and end as dead letters.

A message goes to the topic ``%RETRY%<group>`` after a delay that grows with each attempt, and to
``%DLQ%<group>`` once it was retried too often.
"""

from random import randrange

from firetrail.access.implied_permissions import SUB, no_record, require_consumed
from firetrail.broker.broker_state import BrokerState
from firetrail.broker.processors.send_processor import no_queue
from firetrail.broker.state.group_table import is_last
from firetrail.broker.stored_messages import answer_with_outcome, copy_record, origin_of
from firetrail.errors import RequestError
from firetrail.format.kernels.draft import Message
from firetrail.format.message_types import LOST_BY_DEAD_LETTERS
from firetrail.format.names import dead_letter_topic, retry_topic
from firetrail.format.properties import (
    DELAY,
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    ORIGIN_MESSAGE_ID,
    REAL_QID,
    REAL_TOPIC,
    RETRY_TOPIC,
    replace_properties,
)
from firetrail.format.record import Record
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Answer, Handler
from firetrail.remoting.messages.bodies import TopicConfig
from firetrail.remoting.messages.headers import SendBackHeader
from firetrail.remoting.wire.codes import Permission, RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

FIRST_RETRY_LEVEL = 3
"""Delay level of the first retry, if the consumer names none."""


class SendBackProcessor:
    """Handles CONSUMER_SEND_MSG_BACK."""

    def __init__(self, state: BrokerState) -> None:
        self._store = state.store
        self._topics = state.topics
        self._groups = state.groups
        self._traffic = state.traffic
        self.handlers: dict[int, Handler] = {RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back}

    def _send_back(self, connection: Connection, request: RemotingCommand) -> Answer:
        header = SendBackHeader.decode(request.fields)
        group = self._groups.get(header.group)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {header.group:.255}",
            )
        if group.retry_queue_nums <= 0:
            return request.answer()
        record = self._store.embedded.at(header.offset)
        if record is None:
            detail = f"look message by offset failed, {header.offset}"
            raise no_record(request.caller, detail, SUB)
        if request.caller is not None:
            require_consumed(request.caller, record, header.group)
        asked = header.max_reconsume_times
        is_dead = is_last(group, record.retries, asked, request.version)
        if is_dead or header.delay_level < 0:
            message = self._dead_letter(record, header.group)
        else:
            level = header.delay_level or FIRST_RETRY_LEVEL + record.retries
            message = self._retry(record, header.group, group.retry_queue_nums, level)
        self._traffic.count_sent_back(record.topic, header.group, record.size)
        # A consumer keeps a message, or sends it itself, unless it is confirmed to be stored.
        return answer_with_outcome(request, self._store.writer.begin_put(message))

    def _retry(self, record: Record, group: str, queues: int, level: int) -> Message:
        topic = self._topics.ensure(retry_topic(group), queues)
        if not topic.perm & Permission.WRITE:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"the topic[{topic.topic_name}] is not writable"
            )
        queue_id = randrange(max(topic.write_queue_nums, 1))
        return self._copy(record, topic, queue_id, {DELAY: str(level)})

    def _dead_letter(self, record: Record, group: str) -> Message:
        topic = self._topics.ensure(dead_letter_topic(group), 1)
        topic_before, id_before = origin_of(record)
        origin = {
            **dict.fromkeys(LOST_BY_DEAD_LETTERS),
            DLQ_ORIGIN_TOPIC: topic_before,
            DLQ_ORIGIN_MESSAGE_ID: id_before,
        }
        return self._copy(record, topic, 0, origin)

    def _copy(
        self, record: Record, topic: TopicConfig, queue_id: int, changes: dict[str, str | None]
    ) -> Message:
        """Copy the message to another topic, with one more attempt counted."""
        if queue_id not in topic.queues:
            raise no_queue(topic, queue_id)
        topic_before, id_before = origin_of(record)
        changes |= {
            RETRY_TOPIC: topic_before,
            ORIGIN_MESSAGE_ID: id_before,
            REAL_TOPIC: None,
            REAL_QID: None,
        }
        raw = replace_properties(record.raw_properties, changes)
        return copy_record(record, topic.topic_name, queue_id, raw, more_attempts=1)
