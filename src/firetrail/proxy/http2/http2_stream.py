"""One stream: what it may still receive and send, and the data that waits for the client."""

from collections import deque
from typing import Protocol

OutputPart = bytes | memoryview


class Receiver(Protocol):
    """The receiver of the data of a request."""

    def data(self, data: bytes, is_last: bool) -> None:
        """Handle bytes of the request."""

    def cancelled(self) -> None:
        """Handle the end of the stream by a reset, a violation or a lost connection.

        It is not called after ``written``.
        """

    def written(self) -> None:
        """Handle that the end of the response is part of the connection's output."""


class _Nobody:
    """The receiver of a stream until the listener has set another one."""

    def data(self, data: bytes, is_last: bool) -> None: ...

    def cancelled(self) -> None: ...

    def written(self) -> None: ...


_NOBODY = _Nobody()


class Http2Stream:
    """The state of a stream. The connection changes it; receivers only pass it on."""

    __slots__ = (
        "content_left",
        "end",
        "id",
        "is_receiving",
        "is_sending",
        "opened_at",
        "queue",
        "queued_bytes",
        "receive_window",
        "receiver",
        "send_window",
    )

    def __init__(
        self, stream_id: int, receive_window: int, send_window: int, opened_at: float
    ) -> None:
        self.id = stream_id
        self.receive_window = receive_window
        self.send_window = send_window
        self.opened_at = opened_at
        self.receiver: Receiver = _NOBODY
        self.is_receiving = True
        """Whether the client may send more data."""
        self.is_sending = True
        """Whether the server may send more data; False as soon as the end is queued."""
        self.content_left: int | None = None
        """Bytes that the client announced and has not sent yet; None if it announced nothing."""
        self.queue: deque[OutputPart] | None = None
        """Data that waits for a window of the client; None as long as nothing ever had to wait."""
        self.queued_bytes = 0
        self.end: bytes | None = None
        """Block of trailers that follows the queue; empty if the data itself ends the stream."""
