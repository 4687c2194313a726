"""Recalls of messages that wait for their delivery time.

A recall stores a mark in the slot of the message. When the slot is due, the messages that a mark
names are not delivered. Marks name a message differently in RocketMQ up to 5.3 and since 5.4. Both
marks are stored, so that either version obeys if it takes the folder over.
"""

from firetrail.broker.broker_state import BrokerState
from firetrail.broker.stored_messages import CODES, answer_with_outcome
from firetrail.broker.timer.admission import TimerAdmission, slot_before
from firetrail.broker.timer.due_slot import delete_keys
from firetrail.errors import FormatError, RequestError
from firetrail.format.files.timer import TIMER_TOPIC
from firetrail.format.kernels.draft import Message
from firetrail.format.properties import (
    REAL_TOPIC,
    TAGS,
    TIMER_DEL_UNIQKEY,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    UNIQ_KEY,
    encode_properties,
)
from firetrail.format.recall_handle import RecallHandle, decode_handle
from firetrail.format.record import decode_message
from firetrail.format.values.integers import number_in
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Answer, Handler, WaitingHandler
from firetrail.remoting.messages.headers import RecallHeader, RecallResponse
from firetrail.remoting.wire.codes import Permission, RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.results import OUTCOMES, PutResult

RECALL_TAG = "_RECALL_TAG_"
"""The tag of marks."""
COMPARED_MAX = 64
"""Messages with the same key that are compared with a handle. If there are more, the handle is
accepted: its mark counts for its own topic only."""


class RecallProcessor:
    """Handles RECALL_MESSAGE."""

    def __init__(self, state: BrokerState, admission: TimerAdmission) -> None:
        self._store = state.store
        self._topics = state.topics
        self._live = state.live
        self._admission = admission
        self._now_ms = state.system.clock.now_ms
        self.handlers: dict[int, Handler] = {
            RequestCode.RECALL_MESSAGE: WaitingHandler(state.store.dispatch.catch_up, self._recall)
        }

    def _recall(self, connection: Connection, request: RemotingCommand) -> Answer:
        header = RecallHeader.decode(request.fields)
        config = self._live.current
        if not config.recall:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                "recall failed, operation is forbidden: recallMessageEnable is false",
            )
        if not config.permission & Permission.WRITE and not config.recall_when_read_only:
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker service not available"
            )
        if self._topics.get(header.topic) is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"recall failed, the topic[{header.topic:.255}] not exist",
            )
        handle = self._checked(header)
        self._check_stored(handle)
        first, second = (self._mark(handle, key) for key in delete_keys(*handle[::3]))

        def answer(put: PutResult) -> RemotingCommand:
            """Return the id of the message, whether or not it was waiting, as RocketMQ does."""
            if not OUTCOMES[put.status].is_stored:
                return request.answer(CODES[put.status], f"recall failed: {put.detail}")
            return request.answer(fields=RecallResponse(handle.unique_key).encode())

        result = self._store.writer.begin_put(first)
        if not isinstance(result, PutResult) or result.ok:
            result = self._store.writer.begin_put(second)
        return answer_with_outcome(request, result, answer)

    def _checked(self, header: RecallHeader) -> RecallHandle:
        """Return the decoded handle; raise RequestError if it cannot be used here and now."""
        config = self._live.current
        try:
            handle = decode_handle(header.recall_handle)
        except FormatError as error:
            raise _refused(f"handle invalid: {error.detail}") from None
        if handle.topic != header.topic:
            raise _refused(f"topic not match: the handle is for topic {handle.topic}")
        if handle.broker != config.name:
            raise _refused(f"broker service not available: the handle is for {handle.broker}")
        left = handle.time_ms - self._now_ms()
        if not 0 < left < config.timer_max_delay_s * 1000:
            raise _refused(
                "timestamp invalid: a message can be recalled until about a second before its "
                f"delivery time, and the handle is for {left} ms from now"
            )
        return handle

    def _check_stored(self, handle: RecallHandle) -> None:
        """Raise RequestError if the message with the key of a handle is not the one it names.

        The message, not the handle, says which topic and time it has. RocketMQ accepts a handle
        without a message as well, and so does this; its mark has no effect.
        """
        key, most = handle.unique_key, COMPARED_MAX
        found = self._store.reads.query_buffers(TIMER_TOPIC, key, max_count=most).buffers
        places = {place for buffer in found if (place := _place_of(buffer, key)) is not None}
        if not places or len(found) >= most:
            return
        if handle.topic not in {topic for topic, _ in places}:
            raise _refused("topic not match: no message of this topic has the key of the handle")
        precision = self._live.current.timer_precision_ms
        slot = slot_before(handle.time_ms, precision)
        if not any(
            topic == handle.topic and slot_before(out + 1, precision) == slot
            for topic, out in places
        ):
            raise _refused("timestamp invalid: the message of the handle waits for another time")

    def _mark(self, handle: RecallHandle, key: str) -> Message:
        properties = {
            TAGS: RECALL_TAG,
            UNIQ_KEY: handle.unique_key,
            TIMER_DELIVER_MS: str(handle.time_ms),
            TIMER_DEL_UNIQKEY: key,
        }
        topic, queue_id = self._admission.admit(properties, handle.topic, 0)
        return Message(
            topic,
            b"0",
            queue_id=queue_id,
            raw_properties=encode_properties(properties),
            wait_for_flush=key == handle.unique_key,
        )


def _place_of(buffer: bytes | memoryview, key: str) -> tuple[str, int] | None:
    """Return the real topic and the slot of a waiting message; None for marks and other keys."""
    try:
        properties = decode_message(buffer).properties
    except FormatError:
        return None
    topic, out = properties.get(REAL_TOPIC), number_in(properties.get(TIMER_OUT_MS), 0)
    if properties.get(UNIQ_KEY) != key or TIMER_DEL_UNIQKEY in properties:
        return None
    return None if topic is None or out is None else (topic, out)


def _refused(reason: str) -> RequestError:
    return RequestError(ResponseCode.ILLEGAL_OPERATION, f"recall failed, {reason}")
