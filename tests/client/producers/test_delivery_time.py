"""Messages with a delivery time, and their recall."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from tests.client.clusters import read_all, running_cluster
from tests.helpers import ManualClock

from firetrail.broker.broker_config import BrokerConfig
from firetrail.client import (
    ConfigError,
    FormatError,
    IllegalMessageError,
    Message,
    Outcome,
    Producer,
    RequestError,
    WrongTypeError,
)
from firetrail.client.producers.delivery_time import delivery_ms
from firetrail.format.properties import decode_properties
from firetrail.format.recall_handle import RecallHandle
from firetrail.namesrv import NameServerConfig
from firetrail.namesrv.server import NameServer
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.messages.bodies import TopicConfig, TopicConfigTable
from firetrail.remoting.servers.remoting_server import RemotingServer
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.system import SYSTEM, System

NOON_MS = 1_794_744_000_000
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
"""A moment in the past."""
HANDLE = RecallHandle("T", "b", NOON_MS, "ID1").encode()


class TimerBroker:
    """A broker with a timer, as far as a client sees it."""

    def __init__(self) -> None:
        self.asked: list[RemotingCommand] = []
        self.refusal: tuple[int, str] | None = None
        self.handle: str | None = HANDLE

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_MESSAGE_V2: self._answer(self._stored),
            RequestCode.RECALL_MESSAGE: self._answer(lambda: {"msgId": "ID1"}),
            RequestCode.HEART_BEAT: lambda connection, request: request.answer(),
        }

    def _stored(self) -> dict[str, str]:
        fields = {"msgId": "00", "queueId": "0", "queueOffset": "5"}
        return fields | ({"recallHandle": self.handle} if self.handle else {})

    def _answer(self, fields: Callable[[], dict[str, str]]) -> Handler:
        def handle(connection: Connection, request: RemotingCommand) -> RemotingCommand:
            self.asked.append(request)
            return (
                request.answer(*self.refusal) if self.refusal else request.answer(fields=fields())
            )

        return handle


@asynccontextmanager
async def at(broker: TimerBroker) -> AsyncIterator[Producer]:
    names = NameServer(NameServerConfig(listen_port=0))
    port = await names.start()
    server = RemotingServer(broker.handlers(), SYSTEM)
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    topics = TopicConfigTable({"T": TopicConfig("T", 1, 1)})
    names.register_local(cluster="C", name="b", address=address, topics=topics)
    try:
        async with Producer(f"127.0.0.1:{port}", "PG", retries=0) as producer:
            yield producer
    finally:
        await server.stop()
        await names.stop()


@pytest.mark.parametrize(
    ("deliver_at", "expected"),
    [
        (NOON_MS, NOON_MS),
        (NOON, NOON_MS),
        (NOON.astimezone(timezone(timedelta(hours=5))), NOON_MS),
        (NOON.astimezone().replace(tzinfo=None), NOON_MS),  # local time
        (NOON + timedelta(microseconds=1), NOON_MS + 1),  # never early
        (datetime(1960, 1, 1, tzinfo=UTC), 100_000_000_000),  # long ago
    ],
)
def test_moments_become_ms(deliver_at: datetime | int, expected: int) -> None:
    assert delivery_ms(deliver_at) == expected


@pytest.mark.parametrize(("delay_us", "ms"), [(0, 0), (1, 1), (1_000, 1), (90_000_001, 90_001)])
def test_a_timedelta_counts_from_now(
    monkeypatch: pytest.MonkeyPatch, delay_us: int, ms: int
) -> None:
    system = System(clock=ManualClock(NOON_MS))
    monkeypatch.setattr("firetrail.client.producers.delivery_time.SYSTEM", system)
    assert delivery_ms(timedelta(microseconds=delay_us)) == NOON_MS + ms


@pytest.mark.parametrize(
    ("deliver_at", "error", "said"),
    [
        (5_000, ConfigError, "deliver_at = 5000: is before 1973; expected a datetime, a timedelta"),
        (1_794_744_000, ConfigError, "is before 1973"),  # seconds
        (1 << 63, ConfigError, "deliver_at = 9223372036854775808"),
        (timedelta(seconds=-1), ConfigError, "expected a time from now, not before it"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=5))), ConfigError, "out of range"),
        (1.5, WrongTypeError, "deliver_at = 1.5: expected a datetime, a timedelta from now, or a"),
        (True, WrongTypeError, "expected a datetime"),
        ("noon", WrongTypeError, "expected a datetime"),
    ],
)
def test_other_times_are_refused(deliver_at: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        delivery_ms(deliver_at)


async def test_the_time_is_sent_and_the_handle_is_returned() -> None:
    broker = TimerBroker()
    async with at(broker) as producer:
        sent = await producer.send(Message("T", b"x", tags="A"), deliver_at=NOON)
        assert sent.recall_handle == HANDLE
        (request,) = broker.asked
        properties = decode_properties(request.fields["i"].encode())
        assert properties["TIMER_DELIVER_MS"] == str(NOON_MS)
        assert properties["TAGS"] == "A"


async def test_a_message_without_a_time_has_no_handle() -> None:
    broker = TimerBroker()
    broker.handle = None
    async with at(broker) as producer:
        sent = await producer.send(Message("T", b"x"))
        assert "TIMER_DELIVER_MS" not in broker.asked[0].fields["i"]
        with pytest.raises(ConfigError, match="has no recall handle: it was sent without a deli"):
            await producer.recall(sent)


@pytest.mark.parametrize(
    "message",
    [
        Message("T", b"", delay_level=1),
        Message("T", b"", properties={"TIMER_DELAY_SEC": "1"}),
        Message("T", b"", raw_properties=b"TIMER_DELIVER_MS\x015\x02"),
        Message("T", b"", properties={"TIMER_OUT_MS": "1"}),  # brokers do not delay it again
    ],
)
async def test_a_message_has_one_delay(message: Message) -> None:
    async with at(TimerBroker()) as producer:
        with pytest.raises(IllegalMessageError, match="deliver_at: the message also has a delay_"):
            await producer.send(message, deliver_at=NOON)


@pytest.mark.parametrize("level", ["0", "-1", "never"])
async def test_what_no_broker_delays_is_not_delayed(level: str) -> None:
    message = Message("T", b"", properties={"DELAY": level})
    async with at(TimerBroker()) as producer:
        sent = await producer.send(message, deliver_at=NOON)
        assert sent.recall_handle == HANDLE


async def test_a_message_is_recalled_by_its_result_or_its_handle() -> None:
    broker = TimerBroker()
    async with at(broker) as producer:
        sent = await producer.send(Message("T", b"x"), deliver_at=NOON)
        assert await producer.recall(sent) == "ID1"
        assert await producer.recall(HANDLE) == "ID1"
    asked = [request.fields for request in broker.asked[1:]]
    assert asked == [{"topic": "T", "recallHandle": HANDLE, "producerGroup": "PG"}] * 2


async def test_refused_recalls_are_errors() -> None:
    broker = TimerBroker()
    broker.refusal = ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden"
    async with at(broker) as producer:
        with pytest.raises(RequestError, match="b: recall failed, operation is forbidden") as found:
            await producer.recall(HANDLE)
        assert found.value.code == ResponseCode.NO_PERMISSION
        with pytest.raises(FormatError, match="recall handle"):
            await producer.recall("?")
        with pytest.raises(WrongTypeError, match="sent = 5: expected a str"):
            await producer.recall(5)  # type: ignore[arg-type]


async def test_a_broker_delivers_at_the_time_and_not_what_was_recalled() -> None:
    config = BrokerConfig(timer_precision_ms=10)
    async with running_cluster(config) as namesrv, Producer(namesrv) as producer:
        due_ms = SYSTEM.clock.now_ms() + 1_000
        recalled = await producer.send(Message("T", b"recalled"), deliver_at=due_ms)
        await producer.send(Message("T", b"later"), deliver_at=due_ms)
        past = await producer.send(Message("T", b"past"), deliver_at=NOON)
        assert past.recall_handle is None
        assert await producer.recall(recalled) == recalled.message_id
        first, second = await read_all(namesrv, "T", 2)
        assert sorted([first.body, second.body]) == [b"later", b"past"]
        later = first if first.body == b"later" else second
        assert later.record.store_time >= due_ms
        with pytest.raises(RequestError, match="recall failed, timestamp invalid"):
            await producer.recall(recalled)


async def test_a_message_of_a_transaction_has_no_time(namesrv: str) -> None:
    async with Producer(namesrv) as producer:
        message = Message("T", b"", properties={"TIMER_DELIVER_MS": str(NOON_MS)})
        with pytest.raises(RequestError, match="messages of a transaction cannot be delayed"):
            await producer.send_in_transaction(message, lambda _: Outcome.COMMIT)
        message = Message("T", b"", properties={"DELAY": "0"})
        assert await producer.send_in_transaction(message, lambda _: Outcome.COMMIT)
