"""Registration of a broker and its topics with name servers."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from tests.broker.brokers import SMALL, Fields, Talk
from tests.client.clusters import WAIT_S, until

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.services.registration import RegistrationService
from firetrail.namesrv import NameServerConfig
from firetrail.namesrv.server import NameServer
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import (
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    TopicRouteData,
)
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.settings.settings_table import Live


async def route(talk: Talk, topic: str) -> RemotingCommand:
    command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    return await talk.client.request(talk.broker.namesrv, command)


async def test_a_new_topic_is_registered_alone(monkeypatch: pytest.MonkeyPatch, talk: Talk) -> None:
    """Registering all topics for each new one would take longer and longer."""
    registered: list[list[str]] = []
    register = NameServer.register_local

    def note(self: NameServer, *, topics: Any, **others: Any) -> None:
        registered.append(list(topics.topic_config_table))
        register(self, topics=topics, **others)

    monkeypatch.setattr(NameServer, "register_local", note)
    await talk.send("T1")
    await talk.send("T2")
    assert registered == [["T1"], ["T2"]]
    found = TopicRouteData.decode((await route(talk, "T1")).content)
    assert found.queue_datas[0].write_queue_nums == 4


async def test_a_deleted_topic_loses_its_route_while_another_is_created(talk: Talk) -> None:
    await talk.send("OLD")
    talk.broker.topics.remove("OLD")
    talk.broker.topics.put([TopicConfig("NEW", 2, 2, 6)])
    assert (await route(talk, "NEW")).code == 0
    assert (await route(talk, "OLD")).code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_changed_topic_has_a_changed_route(talk: Talk) -> None:
    await talk.send("T1")
    talk.broker.topics.put([TopicConfig("T1", 8, 8, 4)])
    (queues,) = TopicRouteData.decode((await route(talk, "T1")).content).queue_datas
    assert (queues.read_queue_nums, queues.perm) == (8, 4)


async def test_an_absent_name_server_does_not_delay_registration_with_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0

    async def absent(*_: object) -> None:
        nonlocal now
        now += 3
        raise TimeoutError

    monkeypatch.setattr(RemotingClient, "ask", absent)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    config = Live(BrokerConfig(namesrv="127.0.0.1:1"))
    registering = RegistrationService(config, "127.0.0.1:2", lambda _: TopicConfigTable(), None)
    assert await registering._register_all() == 0
    assert now == 3


async def known(client: RemotingClient, namesrv: str, topic: str) -> RemotingCommand:
    """Return the route as soon as there is one."""
    command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    deadline, problem = monotonic() + WAIT_S, ""
    while monotonic() < deadline:
        try:
            answer = await client.request(namesrv, replace(command))
            if answer.code == 0:
                return answer
            problem = answer.remark or ""
        except (OSError, TimeoutError) as error:
            problem = repr(error)
        await asyncio.sleep(0.05)
    raise AssertionError(f"no route of {topic} within {WAIT_S} s: {problem}")


async def test_a_restarted_name_server_knows_topics_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topics are known long before the next registration, which is an hour away."""
    monkeypatch.setattr("firetrail.broker.services.registration.RETRY_S", 0.05)
    first = NameServer(NameServerConfig(listen_port=0))
    port = await first.start()
    namesrv = f"127.0.0.1:{port}"
    config = BrokerConfig(namesrv=namesrv, register_interval_ms=3_600_000)
    free = SMALL.replace(store_host=SMALL.store_host._replace(port=0))
    broker, client = Broker(tmp_path, config, free), RemotingClient()
    await broker.start()
    try:
        broker.topics.put([TopicConfig("T1", 2, 2, 6)])
        await known(client, namesrv, "T1")
        await first.stop()
        await until(lambda: broker._parts.registration._absent)
        second = NameServer(NameServerConfig(listen_port=port))
        await second.start()
        await known(client, namesrv, "T1")
        await second.stop()
    finally:
        await client.close()
        await broker.stop()


