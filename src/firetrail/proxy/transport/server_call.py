"""A call with one request: reads it, runs the method, and writes the response and the status."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from firetrail.auth.caller import Caller
from firetrail.errors import GrpcError
from firetrail.proxy.http2.http2_connection import Http2Connection
from firetrail.proxy.http2.http2_stream import Http2Stream
from firetrail.proxy.kernels.request_head import RequestHead
from firetrail.proxy.transport import codec
from firetrail.proxy.transport.call import (
    HandleAll,
    Method,
    ProtobufMessage,
    ResponseStreamMethod,
    StatusCode,
    UnaryMethod,
)
from firetrail.proxy.transport.grpc_limits import GrpcLimits, MemoryAccount
from firetrail.remoting.connections.unexpected_errors import log_unexpected

_INTERNAL_TEXT = "the server failed to handle the call; its log has the reason"


class CallConnection(Protocol):
    """The connection that carries a call."""

    peer: str
    local: str
    http2: Http2Connection
    loop: asyncio.AbstractEventLoop
    memory: MemoryAccount
    arriving: set[BaseCall]
    """Calls whose request is incomplete."""
    tasks: set[asyncio.Future[Any]]
    """The tasks that run for the calls of the server."""

    @property
    def certificate_user(self) -> str | None:
        """The user that the certificate of the client names."""

    @property
    def is_encrypted(self) -> bool:
        """Whether the client uses TLS."""

    def is_too_fast(self, request: ProtobufMessage) -> bool:
        """Count a message; return whether the address of the client sends more than it may."""

    def prove(self, caller: Caller | None) -> None:
        """Note that a call of the client is allowed, and who made it."""

    def run(self, call: SingleCall) -> None:
        """Start the call, now or soon."""

    def flush_soon(self) -> None:
        """Write the output of the connection, once per iteration of the event loop."""

    def ended(self, call: BaseCall) -> None:
        """Forget the call."""

    def tell_after_flush(self, call: BaseCall) -> None:
        """Report the call as written when its last bytes were passed to the socket."""


class BaseCall:
    """The common base of calls with one request and of streams."""

    __slots__ = (
        "_callbacks",
        "_deadline",
        "_head_bytes",
        "_held_bytes",
        "_line",
        "_reader",
        "_stream",
        "_timer",
        "authority",
        "caller",
        "is_ended",
        "metadata",
        "path",
        "progress_at",
    )

    def __init__(
        self,
        line: CallConnection,
        stream: Http2Stream,
        head: RequestHead,
        limits: GrpcLimits,
        now: float,
        method: Method,
    ) -> None:
        self._line = line
        self._stream = stream
        self.metadata: Mapping[str, str] = head.fields
        self.authority = head.authority
        self.path = head.path
        self.caller: Caller | None = None
        self.is_ended = False
        """Whether the status is queued, or the client is gone."""
        self.progress_at = now
        """The time at which a part of the request arrived last."""
        self._held_bytes = 0
        self._callbacks: list[Callable[[bool], None]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        timeout = head.fields.get("grpc-timeout")
        self._deadline = None if timeout is None else now + codec.timeout_s(timeout)
        message_max, inflated_max = limits.message_bytes, limits.inflated_bytes
        if (request_bytes := method.request_bytes) is not None:
            message_max, inflated_max = min(message_max, request_bytes), request_bytes
        encoding = head.fields.get("grpc-encoding", "identity")
        self._reader = codec.MessageReader(encoding, message_max, inflated_max)
        self._head_bytes = head.size
        self._hold(head.size)

    # -- for methods --------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        """Address of the client."""
        return self._line.peer

    @property
    def local(self) -> str:
        """Address that the client connected to."""
        return self._line.local

    @property
    def certificate_user(self) -> str | None:
        """The user that the certificate of the client names."""
        return self._line.certificate_user

    @property
    def is_encrypted(self) -> bool:
        """Whether the client uses TLS."""
        return self._line.is_encrypted

    def is_too_fast(self, request: ProtobufMessage) -> bool:
        """Count a message; return whether the address of the client sends more than it may."""
        return self._line.is_too_fast(request)

    def accept(self) -> None:
        """Note that the call is allowed."""
        self._line.prove(self.caller)

    def remaining_s(self) -> float | None:
        """Return the seconds until the deadline."""
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - self._line.loop.time())

    def when_done(self, callback: Callable[[bool], None]) -> None:
        """Call ``callback`` when the call has ended."""
        if self._callbacks is None:
            self._callbacks = []
        self._callbacks.append(callback)

    # -- for the connection -------------------------------------------------------------------

    def written(self) -> None:
        """Note that the whole response is in the output of the connection."""
        self._line.ended(self)
        if self._callbacks is not None:
            self._line.tell_after_flush(self)

    def cancelled(self) -> None:
        """End the call, because the client is gone."""
        self._line.ended(self)
        self.is_ended = True
        self.stop()
        self.tell(False)

    def tell(self, was_written: bool) -> None:
        """Call the callbacks that were registered for the end of the call, once."""
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            try:
                callback(was_written)
            except Exception as error:
                text = f"{self.path}: a callback at the end of the call failed"
                log_unexpected(text, error)

    def fail(self, code: StatusCode, text: str) -> None:
        """End the call with an error, unless it has ended."""
        raise NotImplementedError

    def _fail_by(self, error: BaseException) -> None:
        if isinstance(error, GrpcError):
            self.fail(StatusCode(error.code), error.text)
        else:
            log_unexpected(f"{self.path} of {self.peer} failed", error, self.path)
            self.fail(StatusCode.INTERNAL, _INTERNAL_TEXT)

    def stop(self) -> None:
        """Stop the tasks of the call, and release its memory."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held_bytes:
            self._line.memory.give_back(self._held_bytes)
            self._held_bytes = 0

    def _read(self, data: bytes) -> list[bytes]:
        """Return the messages that have arrived; raise GrpcError if they cannot be accepted."""
        self._hold(len(data))
        messages = self._reader.feed(data)
        if self._reader.inflated_bytes:
            self._hold(self._reader.inflated_bytes)
            self._reader.inflated_bytes = 0
        return messages

    def _hold(self, size: int) -> None:
        if not self._line.memory.take(size):
            raise GrpcError(
                StatusCode.RESOURCE_EXHAUSTED, "the server has too many bytes of requests waiting"
            )
        self._held_bytes += size

    def _expire(self) -> None:
        self._timer = None
        self.fail(StatusCode.DEADLINE_EXCEEDED, "the deadline of the call has passed")


