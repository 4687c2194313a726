"""Limits for what a client may cost."""

from dataclasses import dataclass

from firetrail.proxy.http2.codes import DEFAULT_FRAME_MAX


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """Limits for one connection."""

    streams: int = 10_000
    """Open streams; more are refused."""
    frame_bytes: int = DEFAULT_FRAME_MAX
    """The payload of a frame."""
    stream_window: int = 1 << 20
    """Bytes that a stream may receive before it must wait for the server."""
    connection_window: int = 16 << 20
    """The same for all streams of the connection together."""
    block_bytes: int = 32 << 10
    """The compressed headers of a request, over all their frames."""
    block_frames: int = 16
    """Frames over which the headers of a request are spread (CONTINUATION flood)."""
    header_list_bytes: int = 32 << 10
    """Decompressed headers of a request, with 32 bytes extra per header (HPACK bomb). Clients are
    told this limit. Uncompressed headers within it do not exceed `block_bytes`."""
    header_table_bytes: int = 4096
    """The table of headers that the client can refer to."""
    arrival_s: float = 30.0
    """A frame, a block of headers or the preface has to arrive completely within this time."""
    queued_bytes: int = 256 << 20
    """Data that waits for windows of the client; if there is more, the connection is closed."""
    stalled_s: float = 60.0
    """A client has to accept some of the data that waits for it within this time."""
    reset_young_s: float = 1.0
    """Streams that the client resets within this time after opening them count as rapid resets."""
    resets: int = 500
    """Rapid resets, and streams ended by violations, that may happen at once."""
    resets_per_s: float = 100.0
    """The same per second in the long run."""
    idle_frames: int = 10_000
    """Frames that carry no request (pings, settings, empty data and the like) at once."""
    idle_frames_per_s: float = 1000.0
    """The same per second in the long run, besides those that the traffic justifies."""
