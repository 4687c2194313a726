"""Automatic renewal of the invisible time of messages."""

import asyncio
from typing import Any

import pytest
from tests.helpers import PATIENCE_S
from tests.proxy.services import Service, codes, message

from firetrail.proxy.calls.consumption import renewal
from firetrail.proxy.calls.consumption.renewal import RenewedMessage
from firetrail.proxy.schema.messages import Message
from firetrail.proxy.upstream.grpc_clients import ProxyClient
from firetrail.proxy.upstream.interface import resolved
from firetrail.remoting.messages.pop.receipts import Receipt
from firetrail.remoting.servers.fair_shares import ShareHolder
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

MINUTE_MS = 60_000


async def renewed(service: Service, **changes: Any) -> RenewedMessage:
    """Receive a message with automatic renewal."""
    await service.send(message())
    (found,) = await service.receive(auto_renew=True, **changes)
    entry = service.renewals.find("c1", "CG", handle_of(found))
    assert entry is not None
    return entry


def handle_of(found: Message) -> str:
    return found.system_properties.receipt_handle


def pass_time(service: Service, ms: int) -> None:
    """Let the clock of the service, not of the broker, be ahead."""
    now_ms = service.now_ms
    service.now_ms = lambda: now_ms() + ms


async def test_the_invisible_time_is_a_minute_at_first(service: Service) -> None:
    entry = await renewed(service, invisible_duration=None)
    assert entry.receipt.invisible_ms == MINUTE_MS
    assert not service.renewals._take_due()
    pass_time(service, MINUTE_MS - renewal.AHEAD_MS + 1)
    assert service.renewals._take_due() == [entry]
    assert not service.renewals._take_due()


async def test_renewals_become_longer(service: Service) -> None:
    entry = await renewed(service)
    for minutes in (1, 3, 5, 10, 30, 60, 60, 60):
        await service.renewals._renew(entry)
        assert entry.receipt.invisible_ms == minutes * MINUTE_MS
    assert len(list(service.broker._parts.checkpoints.pops())) == 1


async def test_due_messages_are_renewed(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "POLL_S", 0.01)
    monkeypatch.setattr(renewal, "AHEAD_MS", MINUTE_MS + 1)
    monkeypatch.setattr(renewal, "TIMES_MS", (10 * MINUTE_MS,))
    entry = await renewed(service)
    async with asyncio.timeout(PATIENCE_S):
        while entry.renewals < 1:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert entry.renewals == 1  # the next one is due later


async def test_a_message_is_not_renewed_for_ever(service: Service) -> None:
    entry = await renewed(service)
    pass_time(service, renewal.TOTAL_MAX_MS)
    await service.renewals._renew(entry)
    assert len(service.renewals) == 0
    (change,) = [
        each
        for each in service.brokers.asked
        if each.code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME
    ]
    assert change.fields["invisibleTime"] == "10000"  # the group's delay of the first retry


async def test_an_invalid_handle_is_given_up(service: Service) -> None:
    entry = await renewed(service)
    await service.requests.change(service.client, "CG", "T", entry.receipt, 1000)
    await service.renewals._renew(entry)
    assert len(service.renewals) == 0


async def test_failures_in_a_row_end_the_renewal(service: Service) -> None:
    entry = await renewed(service)
    busy: dict[int, RemotingCommand] = {
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME: RemotingCommand(ResponseCode.SYSTEM_BUSY)
    }
    service.brokers.replaced.update(busy)
    for _ in range(renewal.FAILURES_MAX - 1):
        await service.renewals._renew(entry)
    service.brokers.replaced.clear()
    await service.renewals._renew(entry)
    assert (entry.renewals, entry.failures) == (1, 0)
    service.brokers.replaced.update(busy)
    for failures in range(1, renewal.FAILURES_MAX):
        await service.renewals._renew(entry)
        assert entry.failures == failures
        assert len(service.renewals) == 1
    await service.renewals._renew(entry)
    assert len(service.renewals) == 0


async def test_messages_of_a_client_that_left_become_visible(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "RETURNED_MS", 1)
    await renewed(service)
    service.renewals.release("another")
    service.renewals.release("c1", "another")
    assert len(service.renewals) == 1
    service.renewals.release("c1", "CG")
    assert len(service.renewals) == 0
    (found,) = await service.receive()
    assert found.system_properties.delivery_attempt == 2
    service.renewals.release("c1")


async def test_the_number_of_renewed_messages_is_limited(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "HANDLES_MAX", 1)
    await service.send(message(), message())
    assert len(await service.receive(auto_renew=True)) == 2
    assert len(service.renewals) == 1


