"""The answers of a gRPC service to every row of the tables in ``tests/proxy``.

An answer is the name of the code in the status of the response, followed by the codes of the
entries if there are several, or the gRPC status if that is an error.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc
from interop.stock import WAIT_S
from tests.proxy.calls import test_send_calls
from tests.proxy.calls.consumption import test_receipt_calls, test_receive
from tests.proxy.fakes import METADATA
from tests.proxy.services import (
    GROUP,
    ack_request,
    change_request,
    code,
    codes,
    forward_request,
    message,
    receive_request,
)

from firetrail.client import Admin, Permission
from firetrail.proxy.calls.messaging_service import SERVICE
from firetrail.proxy.schema import messages
from firetrail.proxy.schema.messages import (
    ClientType,
    Duration,
    Resource,
    SendMessageRequest,
    Settings,
    Subscription,
    TelemetryCommand,
)

INVALID, OK = "INVALID_RECEIPT_HANDLE", "OK"
POLL = Duration(seconds=5)
"""How long a receive waits that finds nothing: the least that RocketMQ's proxy accepts."""

Answers = dict[str, str]


async def create_topics(namesrv: str) -> None:
    """The topics that the tables name."""
    async with Admin(namesrv) as admin:
        for name in ("T", f"%RETRY%{GROUP}"):
            await admin.create_topic(name, 4)
        for name, kind in test_send_calls.TYPED.items():
            await admin.create_topic(name, 4, attributes=f"+message.type={kind}")
        await admin.create_topic("R", 4, perm=Permission.READ)
        await admin.create_topic("W", 4, perm=Permission.WRITE)
        await admin.create_group(GROUP)


class Service:
    """A service, and a simple consumer whose settings it has."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def start(self, name: str, request: Any, kind: str = "unary_unary") -> Any:
        """Start a call; its result is awaited later."""
        method = getattr(self._channel, kind)(
            SERVICE + name,
            request_serializer=lambda each: each.SerializeToString(),
            response_deserializer=response_type(name).FromString,
        )
        call = method.future if kind == "unary_unary" else method
        limit = None if kind == "stream_stream" else WAIT_S
        return call(request, metadata=list(METADATA.items()), timeout=limit)

    def ask(self, name: str, request: Any) -> Any:
        """Call a method; return its response."""
        return self.start(name, request).result()

    def answer(self, name: str, request: Any) -> str:
        """Call a method; return its answer."""
        return answer_of(self.start(name, request).result)

    def handles(self, count: int) -> list[str]:
        """Send messages to the topic T and receive them; return the handles."""
        for _ in range(count):
            self.ask("SendMessage", SendMessageRequest(messages=[message()]))
        found: list[str] = []
        while len(found) < count:
            frames = self.start("ReceiveMessage", polling(), "unary_stream")
            arrived = [frame.message for frame in frames if frame.HasField("message")]
            found += [each.system_properties.receipt_handle for each in arrived]
        return found


def response_type(name: str) -> Any:
    """Return the class of a method's responses."""
    return getattr(messages, f"{name}Response", TelemetryCommand)


def polling(**changes: Any) -> Any:
    """Return a receive that waits as briefly as possible."""
    return receive_request(**changes, long_polling_timeout=POLL)


def answer_of(result: Callable[[], Any]) -> str:
    """Return the answer of a call that was started; ``result`` waits for its first response."""
    try:
        response = result()
    except grpc.RpcError as error:
        return f"gRPC {error.code().name}"
    entries = codes(response) if hasattr(response, "entries") else []
    return ", ".join([code(response), *(entries if len(entries) > 1 else [])])


@contextmanager
def connected(address: str) -> Iterator[Service]:
    """A connection to a service, with a telemetry stream that has sent the settings."""
    sizes = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
    subscription = Subscription(group=Resource(name=GROUP))
    settings = Settings(client_type=ClientType.SIMPLE_CONSUMER, subscription=subscription)
    commands: queue.SimpleQueue[Any] = queue.SimpleQueue()
    commands.put(TelemetryCommand(settings=settings))
    with grpc.insecure_channel(address, options=sizes) as channel:
        service = Service(channel)
        stream = service.start("Telemetry", iter(commands.get, None), "stream_stream")
        assert next(stream).HasField("settings")
        yield service
        commands.put(None)


