"""Replies: messages that answer a request, pushed to the producer that waits for them.

A producer sends a request as an ordinary message, and waits. The consumer of the request sends the
reply to the broker with the client id of that producer, and the broker pushes it there. The reply
is stored as well.
"""

from collections.abc import Mapping

from firetrail.broker.broker_state import BrokerState
from firetrail.broker.processors.send_processor import SendProcessor
from firetrail.broker.services.clients import Client
from firetrail.errors import RequestError
from firetrail.format.kernels.properties import join_properties, parse_properties
from firetrail.format.properties import PUSH_REPLY_TIME, REPLY_TO_CLIENT
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.messages.headers import PushReplyHeader, SendHeader, SendHeaderV2
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

PUSH_S = 3.0
"""The time that the producer may take to confirm that it has received the reply."""


class ReplyProcessor:
    """Handles SEND_REPLY_MESSAGE."""

    def __init__(self, state: BrokerState, send: SendProcessor) -> None:
        self._send = send.send
        self._clients = state.clients
        self._clock = state.system.clock
        self._address = state.address
        self.handlers: dict[int, Handler] = {
            RequestCode.SEND_REPLY_MESSAGE: self._reply_v1,
            RequestCode.SEND_REPLY_MESSAGE_V2: self._reply_v2,
        }

    async def _reply_v1(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | None:
        return await self._reply(connection, request, SendHeader.decode(request.fields))

    async def _reply_v2(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | None:
        return await self._reply(connection, request, SendHeaderV2.decode(request.fields))

    async def _reply(
        self, connection: Connection, request: RemotingCommand, header: SendHeader
    ) -> RemotingCommand | None:
        properties = parse_properties(header.properties or "")
        client_id = properties.get(REPLY_TO_CLIENT)
        if client_id is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the reply has no {REPLY_TO_CLIENT}")
        await self._push(self._waiting(client_id), connection, request, header, properties)
        answer = self._send(connection, request, header, properties)
        return answer if answer is None or isinstance(answer, RemotingCommand) else await answer

    def _waiting(self, client_id: str) -> Client:
        client = self._clients.waiting_producer(client_id)
        if client is not None:
            return client
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the producer {client_id:.255} that sent the request is no longer connected",
        )

    async def _push(
        self,
        client: Client,
        connection: Connection,
        request: RemotingCommand,
        header: SendHeader,
        properties: Mapping[str, str],
    ) -> None:
        now = self._clock.now_ms()
        pushed = PushReplyHeader(
            born_host=connection.peer,
            store_host=self._address,
            store_timestamp=now,
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=join_properties({**properties, PUSH_REPLY_TIME: str(now)}),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
        )
        command = RemotingCommand(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed.encode(), request.content
        )
        try:
            answer = await client.connection.request(command, PUSH_S)
        except (TimeoutError, ConnectionError) as error:
            reason = str(error) or f"no answer within {PUSH_S:g} s"
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"push reply to {client.client_id} failed: {reason}"
            ) from None
        if answer.code != ResponseCode.SUCCESS:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"push reply to {client.client_id} failed: code {answer.code} {answer.remark}",
            )
