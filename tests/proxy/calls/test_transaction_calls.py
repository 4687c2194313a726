"""EndTransaction, and the question for the outcome of an orphaned transaction."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.proxy.services import Service, code, message

from firetrail.broker.services.clients import Client
from firetrail.broker.transactions.half_messages import ask
from firetrail.format.properties import TRANSACTION_CHECK_TIMES
from firetrail.proxy.calls import transaction_calls
from firetrail.proxy.calls.transaction_calls import HalfMessagePlace, KnownTransactions
from firetrail.proxy.schema.messages import (
    Duration,
    EndTransactionRequest,
    EndTransactionResponse,
    MessageType,
    Resource,
    TelemetryCommand,
    TransactionResolution,
    TransactionSource,
)
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

COMMIT, ROLLBACK = TransactionResolution.COMMIT, TransactionResolution.ROLLBACK
UNKNOWN = TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED


@pytest.fixture
async def transactional(service: Service) -> Service:
    """A service with the topic X for transactions, and one half message with the id t1."""
    await service.create_topic("X", "TRANSACTION")
    response = await service.send(half())
    assert code(response) == "OK"
    assert response.entries[0].transaction_id == "t1"
    return service


def half(message_id: str = "t1", **system: Any) -> Any:
    return message(topic="X", message_id=message_id, message_type=MessageType.TRANSACTION, **system)


async def end(
    service: Service,
    resolution: int = COMMIT,
    transaction_id: str = "t1",
    topic: str = "X",
    source: int = TransactionSource.SOURCE_CLIENT,
) -> str:
    request = EndTransactionRequest(
        topic=Resource(name=topic),
        message_id=transaction_id,
        transaction_id=transaction_id,
        resolution=resolution,
        source=source,
    )
    return code(await service.answer(service.transactions.end, EndTransactionResponse, request))


async def bodies(service: Service) -> list[bytes]:
    """The messages of the topic that consumers see."""
    found = []
    for queue_id in range(4):
        found += [record.body for record in service.broker.store.read("X", queue_id)]
    return found


@pytest.mark.parametrize(("resolution", "count"), [(COMMIT, 1), (ROLLBACK, 0)])
async def test_a_transaction_ends_once(transactional: Service, resolution: int, count: int) -> None:
    assert await bodies(transactional) == []
    for _ in range(2):
        assert await end(transactional, resolution) == "OK"
        assert len(await bodies(transactional)) == count


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_a_transaction_is_found_by_its_id(transactional: Service, count: int) -> None:
    """Through another proxy, or after a restart, also if the broker has stored copies of it."""
    half_message = next(iter(transactional.broker._parts.transactions._open.values()))
    for _ in range(count):
        half_message.checks += 1
        await transactional.broker._parts.transactions._store_again(half_message)
    transactional.transactions = transaction_calls.TransactionCalls(
        transactional.brokers, KnownTransactions()
    )
    await transactional.send(message())  # waits for dispatch
    for _ in range(2):
        assert await end(transactional) == "OK"
        assert await bodies(transactional) == [b"hello"]


async def test_the_codes_of_the_end(transactional: Service) -> None:
    assert await end(transactional, UNKNOWN) == "OK"
    assert await end(transactional, 99) == "OK"
    assert await bodies(transactional) == []
    assert await end(transactional, transaction_id=" ") == "INVALID_TRANSACTION_ID"
    assert await end(transactional, transaction_id="t2") == "INVALID_TRANSACTION_ID"
    assert await end(transactional, topic="T") == "INVALID_TRANSACTION_ID"
    assert await end(transactional, topic="a.b") == "ILLEGAL_TOPIC"
    assert await end(transactional, topic="unknown") == "TOPIC_NOT_FOUND"
    busy = RemotingCommand(ResponseCode.SYSTEM_BUSY)
    transactional.brokers.replaced[RequestCode.END_TRANSACTION] = busy
    assert await end(transactional) == "TOO_MANY_REQUESTS"


@pytest.mark.parametrize(
    ("seconds", "nanos"), [(60, 999_000_000), (59, 1_500_000_000), (62, -2_000_000_000)]
)
async def test_the_time_before_the_first_check_is_stored(
    seconds: int, nanos: int, transactional: Service
) -> None:
    duration = Duration(seconds=seconds, nanos=nanos)
    await transactional.send(half("t2", orphaned_transaction_recovery_duration=duration))
    open_ones = transactional.broker._parts.transactions._open.values()
    assert sorted(each.immunity_ms or 0 for each in open_ones) == [0, 60_000]


async def test_an_orphan_is_shown_to_its_producer(transactional: Service) -> None:
    stored = transactional.broker._parts.transactions
    half_message = next(iter(stored._open.values()))
    half_message.checks += 1
    record = await stored._store_again(half_message)
    assert record is not None
    asked: list[RemotingCommand] = []
    ask(cast(Client, SimpleNamespace(connection=SimpleNamespace(tell=asked.append))), record)
    transactional.known = KnownTransactions()
    calls = transaction_calls.TransactionCalls(transactional.brokers, transactional.known)
    command = calls.orphaned("broker-a", asked[0])
    assert isinstance(command, TelemetryCommand)
    orphan = command.recover_orphaned_transaction_command
    assert orphan.transaction_id == "t1"
    assert orphan.message.topic.name == "X"
    assert orphan.message.body == b"hello"
    assert orphan.message.system_properties.message_type == MessageType.TRANSACTION
    assert TRANSACTION_CHECK_TIMES not in orphan.message.user_properties
    place = transactional.known.find("X", "t1")
    assert place == HalfMessagePlace("broker-a", record.queue_offset, record.physical_offset, "X")
    transactional.transactions = calls
    assert await end(transactional, source=TransactionSource.SOURCE_SERVER_CHECK) == "OK"
    assert await bodies(transactional) == [b"hello"]
    assert asked[0].body
    asked[0].body = b"damaged"
    assert calls.orphaned("broker-a", asked[0]) is None


def test_the_number_of_remembered_places_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_calls, "REMEMBERED_MAX", 2)
    known = KnownTransactions()
    places = [HalfMessagePlace("b", number, number, "X") for number in range(3)]
    for number, place in enumerate(places):
        known.remember("X", f"t{number}", place)
    assert known.find("X", "t0") is None
    assert known.find("X", "t2") == places[2]
    known.remember("X", "t1", places[0])  # the newest now
    known.remember("X", "t3", places[1])
    assert known.find("X", "t1") == places[0]
    assert known.find("X", "t2") is None
