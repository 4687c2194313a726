"""A connection of a client: handles its frames, and passes requests to a listener.

The connection has no socket: the owner feeds ``receive`` and writes what ``take_output`` returns,
until ``is_over``. It has no clock either: the owner passes the time, in seconds from any point.

A violation of the protocol ends the stream or the connection, as RFC 9113 requires. The cost of a
client is limited by :class:`Http2Limits`; a client that exceeds a limit gets ENHANCE_YOUR_CALM.
"""

from typing import Protocol

from firetrail.proxy.http2 import frames
from firetrail.proxy.http2.abuse_limits import DATA_CREDIT, REQUEST_CREDIT, AbuseLimits
from firetrail.proxy.http2.codes import (
    ACK,
    DEFAULT_FRAME_MAX,
    DEFAULT_WINDOW,
    END_STREAM,
    FRAME_MAX_LIMIT,
    PADDED,
    WINDOW_MAX,
    FrameType,
    Http2Error,
    SettingId,
)
from firetrail.proxy.http2.faults import ConnectionFault, StreamFault, broken, wrong_size
from firetrail.proxy.http2.frame_output import FrameOutput
from firetrail.proxy.http2.http2_stream import Http2Stream, OutputPart
from firetrail.proxy.http2.limits import Http2Limits
from firetrail.proxy.http2.past_streams import PastStreams, StreamEnd
from firetrail.proxy.kernels.block_decoder import BlockDecoder, HeaderField
from firetrail.proxy.kernels.frame_input import FrameInput
from firetrail.proxy.kernels.request_head import (
    MalformedError,
    RequestHead,
    check_trailers,
    request_head,
)

_STREAMS_PER_TOKEN = 64
"""Number of streams whose windows can be changed at the cost of one idle frame."""


class RequestListener(Protocol):
    """The receiver of the requests of a connection."""

    def opened(self, stream: Http2Stream, head: RequestHead) -> None:
        """Set the receiver of a new request. It may be answered at once."""


