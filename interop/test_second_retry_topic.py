"""A Java broker with ``enableRetryTopicV2`` leaves popped messages in ``%RETRY%group+topic``."""

from __future__ import annotations

from pathlib import Path

import pytest
from interop.servers import BROKER_CONF, Servers, our_name_server
from interop.test_broker_features import LIMIT_S, new_topic, talking_to
from tests.broker.brokers import Talk
from tests.broker.pops import Popped, ack, ask_pop, popped

CONF = "enableRetryTopicV2=true\n"


async def popped_until(talk: Talk, count: int, invisible_ms: int) -> list[Popped]:
    found: list[Popped] = []
    while len(found) < count:
        found += popped(await ask_pop(talk, pollTime=5_000, invisibleTime=invisible_ms))
    return found


@pytest.mark.time_limit(LIMIT_S)
async def test_its_messages_are_taken_over_and_handed_back(tmp_path: Path) -> None:
    java = Servers("v5", tmp_path, settings=BROKER_CONF + CONF)
    with our_name_server() as namesrv:
        with java.broker(namesrv, "broker-a") as address:
            async with talking_to(address) as talk:
                await new_topic(talk, "T1")
                for body in (b"acked", b"kept"):
                    assert (await talk.send("T1", body, e=0)).code == 0
                assert len(await popped_until(talk, 2, 1_000)) == 2
                again = await popped_until(talk, 2, 1_000)
                assert {message.receipt.retry for message in again} == {"2"}
        with java.our_broker(namesrv, "broker-a") as address:
            async with talking_to(address) as talk:
                found = await popped_until(talk, 2, 60_000)
                assert {message.body for message in found} == {b"acked", b"kept"}
                for message in found:
                    if message.body == b"acked":
                        assert (await ack(talk, message)).code == 0
        with java.broker(namesrv, "broker-a") as address:
            async with talking_to(address) as talk:
                (last,) = await popped_until(talk, 1, 60_000)
                assert last.body == b"kept"
