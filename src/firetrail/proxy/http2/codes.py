"""Numbers of HTTP/2: kinds of frames, flags, settings and error codes (RFC 9113)."""

from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of every client."""
HEAD_SIZE = 9
"""Bytes before the payload of a frame."""
WINDOW_MAX = 2**31 - 1
"""The largest flow-control window."""
DEFAULT_WINDOW = 65_535
"""The window of streams and connections unless the peer announces another one."""
DEFAULT_FRAME_MAX = 16_384
"""The largest payload of a frame unless the peer announces another one."""
FRAME_MAX_LIMIT = 2**24 - 1
"""The largest payload that a peer may announce."""

END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY_FLAG = 0x20


class FrameType(IntEnum):
    """Kinds of frames."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Http2Error(IntEnum):
    """Reasons why a stream or a connection is ended."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class SettingId(IntEnum):
    """Settings that the peers of a connection announce."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6