async def test_one_user_cannot_have_all_renewed_messages(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entry = await renewed(service)
    service.renewals.remove(*entry.key)
    monkeypatch.setattr(renewal, "HANDLES_MAX", 8)
    alice, bob, root = (
        ProxyClient(name, holder=ShareHolder(f"user {name}", is_super=name == "root"))
        for name in ("alice", "bob", "root")
    )

    def renew(client: ProxyClient, group: str, count: int) -> int:
        before = len(service.renewals)
        for number in range(count):
            handle = f"{group}-{number}"
            service.renewals.add(client, group, "T", handle, entry.receipt, 1)
            service.renewals.add(client, group, "T", handle, entry.receipt, 1)  # counts once
        return len(service.renewals) - before

    assert [renew(alice, f"A{number}", 4) for number in range(3)] == [3, 1, 0]
    assert "group A2 of user alice has 0 renewed messages, and all callers have 4" in caplog.text
    assert renew(bob, "B", 1) == renew(root, "R", 1) == 1
    service.renewals.remove("alice", "A0", "A0-0")
    service.renewals.remove("alice", "A0", "A0-1")
    assert renew(alice, "A2", 1) == 1
    for client in (alice, bob, root):
        service.renewals.release(client.client_id)
    assert (service.renewals._shares.total, len(service.renewals._shares)) == (0, 0)


async def test_ended_renewals_leave_nothing_behind(service: Service) -> None:
    entry = await renewed(service)
    for number in range(1000):
        client = ProxyClient(f"c{number}x")
        service.renewals.add(client, "CG", "T", "h", entry.receipt, 1)
        service.renewals.remove(client.client_id, "CG", "h")
    assert len(service.renewals._due) <= renewal.BATCH_SIZE + 2
    assert list(service.renewals._by_client) == ["c1"]


async def test_nothing_is_renewed_after_the_stop(service: Service) -> None:
    entry = await renewed(service)
    await service.renewals.stop()
    service.renewals.add(ProxyClient("c2"), "CG", "T", "h", entry.receipt, 1)
    assert len(service.renewals) == 1
    service.renewals.release("c1")  # all clients leave when the service stops
    assert not service.renewals._returning
    await service.renewals.stop()


async def test_a_client_that_leaves_during_a_renewal_returns_the_message(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "RETURNED_MS", 1)
    entry = await renewed(service)
    answered = asyncio.Event()
    request = service.brokers.request

    async def slow(*args: Any) -> RemotingCommand:
        answer = await resolved(request(*args))
        await answered.wait()
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(service.brokers, "request", slow)
        renewing = asyncio.ensure_future(service.renewals._renew(entry))
        await asyncio.sleep(0)
        service.renewals.release("c1")
        await asyncio.sleep(0)
        answered.set()
        await asyncio.gather(renewing, *service.renewals._returning)
    assert len(await service.receive()) == 1
    assert len(service.renewals) == 0


@pytest.mark.parametrize("error", [ZeroDivisionError(), asyncio.CancelledError()])
async def test_renewals_continue_after_an_unexpected_error(
    service: Service, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr(renewal, "POLL_S", 0.001)
    monkeypatch.setattr(renewal, "AHEAD_MS", MINUTE_MS + 1)
    monkeypatch.setattr(renewal, "TIMES_MS", (10 * MINUTE_MS,))
    change, errors = service.requests.change, [error]

    async def failing(*args: Any) -> Receipt:
        if errors:
            raise errors.pop()
        return await change(*args)

    monkeypatch.setattr(service.requests, "change", failing)
    entry = await renewed(service)
    async with asyncio.timeout(PATIENCE_S):
        while not entry.failures:
            await asyncio.sleep(0.001)
        pass_time(service, MINUTE_MS)
        while not entry.renewals:
            await asyncio.sleep(0.001)


async def test_a_stop_returns_messages_whose_handles_are_not_valid_any_more(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "RETURNED_MS", 1)
    await service.send(message(b"new"), message(b"renewed"))
    found = await service.receive(auto_renew=True)
    entries = {each.body: service.renewals.find("c1", "CG", handle_of(each)) for each in found}
    entry = entries[b"renewed"]
    assert entry is not None
    await service.renewals._renew(entry)
    await service.renewals.stop()
    (again,) = await service.receive()
    assert again.body == b"renewed"
    (new,) = [each for each in found if each.body == b"new"]
    assert codes(await service.ack(handle_of(new))) == ["OK"]
