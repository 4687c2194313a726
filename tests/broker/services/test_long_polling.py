"""Held requests look again only for messages that may have arrived since they looked."""

import asyncio
from typing import cast

import pytest

from firetrail.broker.services.long_polling import ANY_OFFSET, HeldRequest, LongPolling
from firetrail.remoting.connection import Connection
from firetrail.remoting.pop_headers import ANY_QUEUE
from firetrail.store.broker_store import BrokerStore
from firetrail.store.dispatch.deriver import Arrival


class Announcing:
    """A store that only announces arrivals."""

    def on_arrival(self, listener: object) -> None: ...


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

    def wake(is_over: bool) -> bool:
        looked.append(is_over)
        return False

    since = polling.announcements
    for topic in announced:  # as the dispatcher does, before the request is held
        polling._announced([Arrival(topic, 0, 1, 0)])
    held = HeldRequest(cast(Connection, object()), [("T", ANY_QUEUE)], ANY_OFFSET, wake)
    polling.hold(held, 60, since)
    await asyncio.sleep(0)
    assert looked == [False] * looks
    polling._announced([Arrival("T", 0, 2, 0)])
    await asyncio.sleep(0)
    assert looked == [False] * (looks + 1)
    polling.stop()
