"""RecallMessage: a message that waits for its delivery time is taken back."""

from firetrail.errors import FormatError, ProxyError
from firetrail.format.message_types import MessageType, type_of_topic
from firetrail.format.recall_handle import decode_handle
from firetrail.proxy.calls.resource_names import topic_name
from firetrail.proxy.calls.status_codes import OK, code_of
from firetrail.proxy.schema.messages import Code, RecallMessageRequest, RecallMessageResponse
from firetrail.proxy.transport.call import Call
from firetrail.proxy.upstream.grpc_clients import ProxyClient
from firetrail.proxy.upstream.interface import Brokers, resolved
from firetrail.remoting.messages.headers import RecallHeader, RecallResponse
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand


class RecallCalls:
    """Handles RecallMessage."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    async def recall(
        self, call: Call, client: ProxyClient, request: RecallMessageRequest
    ) -> RecallMessageResponse:
        """Take back the message of a handle; the response has its id."""
        topic = topic_name(request.topic, self._brokers.reserved)
        config = await resolved(self._brokers.topic(topic))
        if config is None:
            raise ProxyError(Code.TOPIC_NOT_FOUND, f"topic {topic} does not exist")
        kind = type_of_topic(config.attributes)
        if kind not in (MessageType.DELAY, MessageType.MIXED):
            raise ProxyError(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"topic {topic} is for {kind} messages; only delayed ones can be recalled",
            )
        try:
            handle = decode_handle(request.recall_handle)
        except FormatError as error:
            raise ProxyError(Code.BAD_REQUEST, f"the recall handle: {error.detail}") from None
        if handle.topic != topic:
            raise ProxyError(
                Code.BAD_REQUEST, f"the recall handle is for topic {handle.topic!r:.80}"
            )
        header = RecallHeader(topic, request.recall_handle, topic)
        command = RemotingCommand(RequestCode.RECALL_MESSAGE, header.encode())
        answer = await resolved(self._brokers.request(client, handle.broker, command))
        if answer.code:
            illegal = answer.code == ResponseCode.ILLEGAL_OPERATION
            code = Code.BAD_REQUEST if illegal else code_of(answer.code)
            raise ProxyError(code, answer.remark or "")
        response = RecallResponse.decode(answer.fields)
        return RecallMessageResponse(status=OK, message_id=response.msg_id)