def decoded(kind: type[ProtobufMessage], data: bytes) -> Any:
    """Return a message of a client.

    Raises:
        GrpcError: The bytes are not a message of this kind.
    """
    try:
        return kind.FromString(data)
    except (DecodeError, UnicodeDecodeError):
        raise GrpcError(StatusCode.INTERNAL, "the request cannot be decoded") from None


class SingleCall(BaseCall):
    """A call with one request and one or several responses.

    Attributes:
        method: The method that is called.
    """

    __slots__ = ("_messages", "_task", "method")

    def __init__(
        self,
        line: CallConnection,
        stream: Http2Stream,
        head: RequestHead,
        limits: GrpcLimits,
        now: float,
        method: UnaryMethod | ResponseStreamMethod,
    ) -> None:
        super().__init__(line, stream, head, limits, now, method)
        self.method = method
        self._messages: list[bytes] = []
        self._task: asyncio.Future[Any] | None = None
        line.arriving.add(self)

    def data(self, data: bytes, is_last: bool) -> None:
        """Handle data of the request."""
        if self.is_ended:
            return
        try:
            if data:
                self._messages += self._read(data)
                self.progress_at = self._line.http2.now
            if is_last or len(self._messages) > 1:
                self._check_request()
        except GrpcError as error:
            self.fail(StatusCode(error.code), error.text)
            return
        if is_last:
            self._line.arriving.discard(self)
            self._line.run(self)

    def _check_request(self) -> None:
        if len(self._messages) != 1 or self._reader.waiting_bytes:
            raise GrpcError(StatusCode.INTERNAL, "the call needs exactly one complete request")

    def start(self) -> None:
        """Call the method, and answer with its result."""
        request = self._request()
        if request is None:
            return
        try:
            answer = self.method.handle(self, request)
        except Exception as error:
            self._fail_by(error)
            return
        self._accept(answer)

    @staticmethod
    def start_all(calls: Sequence[SingleCall], handle_all: HandleAll) -> None:
        """Call a method once for calls that arrived together, and answer each."""
        started = [(call, request) for call in calls if (request := call._request()) is not None]
        if not started:
            return
        try:
            answers = handle_all(started)
        except Exception as error:
            for call, _ in started:
                call._fail_by(error)
            return
        for (call, _), answer in zip(started, answers, strict=True):
            call._accept(answer)

    def _request(self) -> Any:
        """Return the decoded request; None if the call has ended, or ends because of it."""
        if self.is_ended:
            return None
        if self._deadline is not None and self._deadline <= self._line.loop.time():
            self._expire()
            return None
        try:
            return decoded(self.method.request, self._messages.pop())
        except Exception as error:
            self._fail_by(error)
            return None

    def _accept(self, answer: Any) -> None:
        if not hasattr(answer, "__await__"):  # a check for Awaitable takes several times as long
            self._respond(answer)
        else:
            self._wait_for(asyncio.ensure_future(answer))

    def _wait_for(self, task: asyncio.Future[Any]) -> None:
        self._task = task
        self._line.tasks.add(task)
        task.add_done_callback(self._answered)
        if self.is_ended:
            self.stop()
        elif self._deadline is not None:
            self._timer = self._line.loop.call_at(self._deadline, self._expire)

    def _answered(self, task: asyncio.Future[Any]) -> None:
        self._line.tasks.discard(task)
        self._task = None
        if task.cancelled():
            self.fail(StatusCode.CANCELLED, "the server cancelled the call")
        elif (error := task.exception()) is None:
            self._respond(task.result())
        else:
            self._fail_by(error)

    def _respond(self, answer: Any) -> None:
        if self.is_ended:
            return
        try:
            if isinstance(self.method, UnaryMethod):
                data = codec.frame_message(answer.SerializeToString())
            else:
                data = b"".join(
                    [codec.frame_message(message.SerializeToString()) for message in answer]
                )
        except Exception as error:
            self._fail_by(error)
            return
        self.is_ended = True
        self.stop()
        output = self._line.http2.output
        output.respond(self._stream, codec.HEADERS, data, codec.TRAILERS_OK)
        self._line.flush_soon()

    def fail(self, code: StatusCode, text: str) -> None:
        """End the call with an error."""
        if not self.is_ended:
            self.is_ended = True
            self.stop()
            self.tell(False)
            self._line.http2.output.end(self._stream, codec.trailers_only(code, text))
            self._line.flush_soon()

    def stop(self) -> None:
        """Cancel the method."""
        super().stop()
        self._line.arriving.discard(self)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
