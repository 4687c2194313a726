"""The limit of the sends that wait for one broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from firetrail.client import Message, Producer
from firetrail.client.cluster.session import Session
from firetrail.client.producers import send_slots
from firetrail.client.producers.send_slots import SendSlots
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand


async def test_only_so_many_sends_are_in_flight(
    namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_slots, "IN_FLIGHT_MAX", 8)
    in_flight, most = 0, 0
    request = Session.request

    async def watched(
        self: Session, address: str, code: int, *more: Any, **named: Any
    ) -> RemotingCommand:
        nonlocal in_flight, most
        in_flight += code == RequestCode.SEND_MESSAGE_V2
        most = max(most, in_flight)
        try:
            return await request(self, address, code, *more, **named)
        finally:
            in_flight -= code == RequestCode.SEND_MESSAGE_V2

    monkeypatch.setattr(Session, "request", watched)

    async with Producer(namesrv) as producer:
        sends = [asyncio.ensure_future(producer.send(Message("T", b""))) for _ in range(100)]
        await asyncio.sleep(0)
        for send in sends[::10]:
            send.cancel()
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
    assert sum(isinstance(outcome, BaseException) for outcome in outcomes) == 10
    assert most == 8


async def test_a_broker_without_sends_takes_no_memory() -> None:
    slots = SendSlots()
    for number in range(100):
        async with slots.of(f"10.0.0.{number}:10911"):
            assert len(slots._slots) == 1
    assert not slots._slots


async def test_sends_to_a_broker_share_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_slots, "IN_FLIGHT_MAX", 1)
    slots = SendSlots()
    begun: list[str] = []

    async def send(name: str) -> None:
        async with slots.of("10.0.0.1:10911"):
            begun.append(name)

    async with slots.of("10.0.0.1:10911"):
        waiting = [asyncio.create_task(send(name)) for name in "ab"]
        await asyncio.sleep(0)
        assert not begun
    await asyncio.gather(*waiting)
    assert begun == ["a", "b"]
