"""A name server and its clients, over loopback."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from firetrail.errors import ConfigError, RequestError
from firetrail.namesrv import NameServer, NameServerConfig
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import (
    BrokerMemberGroupBody,
    ClusterInfo,
    DataVersion,
    KVTable,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicRouteData,
)
from firetrail.remoting.messages.headers import (
    RegisterBrokerHeader,
    RegisterBrokerResponse,
    TopicHeader,
)
from firetrail.remoting.messages.registration_body import checksum, encode_registration
from firetrail.remoting.messages.typed_header import Header
from firetrail.remoting.wire.codes import RequestCode, ResponseCode, Version
from firetrail.remoting.wire.command import RemotingCommand

TOPICS = TopicConfigTable({"T": TopicConfig("T", 4, 4)}, DataVersion(1, 1000))
ADDRESS = "10.0.0.1:10911"


class NamesrvTalk:
    """A name server that listens, and a client that asks it."""

    def __init__(self, server: NameServer, port: int, client: RemotingClient) -> None:
        self.server = server
        self.address = f"127.0.0.1:{port}"
        self.client = client

    async def ask(
        self, code: int, header: Header | dict[str, str] | None = None, **more: Any
    ) -> RemotingCommand:
        fields = header.encode() if isinstance(header, Header) else header or {}
        return await self.client.ask(self.address, RemotingCommand(code, fields, **more))

    async def register(
        self, broker_id: int = 0, *, compressed: bool = False, **more: Any
    ) -> RemotingCommand:
        body = encode_registration(RegisterBrokerBody(TOPICS), compressed=compressed)
        header = RegisterBrokerHeader(
            "a",
            ADDRESS if broker_id == 0 else f"10.0.0.1:{broker_id}",
            "C",
            broker_id,
            "10.0.0.1:10912",
            compressed,
            **{"body_crc32": checksum(body), **more},
        )
        return await self.ask(RequestCode.REGISTER_BROKER, header, body=body)

    async def route(self, topic: str, **more: Any) -> RemotingCommand:
        return await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicHeader(topic), **more)


@asynccontextmanager
async def talking(**settings: Any) -> AsyncIterator[NamesrvTalk]:
    server = NameServer(NameServerConfig(listen_port=0, **settings))
    client = RemotingClient()
    port = await server.start()
    try:
        yield NamesrvTalk(server, port, client)
    finally:
        await client.close()
        await server.stop()


@pytest.fixture
async def talk() -> AsyncIterator[NamesrvTalk]:
    async with talking() as talk:
        yield talk


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_registered_broker_is_in_the_routes(talk: NamesrvTalk, compressed: bool) -> None:
    answer = await talk.register(compressed=compressed)
    assert (answer.fields, answer.content) == ({}, b"")
    route = TopicRouteData.decode((await talk.route("T")).content)
    assert route.queue_datas == [QueueData("a", 4, 4, 6)]
    assert route.broker_datas[0].master == ADDRESS
    assert route.broker_datas[0].cluster == "C"


class TestRegistration:
    async def test_a_follower_gets_the_address_of_its_master(self, talk: NamesrvTalk) -> None:
        await talk.register()
        answer = RegisterBrokerResponse.decode((await talk.register(1)).fields)
        assert answer == RegisterBrokerResponse("10.0.0.1:10912", ADDRESS)
        members = await talk.ask(
            RequestCode.GET_BROKER_MEMBER_GROUP, {"clusterName": "C", "brokerName": "a"}
        )
        group = BrokerMemberGroupBody.decode(members.content).broker_member_group
        assert group.broker_addrs == {0: ADDRESS, 1: "10.0.0.1:1"}

    async def test_a_damaged_body_is_refused(self, talk: NamesrvTalk) -> None:
        with pytest.raises(RequestError, match="CRC"):
            await talk.register(body_crc32=1)
        with pytest.raises(RequestError, match="cannot be decompressed"):
            await talk.ask(
                RequestCode.REGISTER_BROKER,
                RegisterBrokerHeader("a", ADDRESS, "C", 0, compressed=True),
                body=b"no stream",
            )

    async def test_a_registration_without_a_name_is_refused(self, talk: NamesrvTalk) -> None:
        with pytest.raises(RequestError, match="needs the names"):
            await talk.ask(RequestCode.REGISTER_BROKER, RegisterBrokerHeader("", ADDRESS, "C", 0))

    async def test_a_broker_registers_only_changed_versions(self, talk: NamesrvTalk) -> None:
        header = RegisterBrokerHeader("a", ADDRESS, "C", 0)
        version = TOPICS.data_version.encode()
        answer = await talk.ask(RequestCode.QUERY_DATA_VERSION, header, body=version)
        assert (answer.fields, answer.content) == ({"changed": "true"}, b"")
        await talk.register()
        answer = await talk.ask(RequestCode.QUERY_DATA_VERSION, header, body=version)
        assert (answer.fields, answer.content) == ({"changed": "false"}, version)

    async def test_a_broker_unregisters(self, talk: NamesrvTalk) -> None:
        await talk.register()
        await talk.ask(RequestCode.UNREGISTER_BROKER, RegisterBrokerHeader("a", ADDRESS, "C", 0))
        with pytest.raises(RequestError) as caught:
            await talk.route("T")
        assert caught.value.code == ResponseCode.TOPIC_NOT_EXIST
        assert re.search(r"the name server started \d+ s ago", caught.value.remark)

    async def test_a_closed_connection_removes_its_brokers(self, talk: NamesrvTalk) -> None:
        broker = RemotingClient()
        await NamesrvTalk(talk.server, int(talk.address.rpartition(":")[2]), broker).register()
        assert talk.server.routes.topics() == ["T"]
        await broker.close()
        while talk.server.routes.topics():
            await asyncio.sleep(0.001)

    async def test_a_silent_broker_is_removed(self) -> None:
        async with talking(scan_interval_ms=1) as talk:
            await talk.register(heartbeat_timeout_millis=1)
            while talk.server.routes.topics():
                await asyncio.sleep(0.001)

    async def test_a_failure_does_not_end_the_expiry(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        calls = 0

        def fail(*args: object) -> list[str]:
            nonlocal calls
            calls += 1
            raise RuntimeError("unforeseen")

        monkeypatch.setattr("firetrail.namesrv.routes.Routes.expire", fail)
        async with talking(scan_interval_ms=1):
            while calls < 3:
                await asyncio.sleep(0.002)
        assert caplog.messages == ["silent brokers could not be removed; will retry: unforeseen"]

    async def test_a_local_broker_does_not_expire(self, talk: NamesrvTalk) -> None:
        talk.server.register_local(cluster="C", name="a", address=ADDRESS, topics=TOPICS)
        assert (await talk.route("T")).code == 0
        talk.server.unregister_local(name="a", address=ADDRESS)
        assert talk.server.routes.topics() == []

    async def test_a_single_topic_is_registered(self, talk: NamesrvTalk) -> None:
        await talk.register()
        route = TopicRouteData([QueueData("a", 1, 1, 6)])
        await talk.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, TopicHeader("U"), body=route.encode())
        assert (await talk.route("U")).code == 0

    async def test_a_heartbeat_of_a_broker_is_accepted(self, talk: NamesrvTalk) -> None:
        header = {"clusterName": "C", "brokerAddr": ADDRESS, "brokerName": "a"}
        assert (await talk.ask(RequestCode.BROKER_HEARTBEAT, header)).code == 0


class TestRoutes:
    async def test_old_clients_get_keys_without_quotes(self, talk: NamesrvTalk) -> None:
        await talk.register()
        old, new = Version.V4_9_4 - 1, Version.V4_9_4
        assert b'{0:"10.0.0.1:10911"}' in (await talk.route("T", version=old)).content
        assert b'{"0":"10.0.0.1:10911"}' in (await talk.route("T", version=new)).content
        asked = await talk.ask(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicHeader("T", True), version=old
        )
        assert b'{"0":"10.0.0.1:10911"}' in asked.content

    async def test_clusters_are_listed(self, talk: NamesrvTalk) -> None:
        await talk.register()
        info = ClusterInfo.decode((await talk.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).content)
        assert info.cluster_addr_table == {"C": ["a"]}
        assert info.broker_addr_table["a"].master == ADDRESS

    async def test_routes_include_the_order_of_brokers(self) -> None:
        async with talking(order_message_enable=True) as talk:
            await talk.register()
            await talk.ask(
                RequestCode.PUT_KV_CONFIG,
                {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "a:4"},
            )
            assert json.loads((await talk.route("T")).content)["orderTopicConf"] == "a:4"
            assert KVTable.decode((await talk.register()).content) == KVTable({"T": "a:4"})


class TestAdministration:
    async def test_topics_are_listed_and_deleted(self, talk: NamesrvTalk) -> None:
        await talk.register()

        async def names(code: int, fields: dict[str, str] | None = None) -> list[str]:
            return TopicList.decode((await talk.ask(code, fields)).content).topic_list

        assert await names(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == ["T"]
        assert await names(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "C"}) == ["T"]
        assert await names(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS) == ["C", "a"]
        assert await names(RequestCode.GET_UNIT_TOPIC_LIST) == []
        assert await names(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == []
        assert await names(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == []
        await talk.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"})
        assert await names(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == []

    async def test_write_permissions_are_changed(self, talk: NamesrvTalk) -> None:
        await talk.register()
        name = {"brokerName": "a"}
        wiped = await talk.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, name)
        assert wiped.fields == {"wipeTopicCount": "1"}
        assert TopicRouteData.decode((await talk.route("T")).content).queue_datas[0].perm == 4
        added = await talk.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, name)
        assert added.fields == {"addTopicCount": "1"}
        assert TopicRouteData.decode((await talk.route("T")).content).queue_datas[0].perm == 6

    async def test_settings_are_read_and_changed(self, talk: NamesrvTalk) -> None:
        async def shown() -> bytes:
            return (await talk.ask(RequestCode.GET_NAMESRV_CONFIG)).content

        assert b"enableAllTopicList=true\n" in await shown()
        await talk.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"enableAllTopicList=false")
        assert b"enableAllTopicList=false\n" in await shown()
        with pytest.raises(RequestError, match="does not list"):
            await talk.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        await talk.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"log_level=ERROR")
        assert logging.getLogger("firetrail").level == logging.ERROR

    @pytest.mark.parametrize("change", ["kvConfigPath=/etc/passwd", "configStorePath=x", "a=b"])
    async def test_fixed_settings_cannot_be_changed(self, talk: NamesrvTalk, change: str) -> None:
        """The reference server wrote its settings into any file that a request named."""
        with pytest.raises(RequestError, match="only log_level, orderMessageEnable") as caught:
            await talk.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=change.encode())
        assert caught.value.code == ResponseCode.NO_PERMISSION

    @pytest.mark.parametrize("change", ["enableAllTopicList=maybe", "log_level=\\u00"])
    async def test_a_wrong_value_is_no_matter_of_permission(
        self, talk: NamesrvTalk, change: str
    ) -> None:
        """The code is that of a broker."""
        with pytest.raises(RequestError) as caught:
            await talk.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=change.encode())
        assert caught.value.code == ResponseCode.INVALID_PARAMETER


class TestKeptSettings:
    @staticmethod
    async def put(talk: NamesrvTalk) -> None:
        await talk.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"})

    async def test_values_are_set_read_and_deleted(self, talk: NamesrvTalk) -> None:
        key = {"namespace": "n", "key": "k"}
        with pytest.raises(RequestError, match="no value for k"):
            await talk.ask(RequestCode.GET_KV_CONFIG, key)
        with pytest.raises(RequestError, match="no namespace"):
            await talk.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"})
        with pytest.raises(RequestError, match="value is missing"):
            await talk.ask(RequestCode.PUT_KV_CONFIG, key)
        await self.put(talk)
        assert (await talk.ask(RequestCode.GET_KV_CONFIG, key)).fields == {"value": "v"}
        listed = await talk.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"})
        assert KVTable.decode(listed.content) == KVTable({"k": "v"})
        await talk.ask(RequestCode.DELETE_KV_CONFIG, key)
        with pytest.raises(RequestError, match="no value for k"):
            await talk.ask(RequestCode.GET_KV_CONFIG, key)

    async def test_values_survive_in_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "namesrv" / "kvConfig.json"
        async with talking(kv_config_path=str(path)) as talk:
            await self.put(talk)
        assert path.read_text() == '{\n\t"configTable":{\n\t\t"n":{\n\t\t\t"k":"v"\n\t\t}\n\t}\n}'
        async with talking(kv_config_path=str(path)) as talk:
            answer = await talk.ask(RequestCode.GET_KV_CONFIG, {"namespace": "n", "key": "k"})
            assert answer.fields == {"value": "v"}

    def test_a_damaged_file_is_an_error(self, tmp_path: Path) -> None:
        path = tmp_path / "kvConfig.json"
        path.write_text('{"configTable":')
        with pytest.raises(ConfigError, match="repair or remove"):
            NameServer(NameServerConfig(kv_config_path=str(path)))
