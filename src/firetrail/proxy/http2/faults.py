"""Violations of the protocol, raised and caught within this package."""

from firetrail.proxy.http2.codes import Http2Error


class ConnectionFault(Exception):
    """The client violated the protocol, or a limit, in a way that ends the connection."""

    def __init__(self, code: Http2Error, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


class StreamFault(Exception):
    """The client violated the protocol in a way that ends one stream only."""

    def __init__(self, stream_id: int, code: Http2Error) -> None:
        super().__init__(stream_id, code)
        self.stream_id = stream_id
        self.code = code


def broken(text: str) -> ConnectionFault:
    """Return a fault for a violation that has no code of its own."""
    return ConnectionFault(Http2Error.PROTOCOL_ERROR, text)


def wrong_size(text: str) -> ConnectionFault:
    """Return a fault for a frame whose length is not allowed."""
    return ConnectionFault(Http2Error.FRAME_SIZE_ERROR, text)
