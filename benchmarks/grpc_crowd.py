"""Many gRPC clients that poll: ``python -m benchmarks.grpc_crowd ADDRESS PID JSON`` prints figures.

Every client has a connection of its own with a telemetry stream, and one receive after the other
that waits for messages. The figures are the memory of the server when every client has polled once
or twice, and at the end: it has to be level.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from functools import partial
from typing import cast

from benchmarks.grpc_servers import CROWD_TOPIC as TOPIC
from benchmarks.servers import memory
from firetrail.proxy.calls.messaging_service import SERVICE
from firetrail.proxy.calls.wait_time import POLL_MIN_S
from firetrail.proxy.http2.codes import ACK, END_HEADERS, END_STREAM, HEAD_SIZE, PREFACE, FrameType
from firetrail.proxy.http2.frames import SETTINGS_ACK, frame_head, ping, read_head
from firetrail.proxy.http2.response_headers import encode_block
from firetrail.proxy.schema.messages import (
    ClientType,
    Code,
    Duration,
    FilterExpression,
    FilterType,
    MessageQueue,
    ProtoMessage,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    Resource,
    Settings,
    Subscription,
    TelemetryCommand,
)
from firetrail.proxy.transport.codec import MessageReader, frame_message
from firetrail.system import allow_many_files

GROUP = "GrpcCrowdGroup"
TELEMETRY, FIRST_POLL = 1, 3
"""Ids of streams. Further polls have the odd ids that follow."""
ANSWER_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class GrpcCrowd:
    """The number of clients, and how long they poll."""

    clients: int = 1000
    seconds: float = 60.0
    poll_s: float = POLL_MIN_S
    """How long a receive waits; shorter times than the server's shortest are not possible."""


class PollingClient(asyncio.Protocol):
    """One client: a connection with a telemetry stream and a receive."""

    def __init__(self, number: int, poll_s: float) -> None:
        self._number = number
        self._poll_s = poll_s
        self._input = bytearray()
        self._stream = FIRST_POLL
        self._reader = _answers()
        self.polls = 0
        """Receives that were answered."""
        self.is_known = False
        """Whether the server has answered the settings."""
        self.failure = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.write(PREFACE + frame_head(0, FrameType.SETTINGS, 0, 0))
        topic = Resource(name=TOPIC)
        settings = Settings(
            client_type=ClientType.SIMPLE_CONSUMER,
            subscription=Subscription(group=Resource(name=GROUP)),
        )
        settings.subscription.subscriptions.add(topic=topic)
        self._call(TELEMETRY, "Telemetry", TelemetryCommand(settings=settings), is_last=False)
        self._poll()

    def _poll(self) -> None:
        request = ReceiveMessageRequest(
            group=Resource(name=GROUP),
            message_queue=MessageQueue(topic=Resource(name=TOPIC)),
            filter_expression=FilterExpression(type=FilterType.TAG, expression="*"),
            batch_size=1,
            invisible_duration=Duration(seconds=60),
            long_polling_timeout=Duration(seconds=int(self._poll_s)),
        )
        self._call(self._stream, "ReceiveMessage", request, is_last=True)

    def _call(self, stream: int, method: str, message: ProtoMessage, *, is_last: bool) -> None:
        fields = (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", SERVICE + method),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("x-mq-client-id", f"crowd-{self._number}"),
            ("x-mq-language", "PYTHON"),
        )
        block, data = encode_block(fields), frame_message(message.SerializeToString())
        flags = END_STREAM if is_last else 0
        self._transport.write(
            frame_head(len(block), FrameType.HEADERS, END_HEADERS, stream)
            + block
            + frame_head(len(data), FrameType.DATA, flags, stream)
            + data
        )

    def close(self) -> None:
        """Leave without a word, as a client that is killed."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._input += data
        while len(self._input) >= HEAD_SIZE:
            high, low, kind, flags, stream = read_head(self._input)
            size = high << 8 | low
            if len(self._input) < HEAD_SIZE + size:
                break
            payload = bytes(self._input[HEAD_SIZE : HEAD_SIZE + size])
            del self._input[: HEAD_SIZE + size]
            self._frame(kind, flags, stream, payload)

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == FrameType.GOAWAY or (stream == TELEMETRY and flags & END_STREAM):
            self.failure = f"the server ended the stream or connection: {payload!r}"
        elif kind == FrameType.SETTINGS and not flags & ACK:
            self._transport.write(SETTINGS_ACK)
        elif kind == FrameType.PING and not flags & ACK:
            self._transport.write(ping(payload, ACK))
        elif stream == TELEMETRY and kind == FrameType.DATA:
            self.is_known = True
        elif stream == self._stream:
            self._answer(kind, flags, payload)

    def _answer(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == FrameType.DATA:
            for raw in self._reader.feed(payload):
                status = ReceiveMessageResponse.FromString(raw).status
                if status.code not in (Code.CODE_UNSPECIFIED, Code.MESSAGE_NOT_FOUND):
                    self.failure = f"a receive was answered {status}"
        if flags & END_STREAM:
            self.polls += 1
            self._stream += 2
            self._reader = _answers()
            self._poll()


def _answers() -> MessageReader:
    return MessageReader("identity", ANSWER_MAX, ANSWER_MAX)


async def run(address: str, pid: int, crowd: GrpcCrowd) -> dict[str, float]:
    """Let the clients poll; return the figures."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    before = memory(pid, "RssAnon")
    clients = []
    for number in range(crowd.clients):
        connect = partial(PollingClient, number, crowd.poll_s)
        _, client = await loop.create_connection(connect, host, int(port))
        clients.append(client)
    end = loop.time() + crowd.seconds
    first = 0
    while loop.time() < end:
        await asyncio.sleep(min(0.1, crowd.seconds / 10))
        failures = [client.failure for client in clients if client.failure]
        if failures:
            raise SystemExit(f"{len(failures)} clients failed: {failures[0]}")
        if not first and all(client.is_known and client.polls for client in clients):
            first = memory(pid, "RssAnon")
    last = memory(pid, "RssAnon")
    polls = sum(client.polls for client in clients)
    for client in clients:
        client.close()
    return {
        "before": before,
        "first": first or last,
        "last": last,
        "per_client": (last - before) / crowd.clients,
        "polls": polls,
        "known": sum(client.is_known for client in clients),
    }


def main() -> None:
    """Run it."""
    allow_many_files()
    crowd = GrpcCrowd(**json.loads(sys.argv[3]))
    print(json.dumps(asyncio.run(run(sys.argv[1], int(sys.argv[2]), crowd))))


if __name__ == "__main__":
    main()