async def test_two_brokers_with_one_name_get_a_remark(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server, client = NameServer(NameServerConfig(listen_port=0)), RemotingClient()
    namesrv = f"127.0.0.1:{await server.start()}"
    config = BrokerConfig(namesrv=namesrv, register_interval_ms=100)
    free = SMALL.replace(store_host=SMALL.store_host._replace(port=0))
    one, other = (Broker(tmp_path / name, config, free) for name in ("one", "other"))
    try:
        await one.start()
        await other.start()
        rivals = (f"{one.address} and at {other.address}", f"{other.address} and at {one.address}")
        clash = f"name server {namesrv}: broker broker-a with id 0 is at "
        await until(lambda: all(clash + pair in caplog.text for pair in rivals))
        await other.stop()
        route = await known(client, namesrv, "TBW102")
        assert one.address in route.content.decode()
        good_news = f"name server {namesrv}: the broker is registered again"
        await until(lambda: good_news in caplog.text)
        levels = {r.levelname for r in caplog.records if r.getMessage() == good_news}
        assert levels == {"INFO"}
    finally:
        await client.close()
        await one.stop()
        await server.stop()


class SlowNameServer:
    """A broker, and a name server of its own that can be slow to register topics."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = NameServer(NameServerConfig(listen_port=0))
        self.folder = folder
        self.registered: list[list[str]] = []
        self.opens = asyncio.Event()
        self.opens.set()
        send = RegistrationService._send_to_all

        async def note(
            self_: RegistrationService, code: RequestCode, body: bytes, *others: Any
        ) -> None:
            if code == RequestCode.REGISTER_BROKER:
                table = RegisterBrokerBody.decode(body).topic_config_serialize_wrapper
                self.registered.append(sorted(table.topic_config_table))
                await self.opens.wait()
            await send(self_, code, body, *others)

        monkeypatch.setattr(RegistrationService, "_send_to_all", note)

    async def __aenter__(self) -> Talk:
        self.address = f"127.0.0.1:{await self.server.start()}"
        config = BrokerConfig(namesrv=self.address, register_interval_ms=3_600_000)
        free = SMALL.replace(store_host=SMALL.store_host._replace(port=0))
        self.broker, self.client = Broker(self.folder, config, free), RemotingClient()
        await self.broker.start()
        self.registered.clear()
        return Talk(self.broker, self.client)

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self.broker.stop()
        await self.server.stop()

    async def route(self, topic: str) -> int:
        command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        return (await self.client.request(self.address, command)).code


@pytest.fixture
def namesrv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlowNameServer:
    """A name server that is entered to start it, with a broker."""
    return SlowNameServer(tmp_path, monkeypatch)


async def test_the_first_send_to_a_new_topic_is_answered_when_it_has_a_route(
    namesrv: SlowNameServer,
) -> None:
    async with namesrv as talk:
        for n in range(5):
            assert (await talk.send(f"T{n}")).code == 0
            assert await namesrv.route(f"T{n}") == 0
        assert namesrv.registered == [[f"T{n}"] for n in range(5)]


async def test_topics_that_wait_together_are_registered_together(
    namesrv: SlowNameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firetrail.broker.services.registration.REGISTER_S", 600.0)
    async with namesrv as talk:
        namesrv.opens.clear()
        sends = [asyncio.create_task(talk.send(f"T{n}")) for n in range(20)]
        await until(lambda: all(talk.broker.topics.get(f"T{n}") for n in range(20)))
        assert (await talk.send("T0")).code == 0  # only the first send waits
        assert not any(task.done() for task in sends)
        namesrv.opens.set()
        assert {answer.code for answer in await asyncio.gather(*sends)} == {0}
        assert [await namesrv.route(f"T{n}") for n in range(20)] == [0] * 20
        assert len(namesrv.registered) <= 2


async def test_a_name_server_that_does_not_answer_delays_a_send_only_for_a_time(
    namesrv: SlowNameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firetrail.broker.services.registration.REGISTER_S", 0.05)
    async with namesrv as talk:
        namesrv.opens.clear()
        assert (await talk.send("T1")).code == 0
        assert await namesrv.route("T1") == ResponseCode.TOPIC_NOT_EXIST
        namesrv.opens.set()
        await known(namesrv.client, namesrv.address, "T1")


async def test_a_name_server_that_missed_a_new_topic_gets_all_topics(
    namesrv: SlowNameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firetrail.broker.services.registration.RETRY_S", 0.05)
    async with namesrv as talk:
        ask = RemotingClient.ask
        lost: list[RemotingCommand] = []

        async def lose(
            self: RemotingClient, address: str, command: RemotingCommand, *others: Any
        ) -> RemotingCommand:
            if command.code == RequestCode.REGISTER_BROKER and not lost:
                lost.append(command)
                raise TimeoutError
            return await ask(self, address, command, *others)

        monkeypatch.setattr(RemotingClient, "ask", lose)
        await talk.send("T1")
        await talk.send("T2")
        await known(namesrv.client, namesrv.address, "T1")
        await known(namesrv.client, namesrv.address, "T2")
        assert len(lost) == 1


async def test_a_created_topic_is_answered_when_it_has_a_route(
    namesrv: SlowNameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firetrail.broker.services.registration.REGISTER_S", 600.0)
    async with namesrv as talk:
        namesrv.opens.clear()
        fields: Fields = {"topic": "T1", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
        fields |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "order": False}
        creation = asyncio.create_task(talk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))
        await until(lambda: namesrv.registered)
        await talk.broker.topics.saved()
        await asyncio.wait([creation], timeout=0.2)
        assert not creation.done()
        namesrv.opens.set()
        assert (await creation).code == 0
        assert await namesrv.route("T1") == 0


async def test_a_topic_that_is_deleted_before_its_registration_gets_no_route(
    namesrv: SlowNameServer,
) -> None:
    async with namesrv as talk:
        talk.broker.topics.put([TopicConfig("GONE", 2, 2, 6)])
        talk.broker.topics.remove("GONE")
        assert (await talk.send("T1")).code == 0
        assert await namesrv.route("T1") == 0
        assert await namesrv.route("GONE") == ResponseCode.TOPIC_NOT_EXIST
