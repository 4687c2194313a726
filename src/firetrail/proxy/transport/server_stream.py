"""A call in which both sides send messages one by one."""

from firetrail.errors import GrpcError
from firetrail.proxy.http2.http2_stream import Http2Stream
from firetrail.proxy.kernels.request_head import RequestHead
from firetrail.proxy.transport import codec
from firetrail.proxy.transport.call import ProtobufMessage, StatusCode, StreamHandler, StreamMethod
from firetrail.proxy.transport.grpc_limits import GrpcLimits
from firetrail.proxy.transport.server_call import BaseCall, CallConnection, decoded
from firetrail.remoting.connections.unexpected_errors import log_unexpected


class StreamCall(BaseCall):
    """A stream of a client, and the handler that receives its messages."""

    __slots__ = ("_handler", "_has_headers", "_method")

    def __init__(
        self,
        line: CallConnection,
        stream: Http2Stream,
        head: RequestHead,
        limits: GrpcLimits,
        now: float,
        method: StreamMethod,
    ) -> None:
        super().__init__(line, stream, head, limits, now, method)
        self._method = method
        self._handler: StreamHandler | None = None
        self._has_headers = False

    def start(self) -> None:
        """Create the handler of the stream."""
        try:
            self._handler = self._method.handle(self)
        except Exception as error:
            self._fail_by(error)
            return
        if self._deadline is not None and not self.is_ended:
            self._timer = self._line.loop.call_at(self._deadline, self._expire)

    # -- for methods --------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether messages can still be sent."""
        return not self.is_ended

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait for the client."""
        return self._stream.queued_bytes

    def send(self, message: ProtobufMessage) -> None:
        """Send a message."""
        if self.is_ended:
            return
        output = self._line.http2.output
        if not self._has_headers:
            self._has_headers = True
            output.headers(self._stream, codec.HEADERS)
        output.data(self._stream, codec.frame_message(message.SerializeToString()))
        self._line.flush_soon()

    def finish(self, code: StatusCode = StatusCode.OK, text: str = "") -> None:
        """End the call with a status."""
        if self.is_ended:
            return
        self.is_ended = True
        block = codec.trailers if self._has_headers else codec.trailers_only
        self._line.http2.output.end(self._stream, block(code, text))
        self._line.flush_soon()
        self.stop()
        self._line.loop.call_soon(self._close_handler)

    # -- for the connection -------------------------------------------------------------------

    def data(self, data: bytes, is_last: bool) -> None:
        """Pass the messages of the client on."""
        if self.is_ended:
            return
        try:
            self._receive(data)
            if is_last and self._reader.waiting_bytes:
                raise GrpcError(StatusCode.INTERNAL, "the last message is incomplete")
        except Exception as error:
            self._fail_by(error)
            return
        if is_last:
            self._line.arriving.discard(self)
            self._close_handler()

    def _receive(self, data: bytes) -> None:
        messages = self._read(data)
        for message in messages:
            request = decoded(self._method.request, message)
            if self._handler is not None:
                self._handler.received(request)
        if self.is_ended:
            return
        if self._reader.waiting_bytes:
            self.progress_at = self._line.http2.now
            self._line.arriving.add(self)
        else:
            self._line.arriving.discard(self)
        surplus = self._held_bytes - self._head_bytes - self._reader.waiting_bytes
        self._line.memory.give_back(surplus)
        self._held_bytes -= surplus

    def cancelled(self) -> None:
        """End the stream, because the client is gone."""
        super().cancelled()
        self._close_handler()

    def fail(self, code: StatusCode, text: str) -> None:
        """End the stream with an error."""
        self.finish(code, text)

    def stop(self) -> None:
        """Give back the memory of the stream."""
        super().stop()
        self._line.arriving.discard(self)

    def _close_handler(self) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            try:
                handler.closed()
            except Exception as error:
                text = f"{self.path} of {self.peer}: the end of the stream was not handled"
                log_unexpected(text, error, f"end of {self.path}")
