"""Timers, compaction and pops through a hand-over of a broker's folder: Java, Firetrail, Java.

Firetrail keeps the timers, and compacts nothing. It says so, refuses what it could not do, and
leaves it to the Java broker that gets the folder back.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from interop.servers import Servers, our_name_server
from tests.broker.brokers import Field, Talk, records
from tests.broker.pops import Popped, ack, ask_pop, popped

from firetrail.broker.broker import Broker
from firetrail.format.files.timer import CHECK, decode_check
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import KVTable
from firetrail.remoting.wire.codes import RequestCode, ResponseCode

NAME = "broker-a"
LIMIT_S = 360.0
"""For three starts of brokers, and the conversation with each."""
WAITING = [b"later 0", b"later 1", b"later 2"]
DUE_S = 3600
"""From the send to the delivery of what waits: longer than the test takes."""
COMPACTED = "+cleanup.policy=COMPACTION"
STOPS = [
    pytest.param(line, stop, id=f"{line}-{'killed' if stop is signal.SIGKILL else 'closed'}")
    for line in ("v5", "v55")
    for stop in (signal.SIGKILL, signal.SIGTERM)
]


@pytest.mark.parametrize(("line", "stop"), STOPS)
@pytest.mark.time_limit(LIMIT_S)
async def test_timers_compaction_and_pops_survive_a_handover(
    tmp_path: Path, line: str, stop: signal.Signals
) -> None:
    java = Servers(line, tmp_path)
    log = tmp_path / "log"
    killed = stop is signal.SIGKILL
    with our_name_server() as namesrv:
        with java.broker(namesrv, NAME, stop) as address:
            async with talking_to(address) as talk:
                await left_by_java(talk, tmp_path / NAME / "config" / CHECK)
        options = "--log-json", "--log-file", str(log)
        with java.our_broker(namesrv, NAME, *options, stop=stop) as address:
            async with talking_to(address) as talk:
                await in_between(talk, killed)
        said = [json.loads(line)["message"] for line in log.read_text().splitlines()]
        assert any(
            "the timer is rebuilt from the topic rmq_sys_wheel_timer" in each for each in said
        )
        assert any("cleanup.policy=COMPACTION (Newest)" in each for each in said)
        with java.broker(namesrv, NAME, signal.SIGKILL) as address:  # none takes over
            async with talking_to(address) as talk:
                await back_in_java(talk, killed)


@asynccontextmanager
async def talking_to(address: str) -> AsyncIterator[Talk]:
    """Talk to a broker that runs in another process."""
    client = RemotingClient()
    try:
        yield Talk(cast(Broker, SimpleNamespace(address=address)), client)
    finally:
        await client.close()


async def left_by_java(talk: Talk, check: Path) -> None:
    """Three timers that wait and one that is delivered, a compacted topic, an open pop.

    The file ``check`` is where Java notes once a second what its timer has delivered.
    """
    await new_topic(talk, "Newest", COMPACTED)
    for topic in ("Timed", "P"):
        await new_topic(talk, topic)
    for number in range(3):
        assert (await talk.send("Newest", b"n%d" % number, i=f"KEYS\x01k{number}\x02")).code == 0
    due = int(time.time() + DUE_S) * 1000
    for number, body in enumerate(WAITING):
        properties = f"TIMER_DELIVER_MS\x01{due}\x02UNIQ_KEY\x01U{number}\x02"
        assert (await talk.send("Timed", body, i=properties)).code == 0
    await talk.send("Timed", b"soon", i="TIMER_DELAY_SEC\x011\x02UNIQ_KEY\x01U\x02")
    for body in (b"open", b"done"):
        await talk.send("P", body)
    found = await pop_until(talk, b"open", b"done", invisibleTime=5_000)
    assert (await ack(talk, found[b"done"], topic="P")).code == 0
    assert await bodies(talk, "Timed", 1) == {b"soon": 1}
    delivered_ms = int(time.time() * 1000) + 1000
    while not check.exists() or decode_check(check.read_bytes()).read_ms <= delivered_ms:
        await asyncio.sleep(0.1)


async def in_between(talk: Talk, killed: bool) -> None:
    """Firetrail has the waiting timers, refuses unsupported features, and continues the pops.

    A killed Java broker loses its state of pops of the last seconds, so that acknowledged messages
    are redelivered.
    """
    while await waiting_timers(talk) != "3":
        await asyncio.sleep(0.1)
    await asyncio.sleep(3)  # the wheel is saved once a second; Java counts only what is in its file
    refused = await talk.send("Newest", b"n3", i="KEYS\x01k3\x02")
    assert refused.code == ResponseCode.NO_PERMISSION
    assert await bodies(talk, "Newest", 3) == {b"n0": 1, b"n1": 1, b"n2": 1}
    assert await bodies(talk, "Timed", 1) == {b"soon": 1}
    await talk.send("P", b"ours")
    found = await pop_until(talk, b"open", b"ours")
    if not killed:
        assert found.keys() == {b"open", b"ours"}
    for message in found.values():
        topic = message.receipt.topic("P", "CG")
        assert (await ack(talk, message, topic=topic)).code == 0


async def back_in_java(talk: Talk, killed: bool) -> None:
    """Java's timer still has the waiting messages, and no acknowledged message is redelivered.

    After a kill it may be: Java takes offsets only from the file, which is up to a second old.
    """
    while await waiting_timers(talk) != "3":
        await asyncio.sleep(0.1)
    assert await bodies(talk, "Newest", 3) == {b"n0": 1, b"n1": 1, b"n2": 1}
    await talk.send("P", b"last")
    found = await pop_until(talk, b"last")
    if not killed:
        assert found.keys() == {b"last"}
    assert await bodies(talk, "Timed", 1) == {b"soon": 1}


async def waiting_timers(talk: Talk) -> str:
    """Return how many messages wait in the timer, as the status of the broker says."""
    answer = await talk.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    if answer.code:  # in its first second, a Java broker has no statistics to get the last of
        return ""
    return KVTable.decode(answer.content).table["timerCongestNum"]


async def new_topic(talk: Talk, topic: str, attributes: str | None = None) -> None:
    answer = await talk.ask(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic=topic,
        defaultTopic="TBW102",
        readQueueNums=1,
        writeQueueNums=1,
        perm=6,
        topicFilterType="SINGLE_TAG",
        topicSysFlag=0,
        order=False,
        attributes=attributes,
    )
    assert answer.code == 0


async def bodies(talk: Talk, topic: str, count: int) -> Counter[bytes]:
    """Return all messages of a topic, as soon as there are this many."""
    while True:
        answer = await talk.pull(topic)
        found = Counter(record.body for record in records(answer.content))
        if found.total() >= count:
            return found
        await asyncio.sleep(0.1)


async def pop_until(talk: Talk, *wanted: bytes, **changes: Field) -> dict[bytes, Popped]:
    """Pop until all wanted messages were popped; return all popped messages by their bodies."""
    found: dict[bytes, Popped] = {}
    while not found.keys() >= set(wanted):
        answer = await ask_pop(
            talk, changes, topic="P", pollTime=500, bornTime=int(time.time() * 1000)
        )
        found |= {message.body: message for message in popped(answer)}
    return found
