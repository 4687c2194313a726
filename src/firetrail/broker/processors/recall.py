"""Recalls of messages that wait for their delivery time.

A recall stores a mark in the slot of the message. When the slot is due, the messages that a mark
names are not delivered. Marks name a message differently in RocketMQ up to 5.3 and since 5.4. Both
marks are stored, so that either version obeys if it takes the folder over.
"""

from __future__ import annotations

from collections.abc import Awaitable

from firetrail.broker.broker_state import BrokerState
from firetrail.broker.stored import UNCONFIRMED
from firetrail.broker.timer.admission import TimerAdmission
from firetrail.broker.timer.due_slot import delete_keys
from firetrail.errors import FormatError, RequestError
from firetrail.format.kernels.draft import Message
from firetrail.format.properties import (
    TAGS,
    TIMER_DEL_UNIQKEY,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    encode_properties,
)
from firetrail.format.recall import RecallHandle, decode_handle
from firetrail.remoting.codes import Permission, RequestCode, ResponseCode
from firetrail.remoting.command import RemotingCommand
from firetrail.remoting.connection import Connection
from firetrail.remoting.handlers import Answer, Handler
from firetrail.remoting.headers import RecallHeader, RecallResponse
from firetrail.store.results import PutResult

RECALL_TAG = "_RECALL_TAG_"
"""The tag of marks."""


class RecallProcessor:
    """Handles RECALL_MESSAGE."""

    def __init__(self, state: BrokerState, admission: TimerAdmission) -> None:
        self._store = state.store
        self._topics = state.topics
        self._live = state.live
        self._admission = admission
        self._now_ms = state.system.clock.now_ms
        self.handlers: dict[int, Handler] = {RequestCode.RECALL_MESSAGE: self._recall}

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
        first, second = (self._mark(handle, key) for key in delete_keys(*handle[::3]))
        result = self._store.begin_put(first)
        if isinstance(result, PutResult) and not result.ok:
            return self._answer(request, handle, result)
        result = self._store.begin_put(second)
        if isinstance(result, PutResult):
            return self._answer(request, handle, result)
        return self._answer_later(request, handle, result)

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

    def _mark(self, handle: RecallHandle, key: str) -> Message:
        properties = {
            TAGS: RECALL_TAG,
            UNIQ_KEY: handle.unique_key,
            TIMER_DELIVER_MS: str(handle.time_ms),
            TIMER_DEL_UNIQKEY: key,
        }
        is_last = key == handle.unique_key
        return self._admission.admitted(
            Message(
                handle.topic,
                b"0",
                raw_properties=encode_properties(properties),
                wait_for_flush=is_last,
            )
        )

    async def _answer_later(
        self,
        request: RemotingCommand,
        handle: RecallHandle,
        result: Awaitable[PutResult],
    ) -> RemotingCommand:
        return self._answer(request, handle, await result)

    def _answer(
        self, request: RemotingCommand, handle: RecallHandle, result: PutResult
    ) -> RemotingCommand:
        """Answer with the id of the message, whether or not it was waiting, as RocketMQ does."""
        if not result.ok and result.status not in UNCONFIRMED:
            return request.answer(ResponseCode.SYSTEM_ERROR, f"recall failed: {result.detail}")
        return request.answer(fields=RecallResponse(handle.unique_key).encode())


def _refused(reason: str) -> RequestError:
    return RequestError(ResponseCode.ILLEGAL_OPERATION, f"recall failed, {reason}")
