"""Calls of consumers that keep their own offsets: PullMessage, and three calls for offsets.

RocketMQ's proxy implements none of them, and no released client calls them. They are served by the
same requests to brokers as the pull consumers of the remoting protocol.
"""

from collections.abc import Sequence

from firetrail.errors import ProxyError
from firetrail.format.properties import TAGS
from firetrail.proxy.calls.grpc_guard import GrpcGuard
from firetrail.proxy.calls.resource_names import group_name, topic_name
from firetrail.proxy.calls.status_codes import OK, checked
from firetrail.proxy.calls.wait_time import MARGIN_S, POLL_MAX_S, batch_size, filter_of
from firetrail.proxy.conversion.delivered_messages import delivered, records_in
from firetrail.proxy.conversion.message_properties import milliseconds
from firetrail.proxy.schema.messages import (
    Code,
    GetOffsetRequest,
    GetOffsetResponse,
    MessageQueue,
    PullMessageRequest,
    PullMessageResponse,
    QueryOffsetPolicy,
    QueryOffsetRequest,
    QueryOffsetResponse,
    Status,
    UpdateOffsetRequest,
    UpdateOffsetResponse,
)
from firetrail.proxy.transport.call import Call
from firetrail.proxy.upstream.grpc_clients import ProxyClient
from firetrail.proxy.upstream.interface import Brokers, resolved
from firetrail.remoting.messages.headers import (
    ConsumerOffsetHeader,
    OffsetResponse,
    PullHeader,
    PullResponse,
    QueueHeader,
    SearchOffsetHeader,
)
from firetrail.remoting.messages.typed_header import Header
from firetrail.remoting.wire.codes import PullFlag, RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

PULL_MAX = 32
"""Maximum number of messages of one pull; more are not delivered at once."""
_PULL_CODES: dict[int, Code] = {
    ResponseCode.SUCCESS: Code.OK,
    ResponseCode.PULL_NOT_FOUND: Code.MESSAGE_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY: Code.MESSAGE_NOT_FOUND,
    ResponseCode.PULL_OFFSET_MOVED: Code.ILLEGAL_OFFSET,
}
"""Codes of brokers with which the answer to a pull has the next offset."""


