"""Held requests look again only for messages that may have arrived since they looked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from firetrail.broker.services.long_polling import ANY_OFFSET, HeldRequest, LongPolling, WakeOutcome
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.messages.pop.pop_headers import ANY_QUEUE
from firetrail.store.broker_store import BrokerStore
from firetrail.store.dispatch.derivation import Arrival


class Announcing:
    """A store that only announces arrivals."""

    def __init__(self) -> None:
        self.embedded = self.queues = self

    def on_arrival(self, listener: object) -> None: ...

    def max_offset(self, topic: str, queue_id: int) -> int:
        return 1


class Peer:
    """A connection whose peer reads when the test says so."""

    def __init__(self) -> None:
        self.is_unread = False
        self.drained: list[Callable[[Peer], None]] = []

    def when_drained(self, callback: Callable[[Peer], None]) -> None:
        self.drained.append(callback)

    def read(self) -> None:
        self.is_unread = False
        drained, self.drained = self.drained, []
        for callback in drained:
            callback(self)


@pytest.mark.parametrize(
    ("announced", "looks"),
    [((), 0), (("Other",), 1), (("T",), 1)],
    ids=["nothing", "another topic", "the topic"],
)
async def test_a_pop_looks_again_if_anything_arrived_since(
    announced: tuple[str, ...], looks: int
) -> None:
    polling = LongPolling(cast(BrokerStore, Announcing()), asyncio.get_running_loop())
    looked: list[bool] = []

    def wake(is_over: bool) -> WakeOutcome:
        looked.append(is_over)
        return WakeOutcome.WAITS

    since = polling.announcements
    for topic in announced:  # as the dispatcher does, before the request is held
        polling._announced([Arrival(topic, 0, 1, 0)])
    held = HeldRequest(cast(Connection, Peer()), [("T", ANY_QUEUE)], ANY_OFFSET, wake)
    polling.hold(held, 60, since)
    await asyncio.sleep(0)
    assert looked == [False] * looks
    polling._announced([Arrival("T", 0, 2, 0)])
    await asyncio.sleep(0)
    assert looked == [False] * (looks + 1)
    polling.stop()


async def test_a_request_that_took_all_leaves_equal_ones_asleep() -> None:
    polling = LongPolling(cast(BrokerStore, Announcing()), asyncio.get_running_loop())
    outcomes = [WakeOutcome.ANSWERED, WakeOutcome.TOOK_ALL, WakeOutcome.ANSWERED]
    woken: list[int] = []

    def hold(number: int) -> None:
        def wake(is_over: bool) -> WakeOutcome:
            woken.append(number)
            return outcomes[number]

        connection = cast(Connection, Peer())
        queues = [("T", ANY_QUEUE)]
        polling.hold(HeldRequest(connection, queues, ANY_OFFSET, wake, "CG", "key"), 60, 0)

    for number in range(len(outcomes)):
        hold(number)
    polling._announced([Arrival("T", 0, 1, 0)])
    await asyncio.sleep(0)
    assert woken == [0, 1]
    polling._announced([Arrival("T", 0, 2, 0)])
    await asyncio.sleep(0)
    assert woken == [0, 1, 2]
    polling.stop()


async def test_a_request_is_not_answered_while_its_peer_does_not_read() -> None:
    polling = LongPolling(cast(BrokerStore, Announcing()), asyncio.get_running_loop())
    peer, other = Peer(), Peer()
    peer.is_unread = True
    answered: list[Peer] = []

    def hold(asking: Peer) -> None:
        def wake(is_over: bool) -> WakeOutcome:
            answered.append(asking)
            asking.is_unread = asking is peer  # one answer fills the buffer
            return WakeOutcome.ANSWERED

        polling.hold(HeldRequest(cast(Connection, asking), [("T", 0)], 0, wake), 60)

    for asking in (peer, peer, other):
        hold(asking)
    polling._arrived({("T", 0): 1})
    assert answered == [other]
    assert len(peer.drained) == 1
    peer.read()
    assert answered == [other, peer]
    peer.read()
    assert answered.count(peer) == 2
    polling.stop()
