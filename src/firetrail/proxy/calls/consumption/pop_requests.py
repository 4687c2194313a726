"""Requests to brokers about popped messages, in the terms of their receipts."""

from collections.abc import Awaitable

from firetrail.auth.caller import Caller
from firetrail.broker.pop.ack_processor import PopAck
from firetrail.errors import ProxyError, RequestError
from firetrail.proxy.calls.status_codes import checked, code_of
from firetrail.proxy.schema.messages import Code
from firetrail.proxy.upstream.grpc_clients import ProxyClient
from firetrail.proxy.upstream.interface import Brokers, resolved
from firetrail.remoting.messages.headers import SendBackHeader
from firetrail.remoting.messages.pop.pop_headers import (
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeResponse,
)
from firetrail.remoting.messages.pop.receipts import Receipt
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

RETURNED_MS = 1000
"""The time after which messages that did not reach a client become visible to others."""
DEAD_LETTER = -1
"""The delay level that moves a message to the dead letters at once."""

_INVALID = (ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL)
"""The codes of brokers for a receipt whose message does not exist or is no longer popped."""
Response = RemotingCommand | Awaitable[RemotingCommand]


def valid_receipt(handle: str, now_ms: int) -> Receipt:
    """Return the receipt in a handle; raise ProxyError if it is invalid or has expired."""
    try:
        receipt = Receipt.decode(handle)
    except RequestError as error:
        raise ProxyError(Code.INVALID_RECEIPT_HANDLE, error.remark) from None
    late_ms = now_ms - receipt.pop_time - receipt.invisible_ms
    if late_ms >= 0:
        raise ProxyError(
            Code.INVALID_RECEIPT_HANDLE,
            f"the receipt expired {late_ms} ms ago; the message is visible again",
        )
    return receipt


class PopRequests:
    """Asks brokers to end or change the invisible time of messages."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    def ack(self, client: ProxyClient, group: str, topic: str, receipt: Receipt) -> Response:
        """Acknowledge a message; return the broker's response, with any code."""
        ack = PopAck(group, receipt.topic(topic, group), receipt)
        return self._brokers.acknowledge(client, receipt.broker_name, [ack])[0]

    async def change(
        self, client: ProxyClient, group: str, topic: str, receipt: Receipt, invisible_ms: int
    ) -> Receipt:
        """Let a message become visible ``invisible_ms`` from now; return its new receipt.

        Raises:
            ProxyError: The message is acknowledged or visible again, or the broker failed.
        """
        header = ChangeInvisibleTimeHeader(
            group,
            receipt.topic(topic, group),
            receipt.queue_id,
            receipt.encode(),
            receipt.offset,
            invisible_ms,
        )
        command = RemotingCommand(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header.encode())
        answer = await resolved(self._brokers.request(client, receipt.broker_name, command))
        check_receipt_answer(answer)
        changed = ChangeInvisibleTimeResponse.decode(answer.fields)
        return receipt._replace(
            start=receipt.offset,
            pop_time=changed.pop_time,
            invisible_ms=changed.invisible_time,
            revive_queue=changed.revive_qid,
        )

    async def to_dead_letters(
        self,
        client: ProxyClient,
        group: str,
        topic: str,
        receipt: Receipt,
        message_id: str,
        caller: Caller | None,
    ) -> None:
        """Move a message to the dead letters of a group, and acknowledge it.

        Args:
            client: The client.
            group: The group.
            topic: The topic that the call names.
            receipt: The receipt of the message.
            message_id: The id of the message.
            caller: Who needs a permission for the topic of the record; None if that is not checked.

        Raises:
            ProxyError: The receipt has no log offset, or the broker failed.
        """
        if receipt.log_offset is None:
            raise ProxyError(
                Code.INVALID_RECEIPT_HANDLE, "the receipt handle does not name a place in the log"
            )
        header = SendBackHeader(
            receipt.log_offset,
            group,
            DEAD_LETTER,
            message_id,
            receipt.topic(topic, group),
            max_reconsume_times=0,
        )
        command = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, header.encode())
        command.caller = caller
        checked(await resolved(self._brokers.request(client, receipt.broker_name, command)))
        check_receipt_answer(await resolved(self.ack(client, group, topic, receipt)))


def check_receipt_answer(answer: RemotingCommand) -> None:
    """Raise ProxyError if a broker refused a receipt."""
    if answer.code:
        raise receipt_error(answer)


def receipt_error(answer: RemotingCommand) -> ProxyError:
    """Return why a broker refused a receipt."""
    code = Code.INVALID_RECEIPT_HANDLE if answer.code in _INVALID else code_of(answer.code)
    return ProxyError(code, answer.remark or "the broker gave no reason")
