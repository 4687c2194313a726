"""A master that may have a successor changes nothing, hands out nothing, and does not guess.

The page about failover says what it still answers. The table of requests decides; every request is
sent here, to a master whose lease is over, and to one that has heard of a newer epoch.
"""

import asyncio
import math
from collections.abc import AsyncIterator

import pytest
from tests.broker.brokers import Fields, Talk, talking
from tests.broker.pops import ack, ask_pop, fill, pop, popped
from tests.broker.roles.test_freeze import tables
from tests.broker.test_every_request import ALL_GOOD, CHANGE_ROLES, GOOD_BODIES
from tests.client.clusters import until

from firetrail.remoting.messages.requests import (
    LEASED,
    REFUSED_BY_SLAVES,
    REQUESTS,
    STORING,
    RequestTarget,
    RequestTrait,
)
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.store.admission.fence import KnownFence, LeaseFence
from firetrail.system import SYSTEM

CODES = [
    code
    for code, row in REQUESTS.items()
    if row.target is RequestTarget.BROKER
    and code not in CHANGE_ROLES | {RequestCode.UPDATE_BROKER_CONFIG}  # its own settings
]
SERVED = {
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.VIEW_MESSAGE_BY_ID,
    RequestCode.QUERY_MESSAGE,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.HEART_BEAT,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
}


def end_lease(talk: Talk) -> None:
    fence = LeaseFence(SYSTEM.clock)
    fence.until = -math.inf
    talk.broker.broker_store.gate.fence = fence


def hear_of_an_epoch(talk: Talk) -> None:
    fence = talk.broker.epoch_fence
    assert fence is not None
    fence._answered(talk.broker.epochs.number + 1)


@pytest.fixture(params=[end_lease, hear_of_an_epoch])
async def fenced(request: pytest.FixtureRequest) -> AsyncIterator[Talk]:
    """A master with messages of T1, after it was fenced."""
    async with talking() as talk:
        await fill(talk, "T1", b"0", b"1", b"2")
        assert (await talk.commit(1)).code == 0
        request.param(talk)
        yield talk
        talk.broker.broker_store.gate.fence = KnownFence()


def test_the_table_of_requests_decides_what_needs_the_lease() -> None:
    assert LEASED.isdisjoint(SERVED)
    assert REFUSED_BY_SLAVES.keys() <= LEASED | STORING  # the store refuses messages
    changing = {c for c, row in REQUESTS.items() if RequestTrait.CHANGES in row.traits}
    pulls = {RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE}
    assert changing - LEASED == pulls | {RequestCode.UPDATE_BROKER_CONFIG}


@pytest.mark.parametrize("order", ["false", "true"])
async def test_no_request_changes_a_fenced_master(fenced: Talk, order: str) -> None:
    before = await tables(fenced)
    asked = {}
    fields = ALL_GOOD | {"sysFlag": "5", "commitOffset": "2", "order": order, "pollTime": "0"}
    for code in CODES:
        known = GOOD_BODIES.get(RequestCode(code))
        body = known.encode(standard=True) if known is not None else b""
        for topic in ("T1", "NEW"):
            more = {"topic": topic, "b": topic, "consumerGroup": "CG" if topic == "T1" else "G2"}
            asked[code, topic] = asyncio.ensure_future(fenced.ask(code, fields | more, body=body))
    await asyncio.wait(asked.values(), timeout=1)
    fenced.broker.release_polls()
    await asyncio.gather(*asked.values())
    assert await tables(fenced) == before
    for (code, topic), answer in asked.items():
        if code in LEASED | STORING:
            assert answer.result().code != 0, (code, topic)
        if code in LEASED:
            assert answer.result().code == ResponseCode.SERVICE_NOT_AVAILABLE, (code, topic)


async def test_messages_are_pulled_but_the_commit_is_not_kept(fenced: Talk) -> None:
    answer = await fenced.pull("T1", sysFlag=5, commitOffset=2)
    assert (answer.code, bool(answer.content)) == (0, True)
    assert fenced.broker.offsets.get("CG", "T1", 0) == 1


@pytest.mark.parametrize("offset", [3, 5])
async def test_a_fenced_master_does_not_say_where_a_queue_ends(fenced: Talk, offset: int) -> None:
    answer = await fenced.pull("T1", offset)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "is not known here" in (answer.remark or "")


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("fence", [end_lease, hear_of_an_epoch])
async def test_a_pop_that_waits_gets_nothing_after_the_end_of_the_lease(
    talk: Talk, order: bool, fence: object
) -> None:
    await fill(talk, "T1", b"0")
    wait: Fields = {"order": order, "pollTime": 60_000, "queueId": 0}
    (first,) = await pop(talk, wait)
    assert (await ack(talk, first)).code == 0
    waiting = asyncio.ensure_future(ask_pop(talk, wait))
    long_polling = talk.broker._parts.state.long_polling
    await until(lambda: long_polling.waiting(("T1", 0), "CG") == 1)
    assert callable(fence)
    talk.broker.offsets.keep("CG", "T1", 0, 0)
    fence(talk)
    long_polling.wake(("T1", 0))
    answer = await waiting
    assert popped(answer) == []
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_a_change_during_which_the_lease_ends_is_not_confirmed(talk: Talk) -> None:
    fields: Fields = {"topic": "T9", "defaultTopic": "TBW102", "perm": 6, "readQueueNums": 1}
    fields |= {"writeQueueNums": 1, "topicFilterType": "SINGLE_TAG", "order": False}
    saved = talk.broker.topics.saved

    async def ended() -> None:
        await saved()
        end_lease(talk)

    talk.broker.topics.saved = ended  # type: ignore[method-assign]
    answer = await talk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "does not hold the lease" in (answer.remark or "")


async def test_a_fenced_master_begins_no_epoch(talk: Talk) -> None:
    """It would be as new as that of the master by which it was fenced."""
    hear_of_an_epoch(talk)
    assert (await talk.ask(RequestCode.GET_BROKER_EPOCH_CACHE, replica=True)).code == 0
    assert talk.broker.epochs.number == 0
    fence = talk.broker.epoch_fence
    assert fence is not None
    assert fence.is_fenced


async def test_nothing_is_created_on_demand_by_a_fenced_master(fenced: Talk) -> None:
    answer = await fenced.send("NEW")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (await fenced.beat("NEW")).code == 0
    assert fenced.broker.topics.get("NEW") is None
    assert fenced.broker.topics.get("%RETRY%NEW") is None
    assert fenced.broker.groups.get("NEW") is None
