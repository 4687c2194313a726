"""The frames for the client, and the flow control of what it is ready to accept.

Data that exceeds a window waits in the queue of its stream. Streams that wait for the window of the
connection take turns; those that wait for their own window are skipped until it opens.
"""

from collections import OrderedDict, deque
from collections.abc import Callable

from firetrail.proxy.http2.codes import (
    DEFAULT_FRAME_MAX,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    WINDOW_MAX,
    FrameType,
    Http2Error,
)
from firetrail.proxy.http2.faults import ConnectionFault, StreamFault
from firetrail.proxy.http2.frames import frame_head
from firetrail.proxy.http2.http2_stream import Http2Stream, OutputPart
from firetrail.proxy.http2.response_headers import NO_TABLE
from firetrail.remoting.connections.output_queue import released

_TURN = 64 << 10
"""Number of bytes that a stream may send before the next one takes its turn."""
_DATA, _HEADERS = int(FrameType.DATA), int(FrameType.HEADERS)
_LAST_HEADERS = END_HEADERS | END_STREAM


class FrameOutput:
    """Collects frames, and queues data until the client accepts it."""

    def __init__(self, ended: Callable[[Http2Stream], None]) -> None:
        self._ended = ended  # called after the last frame of a stream
        self._parts: list[OutputPart] = []
        self._before_block = NO_TABLE
        # Streams that wait for the window of the connection, or for their turn.
        self._ready: OrderedDict[int, Http2Stream] = OrderedDict()
        self.window = DEFAULT_WINDOW
        self.initial_window = DEFAULT_WINDOW
        self.frame_max = DEFAULT_FRAME_MAX
        self.queued_bytes = 0
        """Data of all streams that waits for windows."""
        self.sent_bytes = 0
        """Data of all streams that was ever put into frames."""

    def add(self, frame: bytes) -> None:
        """Append a frame that no window limits."""
        self._parts.append(frame)

    def take(self) -> list[OutputPart]:
        """Return all frames since the last call."""
        parts, self._parts = self._parts, []
        return parts

    # -- responses ----------------------------------------------------------------------------

    def respond(self, stream: Http2Stream, block: bytes, data: bytes, end: bytes) -> None:
        """Send a whole response: headers, data and trailers."""
        size = len(data)
        if not 0 < size <= min(stream.send_window, self.window, self.frame_max):
            self.headers(stream, block)
            self.data(stream, data)
            self.end(stream, end)
            return
        if self._before_block:
            block = self._before_block + block
            self._before_block = b""
        stream.send_window -= size
        self.window -= size
        self.sent_bytes += size
        stream.is_sending = False
        number = stream.id
        self._parts += (
            frame_head(len(block), _HEADERS, END_HEADERS, number),
            block,
            frame_head(size, _DATA, 0, number),
            data,
            frame_head(len(end), _HEADERS, _LAST_HEADERS, number),
            end,
        )
        self._ended(stream)

    def headers(self, stream: Http2Stream, block: bytes) -> None:
        """Send the headers of a response; ``block`` must fit into a frame."""
        self._block(stream.id, block, END_HEADERS)

    def data(self, stream: Http2Stream, data: OutputPart) -> None:
        """Send data as far as the windows allow, and queue the rest."""
        if not data:
            return
        if stream.queue is None:
            stream.queue = deque()
        stream.queue.append(data)
        stream.queued_bytes += len(data)
        self.queued_bytes += len(data)
        self._ready[stream.id] = stream
        self._take_turns()

    def end(self, stream: Http2Stream, block: bytes) -> None:
        """End the response with trailers, or without if the block is empty, after queued data."""
        stream.is_sending = False
        stream.end = block
        if not stream.queued_bytes:
            self._send_end(stream)

    def forget(self, stream: Http2Stream) -> None:
        """Drop the data of a stream that was reset."""
        stream.is_sending = False
        self._ready.pop(stream.id, None)
        self.queued_bytes -= stream.queued_bytes
        stream.queued_bytes = 0
        stream.queue = None

    # -- windows ------------------------------------------------------------------------------

    def widen(self, increment: int) -> None:
        """Add to the window of the connection, and send the data that waited for it."""
        self.window += increment
        if self.window > WINDOW_MAX:
            raise ConnectionFault(
                Http2Error.FLOW_CONTROL_ERROR, "the window of the connection is too large"
            )
        self._take_turns()

    def widen_stream(self, stream: Http2Stream, increment: int) -> None:
        """Add to the window of a stream (also a negative number), and send the data that waited for
        it."""
        stream.send_window += increment
        if stream.send_window > WINDOW_MAX:
            raise StreamFault(stream.id, Http2Error.FLOW_CONTROL_ERROR)
        if stream.queued_bytes:
            self._ready[stream.id] = stream
            self._take_turns()

    # -- frames -------------------------------------------------------------------------------

    def _take_turns(self) -> None:
        while self._ready and self.window > 0:
            self._send_queued(self._ready.popitem(last=False)[1])

    def _send_queued(self, stream: Http2Stream) -> None:
        """Send the data of one turn of a stream, and note whether it is ready for another turn."""
        turn = _TURN
        queue = stream.queue
        assert queue is not None
        while queue and (room := min(stream.send_window, self.window, turn)) > 0:
            chunk = queue[0]
            size = min(len(chunk), room, self.frame_max)
            if size == len(chunk):
                queue.popleft()
                part = chunk
            else:
                view = memoryview(chunk)
                part, queue[0] = released(view[:size]), released(view[size:])
            self._parts += (frame_head(size, _DATA, 0, stream.id), part)
            turn -= size
            self._account(stream, size)
        if not queue:
            if stream.end is not None:
                self._send_end(stream)
        elif stream.send_window > 0:
            self._ready[stream.id] = stream

    def _account(self, stream: Http2Stream, size: int) -> None:
        stream.send_window -= size
        self.window -= size
        self.sent_bytes += size
        stream.queued_bytes -= size
        self.queued_bytes -= size

    def _send_end(self, stream: Http2Stream) -> None:
        if stream.end:
            self._block(stream.id, stream.end, _LAST_HEADERS)
        else:
            self._parts.append(frame_head(0, _DATA, END_STREAM, stream.id))
        self._ended(stream)

    def _block(self, stream_id: int, block: bytes, flags: int) -> None:
        block = self._before_block + block
        self._before_block = b""
        assert len(block) <= DEFAULT_FRAME_MAX, "headers of responses fit into one frame"
        self._parts += (frame_head(len(block), _HEADERS, flags, stream_id), block)
