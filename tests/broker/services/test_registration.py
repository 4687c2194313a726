"""Registration of a broker and its topics with name servers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.broker.brokers import SMALL, Talk, running

from firetrail.broker.broker import Broker
from firetrail.broker.config import BrokerConfig
from firetrail.broker.services.registration import Registration
from firetrail.namesrv import NameServerConfig
from firetrail.namesrv.server import NameServer
from firetrail.remoting.bodies import TopicConfig, TopicConfigTable, TopicRouteData
from firetrail.remoting.client import Client
from firetrail.remoting.codes import RequestCode, ResponseCode
from firetrail.remoting.command import Command
from firetrail.settings.table import Live


async def route(talk: Talk, topic: str) -> Command:
    command = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    return await talk.client.request(talk.broker.namesrv, command)


def test_a_new_topic_is_registered_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registering all topics for each new one would take longer and longer."""
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


def test_a_topic_is_deleted_while_another_is_created() -> None:
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


def test_an_absent_name_server_does_not_delay_registration_with_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0

    async def absent(*_: object) -> None:
        nonlocal now
        now += 3
        raise TimeoutError

    async def test() -> None:
        config = Live(BrokerConfig(namesrv="127.0.0.1:1"))
        registering = Registration(config, "127.0.0.1:2", lambda _: TopicConfigTable(), None)
        assert await registering._register_all() == 0
        assert now == 3

    monkeypatch.setattr(Client, "ask", absent)
    clock = SimpleNamespace(monotonic=lambda: now)
    system = SimpleNamespace(clock=clock)
    monkeypatch.setattr("firetrail.broker.services.registration.SYSTEM", system)
    asyncio.run(test())


async def known(client: Client, namesrv: str, topic: str) -> Command:
    """Return the route as soon as there is one."""
    command = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    while True:
        with suppress(OSError, TimeoutError):
            answer = await client.request(namesrv, replace(command))
            if answer.code == 0:
                return answer
        await asyncio.sleep(0.05)


def test_a_restarted_name_server_knows_topics_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topics are known long before the next registration, which is an hour away."""

    async def test() -> None:
        first = NameServer(NameServerConfig(listen_port=0))
        port = await first.start()
        namesrv = f"127.0.0.1:{port}"
        config = BrokerConfig(namesrv=namesrv, register_interval_ms=3_600_000)
        free = SMALL.replace(store_host=SMALL.store_host._replace(port=0))
        broker, client = Broker(tmp_path, config, free), Client()
        await broker.start()
        try:
            broker.topics.put([TopicConfig("T1", 2, 2, 6)])
            await known(client, namesrv, "T1")
            await first.stop()
            while not broker._parts.registration._absent:
                await asyncio.sleep(0.01)
            second = NameServer(NameServerConfig(listen_port=port))
            await second.start()
            await known(client, namesrv, "T1")
            await second.stop()
        finally:
            await client.close()
            await broker.stop()

    monkeypatch.setattr("firetrail.broker.services.registration.RETRY_S", 0.05)
    asyncio.run(asyncio.wait_for(test(), 20))


def test_two_brokers_with_one_name_get_a_remark(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        server, client = NameServer(NameServerConfig(listen_port=0)), Client()
        namesrv = f"127.0.0.1:{await server.start()}"
        config = BrokerConfig(namesrv=namesrv, register_interval_ms=100)
        free = SMALL.replace(store_host=SMALL.store_host._replace(port=0))
        one, other = (Broker(tmp_path / name, config, free) for name in ("one", "other"))
        try:
            await one.start()
            await other.start()
            rivals = (
                f"{one.address} and at {other.address}",
                f"{other.address} and at {one.address}",
            )
            while not all(
                f"name server {namesrv}: broker broker-a with id 0 is at {pair}" in caplog.text
                for pair in rivals
            ):
                await asyncio.sleep(0.02)
            await other.stop()
            route = await known(client, namesrv, "TBW102")
            assert one.address in route.content.decode()
        finally:
            await client.close()
            await one.stop()
            await server.stop()

    asyncio.run(asyncio.wait_for(test(), 20))
