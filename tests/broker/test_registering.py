"""What the name server of a broker's own process knows of its topics."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.broker.brokers import Talk, running

from firetrail.broker.config import BrokerConfig
from firetrail.broker.registering import Registering
from firetrail.namesrv.server import NameServer
from firetrail.remoting.bodies import TopicConfig, TopicConfigTable, TopicRouteData
from firetrail.remoting.client import Client
from firetrail.remoting.codes import RequestCode, ResponseCode
from firetrail.remoting.command import Command


async def route(talk: Talk, topic: str) -> Command:
    command = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    return await talk.client.request(talk.broker.namesrv, command)


def test_a_new_topic_is_registered_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them for each new one would take ever longer."""
    told: list[list[str]] = []
    register = NameServer.register_local

    def note(self: NameServer, *, topics: Any, **others: Any) -> None:
        told.append(list(topics.topic_config_table))
        register(self, topics=topics, **others)

    async def test(talk: Talk) -> None:
        monkeypatch.setattr(NameServer, "register_local", note)
        await talk.send("T1")
        await talk.send("T2")
        assert told == [["T1"], ["T2"]]
        found = TopicRouteData.decode((await route(talk, "T1")).content)
        assert found.queue_datas[0].write_queue_nums == 4

    running(test)


def test_one_goes_while_another_comes() -> None:
    async def test(talk: Talk) -> None:
        await talk.send("OLD")
        talk.broker.topics.remove("OLD")
        talk.broker.topics.put([TopicConfig("NEW", 2, 2, 6)])
        assert (await route(talk, "NEW")).code == 0
        assert (await route(talk, "OLD")).code == ResponseCode.TOPIC_NOT_EXIST

    running(test)


def test_a_change_reaches_the_route() -> None:
    async def test(talk: Talk) -> None:
        await talk.send("T1")
        talk.broker.topics.put([TopicConfig("T1", 8, 8, 4)])
        (queues,) = TopicRouteData.decode((await route(talk, "T1")).content).queue_datas
        assert (queues.read_queue_nums, queues.perm) == (8, 4)

    running(test)


def test_an_absent_name_server_does_not_delay_what_others_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0

    async def absent(*_: object) -> None:
        nonlocal now
        now += 3
        raise TimeoutError

    async def test() -> None:
        config = BrokerConfig(namesrv="127.0.0.1:1")
        registering = Registering(config, "127.0.0.1:2", lambda _: TopicConfigTable(), None)
        assert await registering._register_all() == 0
        assert now == 3

    monkeypatch.setattr(Client, "ask", absent)
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr("firetrail.broker.registering.time", clock)
    asyncio.run(test())
