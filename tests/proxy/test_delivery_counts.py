"""Receives of messages whose count of deliveries is a number that only a producer would set."""

import logging
from typing import Any

import pytest
from tests.proxy.calls.consumption.test_receive import attempts, handle_of, wait_for_redelivery
from tests.proxy.services import BROKER, Service, code, message

from firetrail.format.values.integers import INT32_MAX, INT32_MIN
from firetrail.proxy.calls.consumption import receive
from firetrail.proxy.conversion.encoded_message import encoded_delivery
from firetrail.proxy.upstream.interface import resolved
from firetrail.remoting.messages.headers import SendHeaderV2
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand

COUNTS = [-1, -50, INT32_MIN]


async def produce(service: Service, body: bytes, reconsume_times: int) -> None:
    """Send a message as a remoting client that says how often it was delivered."""
    header = SendHeaderV2(
        *("P", "T", "TBW102", 4, 0, 0, 1_700_000_000_000, 0, ""), reconsume_times=reconsume_times
    )
    command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, header.encode(), body)
    answer = await resolved(service.brokers.request(service.client, BROKER, command))
    assert answer.code == 0, answer.remark


@pytest.mark.parametrize("count", COUNTS)
async def test_a_negative_count_is_stored_as_sent_and_delivered_as_the_first(
    service: Service, count: int
) -> None:
    await produce(service, b"odd", count)
    await service.send(message(b"good"))
    found = await service.receive(auto_renew=True)
    assert sorted(attempts(found)) == [(b"good", 1), (b"odd", 1)]
    assert next(each.reconsume_times for each in service.broker.store.read("T", 0)) == count
    for each in found:
        assert code(await service.ack(handle_of(each))) == "OK"


async def test_a_negative_count_does_not_add_retries(service: Service) -> None:
    service.create_group(retry_max_times=1)
    await produce(service, b"odd", -50)
    for attempt in (1, 2):
        (found,) = await service.receive()
        assert found.system_properties.delivery_attempt == attempt
        await service.change(handle_of(found), 0)
    await wait_for_redelivery(service)
    assert code(await service.frames()) == "MESSAGE_NOT_FOUND"
    assert [each.body for each in service.broker.store.read("%DLQ%CG", 0)] == [b"odd"]


async def test_a_message_with_the_highest_count_becomes_a_dead_letter(service: Service) -> None:
    await produce(service, b"odd", INT32_MAX)
    await service.send(message(b"good"))
    assert attempts(await service.receive()) == [(b"good", 1)]
    (dead,) = service.broker.store.read("%DLQ%CG", 0)
    assert (dead.body, dead.reconsume_times) == (b"odd", INT32_MAX)


async def test_a_group_with_unlimited_retries_gets_the_highest_count(service: Service) -> None:
    service.create_group(retry_max_times=INT32_MAX)
    await produce(service, b"odd", INT32_MAX)
    for _ in range(2):
        (found,) = await service.receive()
        assert attempts([found]) == [(b"odd", INT32_MAX)]
        await service.change(handle_of(found), 0)
        await wait_for_redelivery(service)


async def test_a_message_that_cannot_be_encoded_does_not_hold_up_others(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(record: Any, *more: Any) -> Any:
        if record.body == b"odd":
            raise ValueError("no such number")
        return encoded_delivery(record, *more)

    monkeypatch.setattr(receive, "encoded_delivery", failing)
    await produce(service, b"odd", 0)
    with caplog.at_level(logging.ERROR):
        assert code(await service.frames(auto_renew=True)) == "MESSAGE_NOT_FOUND"
    assert "in T queue 0 offset 0 cannot be encoded and is not delivered to group CG" in caplog.text
    await produce(service, b"odd", 0)
    await service.send(message(b"good"))
    assert attempts(await service.receive(auto_renew=True)) == [(b"good", 1)]
    assert len(service.renewals) == 1
