"""A gRPC server in a thread of its own, with methods that tests control."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
from tests.helpers import PATIENCE_S

from firetrail.proxy.transport.call import (
    Call,
    GrpcError,
    Methods,
    ProtobufMessage,
    ResponseStreamMethod,
    StatusCode,
    Stream,
    StreamMethod,
    UnaryMethod,
)
from firetrail.proxy.transport.grpc_limits import GrpcLimits
from firetrail.proxy.transport.grpc_server import GrpcServer
from firetrail.system import SYSTEM
from firetrail.tls.server_tls import ServerTls

SERVICE = "/test.Service"


@dataclass
class Text:
    """A message that is nothing but text."""

    text: str = ""

    def SerializeToString(self) -> bytes:
        return self.text.encode()

    def ByteSize(self) -> int:
        return len(self.SerializeToString())

    @classmethod
    def FromString(cls, data: bytes) -> Self:
        return cls(data.decode())


@dataclass
class Recorder:
    """Records what the methods have seen."""

    calls: list[Call] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    ends: list[bool] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def note(self, event: str) -> None:
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def ended(self, was_written: bool) -> None:
        with self.changed:
            self.ends.append(was_written)
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE_S), (self.events, self.ends)


class Echo:
    """The handler of a stream: sends each message back, and obeys some words."""

    def __init__(self, stream: Stream, recorder: Recorder) -> None:
        self.stream = stream
        self.recorder = recorder

    def received(self, message: Text) -> None:
        if message.text == "finish":
            self.stream.finish()
            self.stream.send(Text("ignored"))
        elif message.text == "refuse":
            raise GrpcError(StatusCode.PERMISSION_DENIED, "no")
        elif message.text == "crash":
            raise RuntimeError("asked for")
        else:
            self.stream.send(message)

    def closed(self) -> None:
        self.recorder.note("closed")
        self.stream.finish()


def methods_of(recorder: Recorder) -> Methods:
    def echo(call: Call, request: Text) -> Text:
        recorder.calls.append(call)
        call.when_done(recorder.ended)
        return request

    async def echo_later(call: Call, request: Text) -> Text:
        await asyncio.sleep(0)
        return echo(call, request)

    def wait(call: Call, request: Text) -> Awaitable[Text]:
        call.when_done(recorder.ended)
        recorder.note("waiting")
        return forever()

    async def forever() -> Text:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            recorder.note("cancelled")
            raise
        raise AssertionError

    def refuse(call: Call, request: Text) -> Text:
        raise GrpcError(StatusCode.FAILED_PRECONDITION, request.text)

    async def refuse_later(call: Call, request: Text) -> Text:
        return refuse(call, request)

    def crash(call: Call, request: Text) -> Text:
        raise RuntimeError(request.text)

    async def crash_later(call: Call, request: Text) -> Text:
        return crash(call, request)

    def echo_all(calls: Sequence[tuple[Call, Text]]) -> Sequence[Text | Awaitable[Text]]:
        texts = [request.text for _, request in calls]
        recorder.note(" ".join(texts))
        if "crash" in texts:
            raise RuntimeError("asked for")
        return [
            echo_later(call, request) if request.text == "later" else echo(call, request)
            for call, request in calls
        ]

    def wrong(call: Call, request: Text) -> Any:
        return None

    async def cancel(call: Call, request: Text) -> Text:
        raise asyncio.CancelledError

    def repeat(call: Call, request: Text) -> Sequence[ProtobufMessage]:
        call.when_done(recorder.ended)
        count, _, text = request.text.partition(" ")
        return [Text(text)] * int(count)

    async def repeat_later(call: Call, request: Text) -> Sequence[ProtobufMessage]:
        await asyncio.sleep(0)
        return repeat(call, request)

    def stream(stream: Stream) -> Echo:
        stream.when_done(recorder.ended)
        recorder.note("opened")
        return Echo(stream, recorder)

    found: dict[str, Any] = {
        "Echo": UnaryMethod(Text, echo),
        "EchoLater": UnaryMethod(Text, echo_later),
        "EchoAll": UnaryMethod(Text, echo, echo_all),
        "Wait": UnaryMethod(Text, wait),
        "Refuse": UnaryMethod(Text, refuse),
        "RefuseLater": UnaryMethod(Text, refuse_later),
        "Crash": UnaryMethod(Text, crash),
        "CrashLater": UnaryMethod(Text, crash_later),
        "Wrong": UnaryMethod(Text, wrong),
        "Cancel": UnaryMethod(Text, cancel),
        "Repeat": ResponseStreamMethod(Text, repeat),
        "RepeatLater": ResponseStreamMethod(Text, repeat_later),
        "Stream": StreamMethod(Text, stream),
    }
    return {f"{SERVICE}/{name}": method for name, method in found.items()}


class ServerThread:
    """A server and the event loop that it runs on."""

    def __init__(self, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._runner = asyncio.Runner(loop_factory=new_loop)
        self._started: Future[int] = Future()
        self.recorder = Recorder()
        self.port = 0

    def _run(self, server: GrpcServer) -> None:
        with self._runner:
            self._runner.run(self._serve(server))

    async def _serve(self, server: GrpcServer) -> None:
        self._stop = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        try:
            self._started.set_result(await server.start("127.0.0.1", 0))
        except BaseException as error:
            self._started.set_exception(error)
            raise
        await self._stop.wait()
        await server.stop(self.grace_s)

    @contextmanager
    def serving(
        self,
        limits: GrpcLimits | None = None,
        tls: ServerTls | None = None,
        methods: Methods | None = None,
    ) -> Iterator[Self]:
        self.grace_s = PATIENCE_S
        self.server = GrpcServer(methods or methods_of(self.recorder), SYSTEM, limits, tls)
        thread = threading.Thread(target=self._run, args=[self.server])
        thread.start()
        try:
            self.port = self._started.result(PATIENCE_S)
            yield self
        finally:
            self.stop()
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def stop(self) -> None:
        """Stop the server, without waiting for it; it may have stopped already."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._stop.set)

    def call(self, function: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(PATIENCE_S)


class Client:
    """grpcio's methods for a channel."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel

    def _args(self) -> dict[str, Any]:
        return {
            "request_serializer": Text.SerializeToString,
            "response_deserializer": Text.FromString,
        }

    def unary(self, name: str) -> Any:
        return self.channel.unary_unary(f"{SERVICE}/{name}", **self._args())

    def responses(self, name: str) -> Any:
        return self.channel.unary_stream(f"{SERVICE}/{name}", **self._args())

    def stream(self, name: str) -> Any:
        return self.channel.stream_stream(f"{SERVICE}/{name}", **self._args())


def _options(options: dict[str, Any]) -> list[tuple[str, Any]]:
    return list(
        {
            "grpc.max_receive_message_length": -1,
            "grpc.max_send_message_length": -1,
            "grpc.use_local_subchannel_pool": 1,
            **options,
        }.items()
    )


@contextmanager
def connected(port: int, **options: Any) -> Iterator[Client]:
    """Return a client with a connection of its own, without TLS."""
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=_options(options)) as channel:
        yield Client(channel)


@contextmanager
def connected_with_tls(port: int, certificate: str) -> Iterator[Client]:
    """Return a client with a connection of its own that trusts the certificate."""
    options = _options({"grpc.ssl_target_name_override": "localhost"})
    credentials = grpc.ssl_channel_credentials(certificate.encode())
    address = f"127.0.0.1:{port}"
    with grpc.secure_channel(address, credentials, options=options) as channel:
        yield Client(channel)
