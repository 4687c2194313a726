"""Requests that wait for dispatch: in time, late, and while dispatch is stuck."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import PATIENCE_S
from tests.replication.logs import SMALL

from firetrail import Message
from firetrail.store.broker_store import BrokerStore
from firetrail.store.dispatch import catch_ups
from firetrail.store.dispatch.catch_ups import CatchUps
from firetrail.system import SYSTEM


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BrokerStore]:
    with BrokerStore.open(tmp_path, SMALL, system=SYSTEM) as store:
        yield store


def put(store: BrokerStore) -> int:
    """Store a message; return where the log ends."""
    store.embedded.put(Message("T", b"x"))
    return store.log.max_offset


async def test_each_waits_for_the_messages_before_it(
    store: BrokerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catch_ups, "CATCH_UP_S", PATIENCE_S)
    waiting = CatchUps(asyncio.get_running_loop(), store.dispatch.dispatcher)
    with store.dispatch.dispatcher.paused():
        first = waiting.wait(put(store))
        second = waiting.wait(put(store))
        abandoned = waiting.wait(put(store))
        abandoned.cancel()
        await asyncio.sleep(catch_ups.CHECK_S)
        assert not first.done() and not second.done()
    await asyncio.gather(first, second)
    assert store.dispatch.dispatcher.position == store.log.max_offset
    await waiting.wait(put(store))  # and again, after all have gone


async def test_nobody_waits_longer_than_the_limit(
    store: BrokerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catch_ups, "CATCH_UP_S", 0.01)
    waiting = CatchUps(asyncio.get_running_loop(), store.dispatch.dispatcher)
    with store.dispatch.dispatcher.paused():
        end = put(store)
        await asyncio.gather(waiting.wait(end), waiting.wait(end))
        assert store.dispatch.dispatcher.position < end


async def test_nobody_waits_for_dispatch_that_is_stuck(
    store: BrokerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catch_ups, "CATCH_UP_S", PATIENCE_S)
    waiting = CatchUps(asyncio.get_running_loop(), store.dispatch.dispatcher)
    with store.dispatch.dispatcher.paused():
        end = put(store)
        store.dispatch.dispatcher.starved = "no space left"
        assert waiting.wait(end).done()
        store.dispatch.dispatcher.starved = ""
