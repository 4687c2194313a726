"""A name server and its clients, over loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from firetrail.errors import ConfigError, RequestError
from firetrail.namesrv import NameServer, NameServerConfig
from firetrail.remoting.bodies import (
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
from firetrail.remoting.client import RemotingClient
from firetrail.remoting.codes import RequestCode, ResponseCode, Version
from firetrail.remoting.command import RemotingCommand
from firetrail.remoting.header import Header
from firetrail.remoting.headers import RegisterBrokerHeader, RegisterBrokerResponse, TopicHeader
from firetrail.remoting.registration import checksum, encode_registration

TOPICS = TopicConfigTable({"T": TopicConfig("T", 4, 4)}, DataVersion(1, 1000))
ADDRESS = "10.0.0.1:10911"


class Asking:
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


def asking(test: Callable[[Asking], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        server = NameServer(NameServerConfig(listen_port=0, **settings))
        client = RemotingClient()
        port = await server.start()
        try:
            async with asyncio.timeout(20):
                await test(Asking(server, port, client))
        finally:
            await client.close()
            await server.stop()

    asyncio.run(run())


@pytest.mark.parametrize("compressed", [False, True])
def test_a_broker_registers(compressed: bool) -> None:
    async def test(a: Asking) -> None:
        answer = await a.register(compressed=compressed)
        assert (answer.fields, answer.content) == ({}, b"")
        route = TopicRouteData.decode((await a.route("T")).content)
        assert route.queue_datas == [QueueData("a", 4, 4, 6)]
        assert route.broker_datas[0].master == ADDRESS
        assert route.broker_datas[0].cluster == "C"

    asking(test)


class TestRegistration:
    def test_a_follower_gets_the_address_of_its_master(self) -> None:
        async def test(a: Asking) -> None:
            await a.register()
            answer = RegisterBrokerResponse.decode((await a.register(1)).fields)
            assert answer == RegisterBrokerResponse("10.0.0.1:10912", ADDRESS)
            members = await a.ask(
                RequestCode.GET_BROKER_MEMBER_GROUP, {"clusterName": "C", "brokerName": "a"}
            )
            group = BrokerMemberGroupBody.decode(members.content).broker_member_group
            assert group.broker_addrs == {0: ADDRESS, 1: "10.0.0.1:1"}

        asking(test)

    def test_a_damaged_body_is_refused(self) -> None:
        async def test(a: Asking) -> None:
            with pytest.raises(RequestError, match="CRC"):
                await a.register(body_crc32=1)
            with pytest.raises(RequestError, match="cannot be decompressed"):
                await a.ask(
                    RequestCode.REGISTER_BROKER,
                    RegisterBrokerHeader("a", ADDRESS, "C", 0, compressed=True),
                    body=b"no stream",
                )

        asking(test)

    def test_a_registration_without_a_name_is_refused(self) -> None:
        async def test(a: Asking) -> None:
            with pytest.raises(RequestError, match="needs the names"):
                await a.ask(RequestCode.REGISTER_BROKER, RegisterBrokerHeader("", ADDRESS, "C", 0))

        asking(test)

    def test_a_broker_registers_only_changed_versions(self) -> None:
        async def test(a: Asking) -> None:
            header = RegisterBrokerHeader("a", ADDRESS, "C", 0)
            version = TOPICS.data_version.encode()
            answer = await a.ask(RequestCode.QUERY_DATA_VERSION, header, body=version)
            assert (answer.fields, answer.content) == ({"changed": "true"}, b"")
            await a.register()
            answer = await a.ask(RequestCode.QUERY_DATA_VERSION, header, body=version)
            assert (answer.fields, answer.content) == ({"changed": "false"}, version)

        asking(test)

    def test_a_broker_unregisters(self) -> None:
        async def test(a: Asking) -> None:
            await a.register()
            await a.ask(RequestCode.UNREGISTER_BROKER, RegisterBrokerHeader("a", ADDRESS, "C", 0))
            with pytest.raises(RequestError) as caught:
                await a.route("T")
            assert caught.value.code == ResponseCode.TOPIC_NOT_EXIST
            assert "the name server started 0 s ago" in caught.value.remark

        asking(test)

    def test_a_closed_connection_removes_its_brokers(self) -> None:
        async def test(a: Asking) -> None:
            broker = RemotingClient()
            await Asking(a.server, int(a.address.rpartition(":")[2]), broker).register()
            assert a.server.routes.topics() == ["T"]
            await broker.close()
            while a.server.routes.topics():
                await asyncio.sleep(0.001)

        asking(test)

    def test_a_silent_broker_is_removed(self) -> None:
        async def test(a: Asking) -> None:
            await a.register(heartbeat_timeout_millis=1)
            while a.server.routes.topics():
                await asyncio.sleep(0.001)

        asking(test, scan_interval_ms=1)

    def test_a_local_broker_does_not_expire(self) -> None:
        async def test(a: Asking) -> None:
            a.server.register_local(cluster="C", name="a", address=ADDRESS, topics=TOPICS)
            assert (await a.route("T")).code == 0
            a.server.unregister_local(name="a", address=ADDRESS)
            assert a.server.routes.topics() == []

        asking(test)

    def test_a_single_topic_is_registered(self) -> None:
        async def test(a: Asking) -> None:
            await a.register()
            route = TopicRouteData([QueueData("a", 1, 1, 6)])
            await a.ask(
                RequestCode.REGISTER_TOPIC_IN_NAMESRV, TopicHeader("U"), body=route.encode()
            )
            assert (await a.route("U")).code == 0

        asking(test)

    def test_a_heartbeat_keeps_a_broker(self) -> None:
        async def test(a: Asking) -> None:
            header = {"clusterName": "C", "brokerAddr": ADDRESS, "brokerName": "a"}
            assert (await a.ask(RequestCode.BROKER_HEARTBEAT, header)).code == 0

        asking(test)


class TestRoutes:
    def test_old_clients_get_keys_without_quotes(self) -> None:
        async def test(a: Asking) -> None:
            await a.register()
            old, new = Version.V4_9_4 - 1, Version.V4_9_4
            assert b'{0:"10.0.0.1:10911"}' in (await a.route("T", version=old)).content
            assert b'{"0":"10.0.0.1:10911"}' in (await a.route("T", version=new)).content
            asked = await a.ask(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicHeader("T", True), version=old
            )
            assert b'{"0":"10.0.0.1:10911"}' in asked.content

        asking(test)

    def test_clusters_are_listed(self) -> None:
        async def test(a: Asking) -> None:
            await a.register()
            info = ClusterInfo.decode((await a.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).content)
            assert info.cluster_addr_table == {"C": ["a"]}
            assert info.broker_addr_table["a"].master == ADDRESS

        asking(test)

    def test_routes_include_the_order_of_brokers(self) -> None:
        async def test(a: Asking) -> None:
            await a.register()
            await a.ask(
                RequestCode.PUT_KV_CONFIG,
                {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "a:4"},
            )
            assert json.loads((await a.route("T")).content)["orderTopicConf"] == "a:4"
            assert KVTable.decode((await a.register()).content) == KVTable({"T": "a:4"})

        asking(test, order_message_enable=True)


class TestAdministration:
    def test_topics_are_listed_and_deleted(self) -> None:
        async def test(a: Asking) -> None:
            await a.register()

            async def names(code: int, fields: dict[str, str] | None = None) -> list[str]:
                return TopicList.decode((await a.ask(code, fields)).content).topic_list

            assert await names(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == ["T"]
            assert await names(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "C"}) == ["T"]
            assert await names(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS) == ["C", "a"]
            assert await names(RequestCode.GET_UNIT_TOPIC_LIST) == []
            assert await names(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == []
            assert await names(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == []
            await a.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"})
            assert await names(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == []

        asking(test)

    def test_write_permissions_are_changed(self) -> None:
        async def test(a: Asking) -> None:
            await a.register()
            name = {"brokerName": "a"}
            wiped = await a.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, name)
            assert wiped.fields == {"wipeTopicCount": "1"}
            assert TopicRouteData.decode((await a.route("T")).content).queue_datas[0].perm == 4
            added = await a.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, name)
            assert added.fields == {"addTopicCount": "1"}
            assert TopicRouteData.decode((await a.route("T")).content).queue_datas[0].perm == 6

        asking(test)

    def test_settings_are_read_and_changed(self) -> None:
        async def test(a: Asking) -> None:
            async def shown() -> bytes:
                return (await a.ask(RequestCode.GET_NAMESRV_CONFIG)).content

            assert b"enableAllTopicList=true\n" in await shown()
            await a.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"enableAllTopicList=false")
            assert b"enableAllTopicList=false\n" in await shown()
            with pytest.raises(RequestError, match="does not list"):
                await a.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)

        asking(test)

    @pytest.mark.parametrize("change", ["kvConfigPath=/etc/passwd", "configStorePath=x", "a=b"])
    def test_fixed_settings_cannot_be_changed(self, change: str) -> None:
        """The reference server wrote its settings into any file that a request named."""

        async def test(a: Asking) -> None:
            with pytest.raises(RequestError, match="only orderMessageEnable") as caught:
                await a.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=change.encode())
            assert caught.value.code == ResponseCode.NO_PERMISSION

        asking(test)


class TestKeptSettings:
    @staticmethod
    async def put(a: Asking) -> None:
        await a.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"})

    def test_values_are_set_read_and_deleted(self) -> None:
        key = {"namespace": "n", "key": "k"}

        async def test(a: Asking) -> None:
            with pytest.raises(RequestError, match="no value for k"):
                await a.ask(RequestCode.GET_KV_CONFIG, key)
            with pytest.raises(RequestError, match="no namespace"):
                await a.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"})
            with pytest.raises(RequestError, match="value is missing"):
                await a.ask(RequestCode.PUT_KV_CONFIG, key)
            await self.put(a)
            assert (await a.ask(RequestCode.GET_KV_CONFIG, key)).fields == {"value": "v"}
            listed = await a.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"})
            assert KVTable.decode(listed.content) == KVTable({"k": "v"})
            await a.ask(RequestCode.DELETE_KV_CONFIG, key)
            with pytest.raises(RequestError, match="no value for k"):
                await a.ask(RequestCode.GET_KV_CONFIG, key)

        asking(test)

    def test_values_survive_in_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "namesrv" / "kvConfig.json"
        asking(self.put, kv_config_path=str(path))
        assert path.read_text() == '{\n\t"configTable":{\n\t\t"n":{\n\t\t\t"k":"v"\n\t\t}\n\t}\n}'

        async def still_there(a: Asking) -> None:
            answer = await a.ask(RequestCode.GET_KV_CONFIG, {"namespace": "n", "key": "k"})
            assert answer.fields == {"value": "v"}

        asking(still_there, kv_config_path=str(path))

    def test_a_damaged_file_is_an_error(self, tmp_path: Path) -> None:
        path = tmp_path / "kvConfig.json"
        path.write_text('{"configTable":')
        with pytest.raises(ConfigError, match="repair or remove"):
            NameServer(NameServerConfig(kv_config_path=str(path)))
