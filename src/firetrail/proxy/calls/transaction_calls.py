"""Transactions: EndTransaction, and the question for the outcome of an orphaned one.

Brokers end a transaction by the place of its half message, but gRPC clients only know its id. The
places of recent half messages are remembered. Others are found by the index of the broker, so that
a transaction can be ended at any time, also through another proxy.
"""

from collections.abc import Awaitable
from typing import NamedTuple

from firetrail.auth.signature import UNIQUE_KEY_QUERY
from firetrail.errors import FormatError, ProxyError
from firetrail.format.layout import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from firetrail.format.properties import PGROUP, REAL_TOPIC, UNIQ_KEY
from firetrail.format.system_topics import HALF_TOPIC
from firetrail.format.values.ids import decode_message_id
from firetrail.format.values.integers import INT64_MAX
from firetrail.proxy.calls.resource_names import topic_name
from firetrail.proxy.calls.status_codes import OK, checked
from firetrail.proxy.conversion.delivered_messages import delivered, records_in
from firetrail.proxy.schema.messages import (
    Code,
    EndTransactionRequest,
    EndTransactionResponse,
    RecoverOrphanedTransactionCommand,
    TelemetryCommand,
    TransactionResolution,
    TransactionSource,
)
from firetrail.proxy.transport.call import Call
from firetrail.proxy.upstream.grpc_clients import ProxyClient
from firetrail.proxy.upstream.interface import Brokers, resolved
from firetrail.remoting.messages.headers import (
    CheckTransactionHeader,
    EndTransactionHeader,
    QueryMessageHeader,
    SendResponse,
)
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

REMEMBERED_MAX = 10_000
"""Maximum number of half messages whose places are remembered; older ones are looked up in the
index."""
COPIES_MAX = 64
"""Maximum number of copies of a half message that a search considers."""
_ENDS: dict[int, int] = {
    TransactionResolution.COMMIT: TRANSACTION_COMMIT,
    TransactionResolution.ROLLBACK: TRANSACTION_ROLLBACK,
}


class HalfMessagePlace(NamedTuple):
    """The place of a half message."""

    broker_name: str
    queue_offset: int
    log_offset: int
    group: str
    """The producer group with which it was sent: the topic, if it was sent through gRPC."""


class KnownTransactions:
    """The places of recent half messages, by topic and id."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], HalfMessagePlace] = {}

    def begun(
        self, topic: str, transaction_id: str, broker_name: str, stored: SendResponse
    ) -> None:
        """Remember a half message that was just stored."""
        try:
            log_offset = decode_message_id(stored.msg_id).physical_offset
        except FormatError:  # a broker with ids of another form: the half message is looked up
            return
        place = HalfMessagePlace(broker_name, stored.queue_offset, log_offset, topic)
        self.remember(topic, transaction_id, place)

    def remember(self, topic: str, transaction_id: str, place: HalfMessagePlace) -> None:
        """Remember a place, and forget the one that was remembered longest if there are many."""
        self._places.pop((topic, transaction_id), None)
        if len(self._places) >= REMEMBERED_MAX:
            del self._places[next(iter(self._places))]
        self._places[topic, transaction_id] = place

    def find(self, topic: str, transaction_id: str) -> HalfMessagePlace | None:
        """Return the place of a half message, None if it is not remembered."""
        return self._places.get((topic, transaction_id))


class TransactionCalls:
    """Handles EndTransaction, and turns the questions of brokers into telemetry commands."""

    def __init__(self, brokers: Brokers, known: KnownTransactions) -> None:
        self._brokers = brokers
        self._known = known

    def end(
        self, call: Call, client: ProxyClient, request: EndTransactionRequest
    ) -> EndTransactionResponse | Awaitable[EndTransactionResponse]:
        """Commit or roll back a transaction. A repeated call is answered like the first one."""
        topic = topic_name(request.topic, self._brokers.reserved)
        transaction_id = request.transaction_id
        if not transaction_id.strip():
            raise ProxyError(Code.INVALID_TRANSACTION_ID, "the id of the transaction is blank")
        decision = _ENDS.get(request.resolution)
        if decision is None:
            return EndTransactionResponse(status=OK)  # not known yet; the broker asks again
        return self._end(call, client, request, topic, decision)

    async def _end(
        self,
        call: Call,
        client: ProxyClient,
        request: EndTransactionRequest,
        topic: str,
        decision: int,
    ) -> EndTransactionResponse:
        transaction_id = request.transaction_id
        place = self._known.find(topic, transaction_id)
        if place is None:
            place = await self._search(client, topic, transaction_id)
            self._known.remember(topic, transaction_id, place)
        header = EndTransactionHeader(
            producer_group=place.group,
            tran_state_table_offset=place.queue_offset,
            commit_log_offset=place.log_offset,
            commit_or_rollback=decision,
            from_transaction_check=request.source == TransactionSource.SOURCE_SERVER_CHECK,
            msg_id=request.message_id,
            transaction_id=transaction_id,
            topic=topic,
        )
        command = RemotingCommand(RequestCode.END_TRANSACTION, header.encode())
        command.caller = call.caller
        checked(await resolved(self._brokers.request(client, place.broker_name, command)))
        return EndTransactionResponse(status=OK)

    async def _search(
        self, client: ProxyClient, topic: str, transaction_id: str
    ) -> HalfMessagePlace:
        """Find the newest copy of a half message in the indexes of the topic's brokers."""
        route = await resolved(self._brokers.route(topic))
        for broker in route.broker_datas:
            header = QueryMessageHeader(HALF_TOPIC, transaction_id, COPIES_MAX, 0, INT64_MAX)
            fields = {**header.encode(), UNIQUE_KEY_QUERY: "true"}
            command = RemotingCommand(RequestCode.QUERY_MESSAGE, fields)
            answer = await resolved(self._brokers.request(client, broker.broker_name, command))
            if answer.code == ResponseCode.QUERY_NOT_FOUND:
                continue
            newest: HalfMessagePlace | None = None
            for record in records_in(checked(answer).body):
                properties = record.properties
                same = properties.get(UNIQ_KEY) == transaction_id
                if same and properties.get(REAL_TOPIC) == topic:
                    newest = HalfMessagePlace(
                        broker.broker_name,
                        record.queue_offset,
                        record.physical_offset,
                        properties.get(PGROUP, topic),
                    )
            if newest is not None:
                return newest
        raise ProxyError(
            Code.INVALID_TRANSACTION_ID,
            f"topic {topic} has no transaction {transaction_id!r:.80}; it was not begun, or is so "
            "old that its message was deleted",
        )

    def orphaned(self, broker_name: str, question: RemotingCommand) -> TelemetryCommand | None:
        """Return the command that asks a producer for the outcome of a transaction.

        Args:
            broker_name: The name of the broker that asks.
            question: Its request, CHECK_TRANSACTION_STATE.

        Returns:
            None if the message in the request is damaged.
        """
        header = CheckTransactionHeader.decode(question.fields)
        record = next(records_in(question.body), None)
        if record is None:
            return None
        properties = record.properties
        transaction_id = header.transaction_id or properties.get(UNIQ_KEY, "")
        place = HalfMessagePlace(
            broker_name,
            header.tran_state_table_offset,
            header.commit_log_offset,
            properties.get(PGROUP, record.topic),
        )
        self._known.remember(record.topic, transaction_id, place)
        return TelemetryCommand(
            recover_orphaned_transaction_command=RecoverOrphanedTransactionCommand(
                message=delivered(record, properties, record.topic), transaction_id=transaction_id
            )
        )