class Http2Connection:
    """The protocol of one connection, as seen by the server."""

    def __init__(self, listener: RequestListener, limits: Http2Limits, now: float) -> None:
        self._listener = listener
        self._limits = limits
        self.now = now
        """The time of the latest bytes."""
        self._input = FrameInput(self, limits, now)
        self._decoder = BlockDecoder(limits)
        self._abuse = AbuseLimits(limits, now)
        self._past = PastStreams()
        self._last_id = 0
        self._receive_window = limits.connection_window
        self._stalled_since: float | None = None
        self._stalled_at_bytes = 0
        self._is_going_away = False
        self.streams: dict[int, Http2Stream] = {}
        """Open streams by id."""
        self.output = FrameOutput(self._response_ended)
        self.is_over = False
        """Whether the connection has to be closed after its output was written."""
        self.failure = ""
        """The reason why the server ended the connection; empty if the client did nothing wrong."""
        self._handlers = {
            int(FrameType.DATA): self._on_data,
            int(FrameType.PRIORITY): self._on_priority,
            int(FrameType.RST_STREAM): self._on_reset,
            int(FrameType.SETTINGS): self._on_settings,
            int(FrameType.PUSH_PROMISE): self._on_push_promise,
            int(FrameType.PING): self._on_ping,
            int(FrameType.GOAWAY): self._on_go_away,
            int(FrameType.WINDOW_UPDATE): self._on_window_update,
        }
        self._announce()

    def _announce(self) -> None:
        limits = self._limits
        values = (
            (SettingId.HEADER_TABLE_SIZE, limits.header_table_bytes),
            (SettingId.MAX_CONCURRENT_STREAMS, limits.streams),
            (SettingId.INITIAL_WINDOW_SIZE, limits.stream_window),
            (SettingId.MAX_FRAME_SIZE, limits.frame_bytes),
            (SettingId.MAX_HEADER_LIST_SIZE, limits.header_list_bytes),
        )
        self.output.add(frames.settings(values))
        self.output.add(frames.window_update(0, limits.connection_window - DEFAULT_WINDOW))

    # -- called by the owner ------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> None:
        """Handle bytes of the client."""
        self.now = now
        if self.is_over:
            return
        try:
            self._input.feed(data, now)
        except ConnectionFault as fault:
            self.fail(fault.code, fault.text)

    def take_output(self) -> list[OutputPart]:
        """Return the bytes to write."""
        if self.output.queued_bytes > self._limits.queued_bytes:
            self.fail(Http2Error.ENHANCE_YOUR_CALM, "the client accepts too little data")
        return self.output.take()

    @property
    def waiting_bytes(self) -> int:
        """Bytes of a frame or of headers that have not arrived completely."""
        return self._input.waiting_bytes

    def check(self, now: float) -> None:
        """End the connection if the client is too slow. The owner calls it now and then."""
        self.now = now
        limits = self._limits
        since = self._input.unfinished_since
        if since is not None and now - since > limits.arrival_s:
            what = "a frame or the headers of a request did not arrive"
            self.fail(Http2Error.ENHANCE_YOUR_CALM, f"{what} within {limits.arrival_s:g} s")
        output = self.output
        if not output.queued_bytes:
            self._stalled_since = None
        elif self._stalled_since is None or output.sent_bytes != self._stalled_at_bytes:
            self._stalled_since = now
            self._stalled_at_bytes = output.sent_bytes
        elif now - self._stalled_since > limits.stalled_s:
            what = "the client accepted no data of the responses"
            self.fail(Http2Error.ENHANCE_YOUR_CALM, f"{what} for {limits.stalled_s:g} s")

    def resumed(self, now: float) -> None:
        """Forgive the time during which the owner did not read from the client."""
        if self._input.unfinished_since is not None:
            self._input.unfinished_since = now

    def ping(self) -> None:
        """Ping the client, so that it shows that it is alive."""
        self.output.add(frames.ping(bytes(8)))

    def go_away(self) -> None:
        """Ask the client to open no more streams; the open ones continue."""
        if not self._is_going_away and not self.is_over:
            self._is_going_away = True
            self.output.add(frames.go_away(self._last_id, Http2Error.NO_ERROR, ""))

    def fail(self, code: Http2Error, text: str) -> None:
        """End the connection, and tell the client why."""
        if not self.is_over:
            self.failure = text
            self.output.add(frames.go_away(self._last_id, code, text))
            self.lost()

    def lost(self) -> None:
        """End all streams, because the connection has ended."""
        self.is_over = True
        streams, self.streams = self.streams, {}
        for stream in streams.values():
            self._cancel(stream)

    # -- called by the input ------------------------------------------------------------------

    def on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Handle a frame without headers; unknown ones are ignored."""
        handler = self._handlers.get(kind)
        if handler is None:
            self._charge()
            return
        try:
            handler(flags, stream_id, payload)
        except StreamFault as fault:
            self._end_by(fault)

    def on_block(
        self, stream_id: int, block: bytes, is_last: bool, depends_on_itself: bool
    ) -> None:
        """Handle the headers or trailers of a request."""
        fields = self._decoder.decode(block)
        is_new = stream_id > self._last_id
        if is_new:
            self._last_id = stream_id
        try:
            if depends_on_itself:
                raise StreamFault(stream_id, Http2Error.PROTOCOL_ERROR)
            if is_new:
                self._open(stream_id, fields, len(block), is_last)
            else:
                self._on_trailers(stream_id, fields, is_last)
        except MalformedError:
            self._end_by(StreamFault(stream_id, Http2Error.PROTOCOL_ERROR))
        except StreamFault as fault:
            self._end_by(fault)

    # -- streams ------------------------------------------------------------------------------

    def _open(self, stream_id: int, fields: list[HeaderField], size: int, is_last: bool) -> None:
        if self._is_going_away or len(self.streams) >= self._limits.streams:
            raise StreamFault(stream_id, Http2Error.REFUSED_STREAM)
        head = request_head(fields)
        head.size = size
        if is_last and head.content_length:
            raise StreamFault(stream_id, Http2Error.PROTOCOL_ERROR)
        self._abuse.credit += REQUEST_CREDIT
        stream = Http2Stream(
            stream_id, self._limits.stream_window, self.output.initial_window, self.now
        )
        stream.content_left = head.content_length
        stream.is_receiving = not is_last
        self.streams[stream_id] = stream
        self._listener.opened(stream, head)
        if is_last and stream_id in self.streams:
            stream.receiver.data(b"", True)

    def _on_trailers(self, stream_id: int, fields: list[HeaderField], is_last: bool) -> None:
        stream = self.streams.get(stream_id)
        if stream is None:
            end = self._past.end_of(stream_id)
            if end is None:
                raise broken("the numbers of streams do not increase")
            self._on_late(stream_id, end)
            return
        if not stream.is_receiving:
            raise StreamFault(stream_id, Http2Error.STREAM_CLOSED)
        check_trailers(fields)
        if not is_last:
            raise StreamFault(stream_id, Http2Error.PROTOCOL_ERROR)
        self._pass_on(stream, b"", True)

    def _on_late(self, stream_id: int, end: StreamEnd | None) -> None:
        """Handle headers or data of a stream that has ended."""
        self._charge()
        if end is StreamEnd.COMPLETE:
            raise ConnectionFault(Http2Error.STREAM_CLOSED, "a frame after the end of a stream")
        if end is not StreamEnd.RESET_HERE:  # otherwise the client had not heard of the reset
            raise StreamFault(stream_id, Http2Error.STREAM_CLOSED)

    def _pass_on(self, stream: Http2Stream, payload: bytes, is_last: bool) -> None:
        if stream.content_left is not None:
            stream.content_left -= len(payload)
            if stream.content_left < 0 or (is_last and stream.content_left):
                raise StreamFault(stream.id, Http2Error.PROTOCOL_ERROR)
        if is_last:
            stream.is_receiving = False
        if (payload or is_last) and stream.is_sending:
            stream.receiver.data(payload, is_last)

    def _response_ended(self, stream: Http2Stream) -> None:
        """Close the stream after its last frame, also if the client has not finished sending."""
        if stream.is_receiving:
            self._past.add(stream.id, StreamEnd.RESET_HERE)
            self.output.add(frames.reset(stream.id, Http2Error.NO_ERROR))
        else:
            self._past.add(stream.id, StreamEnd.COMPLETE)
        self.streams.pop(stream.id, None)
        stream.receiver.written()

    def _cancel(self, stream: Http2Stream) -> None:
        self.output.forget(stream)
        stream.receiver.cancelled()

    def _end_by(self, fault: StreamFault) -> None:
        self.output.add(frames.reset(fault.stream_id, fault.code))
        self._past.add(fault.stream_id, StreamEnd.RESET_HERE)
        stream = self.streams.pop(fault.stream_id, None)
        if stream is not None:
            self._cancel(stream)
        self._abuse.violation(self.now)

    def _check_was_opened(self, stream_id: int) -> None:
        if stream_id > self._last_id or not stream_id & 1:
            raise broken("a frame names a stream that was never opened")

    def _charge(self, tokens: float = 1) -> None:
        self._abuse.idle_frame(self.now, self.output.sent_bytes, tokens)

    # -- kinds of frames ----------------------------------------------------------------------

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        self._narrow(size)
        if flags & PADDED:
            payload = frames.without_padding(payload)
        stream = self.streams.get(stream_id)
        if stream is None:
            self._check_was_opened(stream_id)
            self._on_late(stream_id, self._past.end_of(stream_id))
            return
        if not stream.is_receiving:
            raise StreamFault(stream_id, Http2Error.STREAM_CLOSED)
        is_last = flags & END_STREAM != 0
        if payload:
            self._abuse.credit += DATA_CREDIT
        elif not is_last:
            self._charge()
        self._narrow_stream(stream, size, is_last)
        self._pass_on(stream, payload, is_last)

    def _narrow(self, size: int) -> None:
        self._receive_window -= size
        if self._receive_window < 0:
            raise ConnectionFault(
                Http2Error.FLOW_CONTROL_ERROR, "more data than the window of the connection"
            )
        if self._receive_window < self._limits.connection_window // 2:
            increment = self._limits.connection_window - self._receive_window
            self._receive_window += increment
            self.output.add(frames.window_update(0, increment))

    def _narrow_stream(self, stream: Http2Stream, size: int, is_last: bool) -> None:
        stream.receive_window -= size
        if stream.receive_window < 0:
            raise StreamFault(stream.id, Http2Error.FLOW_CONTROL_ERROR)
        if not is_last and stream.receive_window < self._limits.stream_window // 2:
            increment = self._limits.stream_window - stream.receive_window
            stream.receive_window += increment
            self.output.add(frames.window_update(stream.id, increment))

    def _on_priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._charge()
        if not stream_id:
            raise broken("PRIORITY names no stream")
        if len(payload) != 5:
            raise StreamFault(stream_id, Http2Error.FRAME_SIZE_ERROR)
        if frames.uint31(payload) == stream_id:
            raise StreamFault(stream_id, Http2Error.PROTOCOL_ERROR)

    def _on_reset(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._check_was_opened(stream_id)
        if len(payload) != 4:
            raise wrong_size("RST_STREAM must have 4 bytes")
        stream = self.streams.pop(stream_id, None)
        if stream is None:
            self._charge()
            return
        self._past.add(stream_id, StreamEnd.RESET_THERE)
        self._cancel(stream)
        self._abuse.client_reset(self.now, stream.opened_at)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise broken("SETTINGS name a stream")
        self._charge(1 + len(payload) // 6)
        if flags & ACK:
            if payload:
                raise wrong_size("SETTINGS with ACK must be empty")
            return
        self.output.add(frames.SETTINGS_ACK)  # before the data that larger windows let through
        for key, value in frames.read_settings(payload):
            self._apply(key, value)

    def _apply(self, key: int, value: int) -> None:
        """Apply a setting of the client. Those that concern a sender of pushes do not matter."""
        if key == SettingId.INITIAL_WINDOW_SIZE:
            self._change_windows(value)
        elif key == SettingId.MAX_FRAME_SIZE:
            if not DEFAULT_FRAME_MAX <= value <= FRAME_MAX_LIMIT:
                raise broken("MAX_FRAME_SIZE is out of range")
            self.output.frame_max = value
        elif key == SettingId.ENABLE_PUSH and value > 1:
            raise broken("ENABLE_PUSH is neither 0 nor 1")

    def _change_windows(self, size: int) -> None:
        text = "INITIAL_WINDOW_SIZE is too large"
        if size > WINDOW_MAX:
            raise ConnectionFault(Http2Error.FLOW_CONTROL_ERROR, text)
        self._charge(len(self.streams) // _STREAMS_PER_TOKEN)
        difference = size - self.output.initial_window
        self.output.initial_window = size
        for stream in list(self.streams.values()):
            try:
                self.output.widen_stream(stream, difference)
            except StreamFault as fault:
                raise ConnectionFault(fault.code, text) from None

    def _on_push_promise(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise broken("a client cannot push")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise broken("PING names a stream")
        if len(payload) != 8:
            raise wrong_size("PING must have 8 bytes")
        self._charge()
        if not flags & ACK:
            self.output.add(frames.ping(payload, ACK))

    def _on_go_away(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise broken("GOAWAY names a stream")
        if len(payload) < 8:
            raise wrong_size("GOAWAY must have at least 8 bytes")
        self._charge()  # the client closes the connection after its last response

    def _on_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise wrong_size("WINDOW_UPDATE must have 4 bytes")
        self._charge()
        increment = frames.uint31(payload)
        if not stream_id:
            if not increment:
                raise broken("WINDOW_UPDATE adds nothing")
            self.output.widen(increment)
            return
        self._check_was_opened(stream_id)
        stream = self.streams.get(stream_id)
        if stream is not None:
            if not increment:
                raise StreamFault(stream_id, Http2Error.PROTOCOL_ERROR)
            self.output.widen_stream(stream, increment)
