"""The telemetry streams of clients: their settings, and the commands of the server.

A client opens a stream, sends its settings and gets them back completed. The server uses the stream
to ask the client for the outcome of a transaction, to have a message verified, and for a thread
dump; it does the last two on behalf of administrators who ask the broker.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from uuid import uuid4

from firetrail.auth.caller import NO_USER
from firetrail.errors import FiretrailError, ProxyError, RequestError
from firetrail.proxy.calls.client_settings import adopt, completed
from firetrail.proxy.calls.grpc_guard import GrpcGuard, check_rate
from firetrail.proxy.calls.status_codes import OK, error_of
from firetrail.proxy.conversion.delivered_messages import delivered, records_in
from firetrail.proxy.schema.messages import (
    Code,
    Language,
    PrintThreadStackTraceCommand,
    Settings,
    Status,
    TelemetryCommand,
    VerifyMessageCommand,
)
from firetrail.proxy.transport.call import StatusCode, Stream, StreamHandler
from firetrail.proxy.upstream.grpc_clients import ProxyClient, ProxyClients
from firetrail.proxy.upstream.interface import RegisteringBrokers, resolved
from firetrail.remoting.messages.admin.admin_bodies import ConsumerRunningInfo, DirectlyConsumed
from firetrail.remoting.messages.admin.admin_headers import RunningInfoHeader
from firetrail.remoting.messages.bodies import SubscriptionGroupConfig
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

ANSWER_S = 5.0
"""The time that a client may take to verify a message, or to return a thread dump."""
QUESTIONS_MAX = 1_000
"""Maximum number of unanswered questions to clients."""
SETTINGS_WAITING_MAX = 16
"""Maximum number of settings of one stream that wait for brokers; a stream that sends more is
ended."""
REPEATS_S = (1.0, 5.0)
"""The times, in seconds, at which the answer to the first settings of a Node.js client is sent
again. The client misses an answer that arrives before it has the routes of all its topics, and then
never starts."""

_CONSUMED: dict[int, str] = {Code.OK: "CR_SUCCESS", Code.MESSAGE_CORRUPTED: "CR_RETURN_NULL"}
_log = logging.getLogger(__name__)

Orphaned = Callable[[str, RemotingCommand], TelemetryCommand | None]
"""A function that returns the command that asks a producer for the outcome of a transaction, given
the name of the asking broker and its request; None if the request is damaged."""


class PendingCommand(NamedTuple):
    """A command to a client, and the answer that is awaited."""

    client: ProxyClient
    answer: asyncio.Future[TelemetryCommand]


class Telemetry:
    """All telemetry streams.

    Args:
        brokers: The brokers, whose requests to clients become commands.
        clients: The table of clients.
        orphaned: Turns the question for the outcome of a transaction into a command.
        guard: Decides about every stream and its settings. Default: None, which allows all.
    """

    def __init__(
        self,
        brokers: RegisteringBrokers,
        clients: ProxyClients,
        orphaned: Orphaned,
        guard: GrpcGuard | None = None,
    ) -> None:
        self._guard = guard
        self._brokers = brokers
        self._clients = clients
        self._orphaned = orphaned
        self._questions: dict[str, PendingCommand] = {}
        brokers.on_command = self.commanded

    def open(self, stream: Stream) -> StreamHandler:
        """Handle a new stream."""
        try:
            check_rate(stream, TelemetryCommand())
            if self._guard is not None:
                stream.caller = self._guard.authenticated("Telemetry", stream)
            self._clients.attach(self._clients.of(stream), stream)
        except ProxyError as error:
            refuse(stream, error)
        return _TelemetryStream(self, stream)

    # -- frames of clients --------------------------------------------------------------------

    def client_of(self, stream: Stream) -> ProxyClient:
        """Return the client of a stream, which gets commands on it from now on."""
        client = self._clients.of(stream)
        if stream not in client.streams:  # the client had left, or was forgotten
            self._clients.attach(client, stream)
        return client

    def adopt(
        self, stream: Stream, settings: Settings
    ) -> TelemetryCommand | Awaitable[TelemetryCommand]:
        """Register a client with its settings, and return the answer to them.

        Raises:
            ProxyError: The settings are not allowed.
        """
        if self._guard is not None:
            if stream.caller is None:
                raise ProxyError(Code.UNAUTHORIZED, NO_USER)
            stream.caller = self._guard.authorize("Telemetry", stream, stream.caller, settings)
        client = self.client_of(stream)
        stream.accept()
        group = adopt(client, settings, self._brokers.reserved)
        beat = self._heartbeat(client)
        found = self._brokers.group(group) if group is not None else None
        if beat is None and (found is None or isinstance(found, SubscriptionGroupConfig)):
            return self._adopted(client, settings, found)
        return self._adopt_later(client, settings, beat, found)

    async def _adopt_later(
        self,
        client: ProxyClient,
        settings: Settings,
        beat: Awaitable[None] | None,
        group: SubscriptionGroupConfig | Awaitable[SubscriptionGroupConfig | None] | None,
    ) -> TelemetryCommand:
        if beat is not None:
            try:
                await beat
            except (FiretrailError, OSError) as error:
                _not_registered(client, error)
        return self._adopted(client, settings, await resolved(group))

    def _heartbeat(self, client: ProxyClient) -> Awaitable[None] | None:
        """Register the client; its next heartbeat does so if this fails."""
        try:
            return self._brokers.heartbeat(client)
        except FiretrailError as error:
            _not_registered(client, error)
            return None

    def _adopted(
        self, client: ProxyClient, settings: Settings, group: SubscriptionGroupConfig | None
    ) -> TelemetryCommand:
        client.settings = completed(settings, group)
        return TelemetryCommand(status=OK, settings=client.settings)

    def answered(self, stream: Stream, nonce: str, answer: TelemetryCommand) -> None:
        """Pass the answer of a client to the question that waits for it; ignore that of another."""
        question = self._questions.get(nonce)
        if question is None or question.answer.done():
            return
        if stream in question.client.streams:
            question.answer.set_result(answer)

    # -- requests of brokers ------------------------------------------------------------------

    def commanded(
        self, client: ProxyClient, broker: str, command: RemotingCommand
    ) -> Awaitable[RemotingCommand] | None:
        """Turn a request of a broker into a command for the client."""
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            question = self._orphaned(broker, command)
            if question is not None and not client.tell(question):
                _log.info("client %s has no telemetry stream to be asked on", client.client_id)
            return None
        if command.is_one_way:
            return None  # gRPC clients ask for their assignment and their offsets by themselves
        if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            return self._running_info(client, command)
        if command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            return self._verify(client, command)
        remark = f"gRPC client {client.client_id} cannot answer request {command.code}"
        return resolved(command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))

    async def _running_info(self, client: ProxyClient, request: RemotingCommand) -> RemotingCommand:
        header = RunningInfoHeader.decode(request.fields)
        subscriptions = client.subscriptions.get(header.consumer_group, {})
        dump: str | None = None
        if header.jstack_enable:
            nonce = uuid4().hex
            command = TelemetryCommand(
                print_thread_stack_trace_command=PrintThreadStackTraceCommand(nonce=nonce)
            )
            answer = await self._ask(client, nonce, command)
            if answer is None:
                return request.answer(ResponseCode.SYSTEM_BUSY, _silent(client))
            dump = answer.thread_stack_trace.thread_stack_trace
        version = client.settings.user_agent.version if client.settings is not None else ""
        properties = {"PROP_CLIENT_VERSION": version}
        info = ConsumerRunningInfo(properties, list(subscriptions.values()), jstack=dump)
        return request.answer(body=info.encode())

    async def _verify(self, client: ProxyClient, request: RemotingCommand) -> RemotingCommand:
        record = next(records_in(request.body), None)
        if record is None:
            return request.answer(ResponseCode.SYSTEM_ERROR, "the message is damaged")
        message = delivered(record, record.properties, record.topic)
        nonce = uuid4().hex
        command = TelemetryCommand(
            verify_message_command=VerifyMessageCommand(nonce=nonce, message=message)
        )
        answer = await self._ask(client, nonce, command)
        if answer is None:
            return request.answer(ResponseCode.SYSTEM_BUSY, _silent(client))
        result = _CONSUMED.get(answer.status.code, "CR_LATER")
        body = DirectlyConsumed(result, remark=answer.status.message or None)
        return request.answer(body=body.encode())

    async def _ask(
        self, client: ProxyClient, nonce: str, command: TelemetryCommand
    ) -> TelemetryCommand | None:
        """Return the answer of a client to a command, None if it does not answer in time."""
        if len(self._questions) >= QUESTIONS_MAX or not client.tell(command):
            return None
        question = PendingCommand(client, asyncio.get_running_loop().create_future())
        self._questions[nonce] = question
        try:
            async with asyncio.timeout(ANSWER_S):
                return await question.answer
        except TimeoutError:
            return None
        finally:
            del self._questions[nonce]


class _TelemetryStream:
    """The frames of one stream."""

    def __init__(self, telemetry: Telemetry, stream: Stream) -> None:
        self._telemetry = telemetry
        self._stream = stream
        self._waiting: deque[Awaitable[TelemetryCommand]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._repeats: list[asyncio.TimerHandle] = []

    def received(self, command: TelemetryCommand) -> None:
        """Handle a frame of the client."""
        if not self._stream.is_open:
            return
        try:
            check_rate(self._stream, command)
            self._handle(command)
        except Exception as error:
            self._fail(error)

    def _handle(self, command: TelemetryCommand) -> None:
        kind = command.WhichOneof("command")
        if kind == "settings":
            self._answer(self._telemetry.adopt(self._stream, command.settings))
        elif kind == "thread_stack_trace":
            self._telemetry.answered(self._stream, command.thread_stack_trace.nonce, command)
        elif kind == "verify_message_result":
            self._telemetry.answered(self._stream, command.verify_message_result.nonce, command)

    def _answer(self, answer: TelemetryCommand | Awaitable[TelemetryCommand]) -> None:
        """Send an answer after those that still wait for brokers."""
        if isinstance(answer, TelemetryCommand) and self._task is None:
            self._send(answer)
            return
        self._waiting.append(resolved(answer))
        if len(self._waiting) > SETTINGS_WAITING_MAX:
            self._stream.finish(StatusCode.RESOURCE_EXHAUSTED, "the client sends too many settings")
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._send_answers())

    async def _send_answers(self) -> None:
        while self._waiting:
            try:
                self._send(await self._waiting.popleft())
            except Exception as error:
                self._fail(error)
        self._task = None

    def _send(self, answer: TelemetryCommand) -> None:
        self._stream.send(answer)
        if not self._repeats and _may_be_missed(answer.settings) and self._stream.is_open:
            loop = asyncio.get_running_loop()
            self._repeats = [loop.call_later(s, self._stream.send, answer) for s in REPEATS_S]

    def _fail(self, error: Exception) -> None:
        """End the stream: clients open another one, and send their settings again."""
        translated = error_of(error)
        if translated.code == Code.UNAUTHORIZED:
            refuse(self._stream, translated)
        else:
            self._stream.finish(_ending(translated.code), translated.text)

    def closed(self) -> None:
        """End the stream when the client does."""
        for repeat in self._repeats:
            repeat.cancel()
        self._stream.finish()


def refuse(stream: Stream, error: ProxyError) -> None:
    """End a stream with a code that its client shows.

    As in RocketMQ, it is in a frame, after which the stream ends without an error. The client for
    Go ignores the frame and shows how the stream ends. Others do not expect an error: the client
    for Node.js has no listener for it after the frame.
    """
    stream.send(TelemetryCommand(status=Status(code=error.code, message=error.text)))
    if stream.metadata.get("x-mq-language") == "GO":
        stream.finish(_ending(error.code), error.text)
    else:
        stream.finish()


def _ending(code: int) -> StatusCode:
    """Return the end of a stream for an error with a code of RocketMQ."""
    if code == Code.UNAUTHORIZED:
        return StatusCode.PERMISSION_DENIED
    if code == Code.TOO_MANY_REQUESTS:
        return StatusCode.RESOURCE_EXHAUSTED
    is_of_client = Code.BAD_REQUEST <= code < Code.INTERNAL_ERROR
    return StatusCode.INVALID_ARGUMENT if is_of_client else StatusCode.INTERNAL


def _not_registered(client: ProxyClient, error: Exception) -> None:
    level = logging.INFO
    if isinstance(error, RequestError) and error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
        level = logging.DEBUG  # the group may be created later
    _log.log(level, "client %s is not registered yet: %s", client.client_id, error)


def _may_be_missed(settings: Settings) -> bool:
    """Return whether the client may receive the answer before it waits for it."""
    topics = max(len(settings.publishing.topics), len(settings.subscription.subscriptions))
    return settings.user_agent.language == Language.NODE_JS and topics > 1


def _silent(client: ProxyClient) -> str:
    return f"gRPC client {client.client_id} has not answered within {ANSWER_S:g} s"
