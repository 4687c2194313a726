"""h2spec 2.2.1, a conformance test for servers of HTTP/2 and HPACK, against our core of HTTP/2.

h2spec expects responses with a body to plain requests. A gRPC server has none, so the core is
tested with a server that greets.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from interop.stock import WAIT_S, client_environment, needs, output

from firetrail.proxy.http2.http2_connection import Http2Connection
from firetrail.proxy.http2.http2_stream import Http2Stream
from firetrail.proxy.http2.limits import Http2Limits
from firetrail.proxy.kernels.request_head import RequestHead

NEEDS_JAVA = False
BODY = b"Hello, HTTP/2!"


class Greeting:
    """Answers one request with a body."""

    def __init__(self, http2: Http2Connection, stream: Http2Stream) -> None:
        self.http2 = http2
        self.stream = stream

    def data(self, data: bytes, is_last: bool) -> None:
        if is_last:
            self.http2.output.headers(self.stream, b"\x88")
            self.http2.output.data(self.stream, BODY)
            self.http2.output.end(self.stream, b"")

    def cancelled(self) -> None: ...

    def written(self) -> None: ...


class Greeter(asyncio.Protocol):
    """A server of plain HTTP/2."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.http2 = Http2Connection(self, Http2Limits(), 0.0)

    def opened(self, stream: Http2Stream, head: RequestHead) -> None:
        stream.receiver = Greeting(self.http2, stream)

    def data_received(self, data: bytes) -> None:
        self.http2.receive(data, 0.0)
        self.transport.write(b"".join(self.http2.take_output()))
        if self.http2.is_over:
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.http2.lost()


@contextmanager
def greeter() -> Iterator[int]:
    """Run the server in a thread, and return its port."""
    started: Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        async with await loop.create_server(Greeter, "127.0.0.1", 0) as server:
            started.set_result((server.sockets[0].getsockname()[1], loop, stop))
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=[serve()])
    thread.start()
    port, loop, stop = started.result(WAIT_S)
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(WAIT_S)


def test_the_server_conforms(tmp_path: Path) -> None:
    needs("go")
    made = client_environment("h2spec")
    with greeter() as port:
        options = ["--strict", "--host", "127.0.0.1", "--port", str(port), "--timeout", "10"]
        said = output([made / "h2spec", *options], tmp_path)
    assert said.strip().endswith("146 tests, 146 passed, 0 skipped, 0 failed")
