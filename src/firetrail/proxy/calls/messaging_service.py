"""The service ``apache.rocketmq.v2.MessagingService``: all its calls, and what they share.

Every call names its client, and errors become the ``status`` of the response: a call that was
refused still has the gRPC status OK. Only telemetry streams end with another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from firetrail.broker.broker_config import BrokerConfig
from firetrail.pace.periodic import GuardedStep, every
from firetrail.proxy.calls.consumption.pop_requests import PopRequests
from firetrail.proxy.calls.consumption.receipt_calls import ReceiptCalls
from firetrail.proxy.calls.consumption.receive import ReceiveCalls
from firetrail.proxy.calls.consumption.renewal import Renewals
from firetrail.proxy.calls.grpc_guard import GrpcGuard, check_rate
from firetrail.proxy.calls.offset_calls import OffsetCalls
from firetrail.proxy.calls.recall_calls import RecallCalls
from firetrail.proxy.calls.route_calls import RouteCalls
from firetrail.proxy.calls.send_calls import SendCalls
from firetrail.proxy.calls.session_calls import SessionCalls
from firetrail.proxy.calls.status_codes import status_of
from firetrail.proxy.calls.telemetry import Telemetry
from firetrail.proxy.calls.transaction_calls import KnownTransactions, TransactionCalls
from firetrail.proxy.schema import messages
from firetrail.proxy.schema.messages import (
    ProtoMessage,
    PullMessageResponse,
    Status,
    TelemetryCommand,
)
from firetrail.proxy.transport.call import (
    Call,
    Methods,
    ResponseMessage,
    ResponseStreamMethod,
    StreamMethod,
    UnaryMethod,
)
from firetrail.proxy.upstream.grpc_clients import ProxyClient, ProxyClients
from firetrail.proxy.upstream.interface import RegisteringBrokers
from firetrail.remoting.messages.requests import BODY_MAX
from firetrail.system import Clock

SERVICE = "/apache.rocketmq.v2.MessagingService/"
DELAY_MAX_MS = BrokerConfig().grpc_delay_max_ms
TELEMETRY_BYTES = 4 << 20
"""Limit for a message of a telemetry stream, such as a thread dump."""
SWEEP_S = 5.0
"""Interval at which silent clients are looked for."""

Responses = Sequence[ResponseMessage]
_log = logging.getLogger(__name__)
_NOT_EXPIRED = "silent clients could not be removed; will retry"


class MessagingService:
    """All calls of the service.

    Args:
        brokers: The brokers behind the service.
        clock: The clock.
        delay_max_ms: The longest delay of a message. Default: a day.
        guard: Decides about every call. Default: every call is allowed.

    Attributes:
        methods: The calls, for a transport.
        clients: The clients of the service.
    """

    def __init__(
        self,
        brokers: RegisteringBrokers,
        clock: Clock,
        delay_max_ms: int = DELAY_MAX_MS,
        guard: GrpcGuard | None = None,
    ) -> None:
        self._guard = guard
        now, now_ms = clock.monotonic, clock.now_ms
        if guard is None:
            self.clients = ProxyClients(now)
        else:
            self.clients = ProxyClients(now, guard.audit, guard.limits, guard.owners)
        known = KnownTransactions()
        requests = PopRequests(brokers)
        self._renewals = Renewals(requests, brokers, now_ms, now)
        self._receiving = ReceiveCalls(brokers, requests, self._renewals, now_ms, guard)
        self._transactions = TransactionCalls(brokers, known)
        self._sending = SendCalls(brokers, known, now_ms, delay_max_ms)
        self._receipts = ReceiptCalls(brokers, requests, self._renewals, now_ms)
        self._offsets = OffsetCalls(brokers, guard)
        self._recalls = RecallCalls(brokers)
        self._routes = RouteCalls(brokers)
        self._sessions = SessionCalls(brokers, self.clients)
        self._telemetry = Telemetry(brokers, self.clients, self._transactions.orphaned, guard)
        self._brokers = brokers
        self.clients.on_left.append(self._left)
        self.methods: Methods = self._methods()
        self._sweeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look for silent clients."""
        self._sweeper = asyncio.get_running_loop().create_task(
            every(SWEEP_S, GuardedStep(self.clients.expire, _NOT_EXPIRED, _log))
        )

    async def stop(self) -> None:
        """Stop the work in the background, and forget all clients."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await self._renewals.stop()
        for client in self.clients.all():
            self.clients.leave(client)
        await self._receiving.stop()

    def _left(self, client: ProxyClient) -> None:
        self._renewals.release(client.client_id)
        self._brokers.left(client)

    # -- methods ------------------------------------------------------------------------------

    def _methods(self) -> Methods:
        receipts, offsets, sessions = self._receipts, self._offsets, self._sessions
        unary: dict[str, Callable[[Call, ProxyClient, Any], Any]] = {
            "QueryRoute": self._routes.route,
            "QueryAssignment": self._routes.assignment,
            "SendMessage": self._sending.send,
            "ChangeInvisibleDuration": receipts.change,
            "ForwardMessageToDeadLetterQueue": receipts.forward,
            "EndTransaction": self._transactions.end,
            "RecallMessage": self._recalls.recall,
            "UpdateOffset": offsets.update,
            "GetOffset": offsets.get,
            "QueryOffset": offsets.query,
            "Heartbeat": sessions.heartbeat,
            "NotifyClientTermination": sessions.terminate,
            "SyncLiteSubscription": sessions.sync_lite,
        }
        found: dict[str, UnaryMethod | ResponseStreamMethod | StreamMethod] = {
            SERVICE + name: self._unary(name, handle) for name, handle in unary.items()
        }
        found[f"{SERVICE}AckMessage"] = self._unary("AckMessage", receipts.ack, receipts.ack_all)
        found[f"{SERVICE}ReceiveMessage"] = self._frames(
            "ReceiveMessage", self._receiving.receive, self._receiving.failed
        )
        found[f"{SERVICE}PullMessage"] = self._frames("PullMessage", offsets.pull, _failed_pull)
        found[f"{SERVICE}Telemetry"] = StreamMethod(
            TelemetryCommand, self._telemetry.open, TELEMETRY_BYTES
        )
        return found

    def _unary(
        self,
        name: str,
        handle: Callable[[Call, ProxyClient, Any], Any],
        handle_all: Callable[[Sequence[tuple[ProxyClient, Any]]], Sequence[Any]] | None = None,
    ) -> UnaryMethod:
        """Return the method of a call with one response.

        ``handle_all`` returns the responses to requests that arrived together. It does not raise.
        """
        response_type: Any = getattr(messages, f"{name}Response")

        def failed(error: Exception) -> ProtoMessage:
            response: ProtoMessage = response_type(status=status_of(error))
            return response

        def answer(call: Call, request: Any) -> ResponseMessage | Awaitable[ResponseMessage]:
            try:
                response = handle(call, self._client(name, call, request), request)
            except Exception as error:
                return failed(error)
            return later(response) if hasattr(response, "__await__") else response

        def answer_all(
            calls: Sequence[tuple[Call, Any]],
        ) -> Sequence[ResponseMessage | Awaitable[ResponseMessage]]:
            refused: dict[int, ProtoMessage] = {}
            requests = []
            for number, (call, request) in enumerate(calls):
                try:
                    requests.append((self._client(name, call, request), request))
                except Exception as error:
                    refused[number] = failed(error)
            answers: Sequence[Any] = handle_all(requests) if handle_all is not None else ()
            if refused:
                others = iter(answers)
                answers = [
                    refused[number] if number in refused else next(others)
                    for number in range(len(calls))
                ]
            return [later(each) if hasattr(each, "__await__") else each for each in answers]

        async def later(response: Awaitable[ResponseMessage]) -> ResponseMessage:
            try:
                return await response
            except Exception as error:
                return failed(error)

        return UnaryMethod(
            getattr(messages, f"{name}Request"),
            answer,
            answer_all if handle_all is not None else None,
            None if name == "SendMessage" else BODY_MAX,
        )

    def _frames(
        self,
        name: str,
        handle: Callable[[Call, ProxyClient, Any], Awaitable[Responses]],
        failed: Callable[[Status], Responses],
    ) -> ResponseStreamMethod:
        async def answer(call: Call, request: Any) -> Responses:
            try:
                return await handle(call, self._client(name, call, request), request)
            except Exception as error:
                return failed(status_of(error))

        return ResponseStreamMethod(getattr(messages, f"{name}Request"), answer, BODY_MAX)

    def _client(self, name: str, call: Call, request: Any) -> ProxyClient:
        """Return the client that makes a call; raise ProxyError if the call is refused."""
        check_rate(call, request)
        if self._guard is not None:
            call.caller = self._guard.caller(name, call, request)
        client = self.clients.of(call)
        call.accept()
        return client


def _failed_pull(status: Status) -> Responses:
    return [PullMessageResponse(status=status)]