def send_answers(service: Service) -> Answers:
    """Return the answers to the rows of ``tests/proxy/calls/test_send_calls.py``."""
    return {
        name: service.answer("SendMessage", SendMessageRequest(messages=sent)).partition(",")[0]
        for name, sent, _ in test_send_calls.ROWS
    }


def receive_answers(service: Service) -> Answers:
    """Return the answers to the rows of ``tests/proxy/calls/consumption/test_receive.py``.

    All are sent at once, because some find no message.
    """
    calls = {
        name: service.start("ReceiveMessage", polling(**changes), "unary_stream")
        for name, changes, _ in test_receive.ROWS
    }
    return {name: answer_of(partial(next, call)) for name, call in calls.items()}


def receipt_answers(service: Service) -> Answers:
    """Return the answers to the rows of ``test_receipt_calls.py``."""
    handles = iter(service.handles(40))
    found: Answers = {}

    def ack(name: str, *handles: str, **names: str) -> None:
        found[f"ack: {name}"] = service.answer("AckMessage", ack_request(*handles, **names))

    def change(name: str, handle: str, **names: str) -> None:
        request = change_request(handle, 60_000, **names)
        found[f"change: {name}"] = service.answer("ChangeInvisibleDuration", request)

    def forward(name: str, handle: str, **names: str) -> None:
        request = forward_request(handle, **names)
        found[f"forward: {name}"] = service.answer("ForwardMessageToDeadLetterQueue", request)

    for wrong in test_receipt_calls.GARBAGE:
        for call in (ack, change, forward):
            call(repr(wrong), wrong)
    for call in (ack, change, forward):
        call("an expired handle", test_receipt_calls.expired(next(handles)))
        for names, _ in test_receipt_calls.NAMES:
            call(words(names), next(handles), **names)
        call("another broker", next(handles).replace("broker-a", "broker-b"))
        call("a message", next(handles))
    for ms, _ in test_receipt_calls.TIMES:
        request = change_request(next(handles), ms)
        found[f"change: {ms} ms"] = service.answer("ChangeInvisibleDuration", request)
    ack("no handle")
    ack("a handle and garbage", next(handles), "garbage")
    forward("a handle without a log offset", next(handles).rpartition(" ")[0])
    handle = next(handles)
    ack("first", handle)
    ack("again", handle)
    change("after ack", handle)
    handle = next(handles)
    change("first", handle)
    change("again", handle)
    ack("after change", handle)
    return found


def words(names: dict[str, str]) -> str:
    """Return a row's topic or group, for its name."""
    return " ".join(f"{key} {value!r}" for key, value in names.items())


def expected_receipts() -> Answers:
    """Return what Firetrail answers to the rows of ``test_receipt_calls.py``."""
    calls = ("ack", "change", "forward")
    wrong = [*map(repr, test_receipt_calls.GARBAGE), "an expired handle"]
    rows: Iterable[tuple[str, str]] = [
        *((f"{call}: {name}", INVALID) for call in calls for name in wrong),
        *(
            (f"{call}: {words(n)}", answer)
            for call in calls
            for n, answer in test_receipt_calls.NAMES
        ),
        *((f"{call}: another broker", "BAD_REQUEST") for call in calls),
        *((f"{call}: a message", OK) for call in calls),
        *((f"change: {ms} ms", answer) for ms, answer in test_receipt_calls.TIMES),
        ("ack: no handle", "INTERNAL_SERVER_ERROR"),
        ("ack: a handle and garbage", f"MULTIPLE_RESULTS, {OK}, {INVALID}"),
        ("forward: a handle without a log offset", INVALID),
        *((f"{name}", OK) for name in ("ack: first", "ack: again", "change: first")),
        *((f"change: {name}", INVALID) for name in ("after ack", "again")),
        ("ack: after change", OK),
    ]
    return dict(rows)