class OffsetCalls:
    """Handles PullMessage, UpdateOffset, GetOffset and QueryOffset.

    Args:
        brokers: The brokers that have the messages.
        guard: Checks calls again that have waited. Default: every call is allowed.
    """

    def __init__(self, brokers: Brokers, guard: GrpcGuard | None = None) -> None:
        self._brokers = brokers
        self._guard = guard

    async def pull(
        self, call: Call, client: ProxyClient, request: PullMessageRequest
    ) -> Sequence[PullMessageResponse]:
        """Return the frames of a pull: status, messages, and the offset of the next pull."""
        group = group_name(request.group)
        topic, queue_id = self._queue(request.message_queue)
        wanted = filter_of(topic, request.filter_expression)
        wait_s = min(max(milliseconds(request.long_polling_timeout) / 1000, 0.0), POLL_MAX_S)
        left_s = call.remaining_s()
        if left_s is not None:
            wait_s = max(min(wait_s, left_s - MARGIN_S), 0.0)
        suspend = PullFlag.SUSPEND if wait_s else PullFlag(0)
        header = PullHeader(
            consumer_group=group,
            topic=topic,
            queue_id=queue_id,
            queue_offset=request.offset,
            max_msg_nums=batch_size(request.batch_size, PULL_MAX),
            sys_flag=int(PullFlag.SUBSCRIPTION | suspend),
            commit_offset=0,
            suspend_timeout_millis=int(wait_s * 1000),
            sub_version=0,
            subscription=wanted.sub_string,
            expression_type=wanted.expression_type,
        )
        codes = (*_PULL_CODES, ResponseCode.NO_PERMISSION)
        answer = await self._ask(
            client, request.message_queue, RequestCode.PULL_MESSAGE, header, *codes
        )
        if self._guard is not None:
            await self._guard.check_again("PullMessage", call, request)
        if answer.code == ResponseCode.NO_PERMISSION:
            checked(answer)
        tags = frozenset(wanted.tags_set)
        messages = []
        for record in records_in(answer.body):
            properties = record.properties
            if not tags or properties.get(TAGS) in tags:
                messages.append(delivered(record, properties, topic))
        code = _PULL_CODES[answer.code]
        if not messages and code is Code.OK:
            code = Code.MESSAGE_NOT_FOUND
        status = OK if code is Code.OK else Status(code=code, message=answer.remark or code.name)
        following = PullResponse.decode(answer.fields).next_begin_offset
        return [
            PullMessageResponse(status=status),
            *(PullMessageResponse(message=message) for message in messages),
            PullMessageResponse(next_offset=following),
        ]

    async def update(
        self, call: Call, client: ProxyClient, request: UpdateOffsetRequest
    ) -> UpdateOffsetResponse:
        """Store the offset of a group in a queue."""
        group = group_name(request.group)
        if request.offset < 0:
            raise ProxyError(Code.ILLEGAL_OFFSET, f"the offset {request.offset} is negative")
        header = ConsumerOffsetHeader(group, *self._queue(request.message_queue), request.offset)
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        await self._ask(client, request.message_queue, code, header)
        return UpdateOffsetResponse(status=OK)

    async def get(
        self, call: Call, client: ProxyClient, request: GetOffsetRequest
    ) -> GetOffsetResponse:
        """Return the offset of a group in a queue."""
        header = ConsumerOffsetHeader(
            group_name(request.group), *self._queue(request.message_queue)
        )
        code = RequestCode.QUERY_CONSUMER_OFFSET
        answer = await self._ask(client, request.message_queue, code, header)
        return GetOffsetResponse(status=OK, offset=OffsetResponse.decode(answer.fields).offset)

    async def query(
        self, call: Call, client: ProxyClient, request: QueryOffsetRequest
    ) -> QueryOffsetResponse:
        """Return the first or the next offset of a queue, or that of the message at a time."""
        topic, queue_id = self._queue(request.message_queue)
        header: Header = QueueHeader(topic, queue_id)
        if request.query_offset_policy == QueryOffsetPolicy.BEGINNING:
            code = RequestCode.GET_MIN_OFFSET
        elif request.query_offset_policy == QueryOffsetPolicy.END:
            code = RequestCode.GET_MAX_OFFSET
        elif request.HasField("timestamp"):
            code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
            header = SearchOffsetHeader(topic, queue_id, milliseconds(request.timestamp))
        else:
            raise ProxyError(Code.BAD_REQUEST, "a query by time needs a timestamp")
        answer = await self._ask(client, request.message_queue, code, header)
        return QueryOffsetResponse(status=OK, offset=OffsetResponse.decode(answer.fields).offset)

    def _queue(self, queue: MessageQueue) -> tuple[str, int]:
        topic = topic_name(queue.topic, self._brokers.reserved)
        if queue.id < 0:
            raise ProxyError(Code.BAD_REQUEST, f"the queue {queue.id} is negative")
        return topic, queue.id

    async def _ask(
        self,
        client: ProxyClient,
        queue: MessageQueue,
        code: RequestCode,
        header: Header,
        *accepted: int,
    ) -> RemotingCommand:
        """Ask the broker of a queue; raise ProxyError unless its answer has an accepted code."""
        if await resolved(self._brokers.topic(queue.topic.name)) is None:
            raise ProxyError(Code.TOPIC_NOT_FOUND, f"topic {queue.topic.name} does not exist")
        command = RemotingCommand(code, header.encode())
        answer = await resolved(self._brokers.request(client, queue.broker.name, command))
        if answer.code in accepted:
            return answer
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            raise ProxyError(Code.OFFSET_NOT_FOUND, answer.remark or "")
        return checked(answer)
