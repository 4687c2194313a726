"""A broker with access control, over its ports: what is refused has no effect and shows nothing."""

import asyncio
import logging
from pathlib import Path

import pytest
from tests.access.actors import ROOT, SECRET, SECURE, info, signed
from tests.access.audit.test_audit_log import events
from tests.broker.brokers import SMALL, Talk, talking
from tests.broker.secured import SEND, Secured, secured
from tests.client.clusters import until
from tests.tls.authority import Authority

from firetrail.auth.credentials import Credentials
from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.errors import ConfigError, StoreError
from firetrail.format.names import CONFIG
from firetrail.format.values.hosts import Host
from firetrail.namesrv.name_server_config import NameServerConfig
from firetrail.namesrv.server import NameServer
from firetrail.remoting.connections.access import Access
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import (
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    TopicList,
)
from firetrail.remoting.wire.codes import CommandFlag, RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.tls.client_tls import ClientTls
from firetrail.tls.server_tls import ServerTls
from firetrail.tls.tls_config import TlsConfig


async def test_a_client_needs_a_signature_and_a_permission() -> None:
    async with secured() as secure:
        await secure.allow("alice", "Topic:T1 Pub")
        assert (await secure.send("T1", by="alice")).code == 0
        refused = await secure.send("T2", by="alice")
        assert refused.code == 16
        assert refused.remark == (
            "User:alice has no permission to access Topic:T2 from 127.0.0.1, no matched policies."
            " The request needs Pub on Topic:T2."
        )
        unsigned = RemotingCommand(RequestCode.SEND_MESSAGE_V2, SEND, b"hello")
        answer = await secure.request(unsigned)
        assert (answer.code, answer.remark) == (16, "username cannot be null.")
        assert set(secure.broker.topics.content().topic_config_table) >= {"T1"}
        assert "T2" not in secure.broker.topics.content().topic_config_table
        await until(lambda: secure.broker.store.max_offset("T1", 0) == 1)


async def test_a_refused_one_way_request_gets_no_answer_and_has_no_effect() -> None:
    async with secured() as secure:
        connection = await secure._client.connect(secure.broker.address)
        one_way = RemotingCommand(RequestCode.SEND_MESSAGE_V2, SEND, b"hello")
        one_way.flag = CommandFlag.ONE_WAY
        connection.tell(one_way)
        assert (await secure.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).code == 3  # the next answer
        assert secure.broker.store.max_offset("T1", 0) == 0


async def test_unknown_requests_tell_a_stranger_nothing() -> None:
    async with secured() as secure:
        await secure.allow("alice", "* All")
        assert (await secure.request(RemotingCommand(4711))).remark == "username cannot be null."
        assert (await secure.ask(4711, by="alice")).code == 16
        assert (await secure.ask(4711)).code == 3


async def test_the_name_server_is_guarded() -> None:
    async with secured() as secure:
        await secure.allow("alice", "Topic:T1 Pub", "Topic:T2 Get")
        assert (await secure.send("T1")).code == 0
        assert (await secure.send("T3")).code == 0
        names = secure.broker.namesrv
        route = RequestCode.GET_ROUTEINFO_BY_TOPIC
        unsigned = RemotingCommand(route, {"topic": "T1"})
        assert (await secure.request(unsigned, names)).code == 16
        assert (await secure.ask(route, {"topic": "T3"}, by="alice", address=names)).code == 16
        assert (await secure.ask(route, {"topic": "T1"}, by="alice", address=names)).code == 0
        for code in (205, 216, 100, 103, 104, 318):
            fields = {"clusterName": "DefaultCluster", "topic": "T1", "brokerName": "broker-a"}
            assert (await secure.request(RemotingCommand(code, fields), names)).code == 16
            assert (await secure.ask(code, fields, by="alice", address=names)).code == 16
        listing = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        seen = await secure.ask(listing, by="alice", address=names)
        assert TopicList.decode(seen.content).topic_list == ["T1"]
        everything = await secure.ask(listing, address=names)
        assert {"T1", "T3"} <= set(TopicList.decode(everything.content).topic_list)


async def test_a_disabled_user_is_refused_on_an_open_connection() -> None:
    async with secured() as secure:
        await secure.allow("alice", "Topic:T1 Pub")
        assert (await secure.send("T1", by="alice")).code == 0
        body = b'{"userStatus":"disable"}'
        fields = {"username": "alice"}
        assert (await secure.ask(RequestCode.AUTH_UPDATE_USER, fields, body)).code == 0
        refused = await secure.send("T1", by="alice")
        assert (refused.code, refused.remark) == (16, "User:alice is disabled.")


async def test_a_heartbeat_needs_group_and_topics() -> None:
    async with secured() as secure:
        await secure.allow("alice", "Group:CG Sub", "Topic:T1 Sub")
        for topic, code in (("T1", 0), ("%RETRY%CG", 0), ("T2", 16), ("%RETRY%other", 16)):
            consumer = ConsumerData("CG", subscription_data_set=[SubscriptionData(topic)])
            beat = HeartbeatData("c1", [], [consumer]).encode(standard=True)
            answer = await secure.ask(RequestCode.HEART_BEAT, {}, beat, by="alice")
            assert answer.code == code
        assert secure.broker.groups.get("CG") is not None


async def test_no_answer_log_or_file_of_settings_shows_a_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    config = SECURE.replace(inner_credentials=Credentials("inner", f"{SECRET}-inner"))
    async with talking(tmp_path, config) as talk:
        secure = Secured(talk)
        await secure.allow("alice", "* All")
        answers = []
        for name in ("alice", "root"):
            for code in sorted(secure.broker.answered_codes[0]):
                if code in (200050, 200054, 11, 361):
                    continue  # they wait for messages
                fields = {"username": "alice", "subject": "User:alice"}
                answers.append(await secure.ask(code, fields, b'{"password":"x"}', by=name))
        assert all(SECRET.encode() not in each.content for each in answers)
        assert all(SECRET not in f"{each.remark} {each.fields}" for each in answers)
        settings = (await secure.ask(RequestCode.GET_BROKER_CONFIG)).content.decode()
        assert "initAuthenticationUser=(hidden)" in settings
    assert SECRET not in caplog.text
    assert SECRET not in repr(config)
    holders = {
        path.name
        for path in tmp_path.rglob("*")
        if path.is_file() and SECRET.encode() in path.read_bytes()
    }
    assert holders == {"firetrailUsers.json", "firetrailUsers.json.bak"}


async def test_users_survive_a_restart(tmp_path: Path) -> None:
    async with secured(tmp_path) as secure:
        await secure.allow("alice", "Topic:T1 Pub")
    async with secured(tmp_path) as secure:
        assert (await secure.send("T1", by="alice")).code == 0


async def test_a_broker_does_not_start_with_a_readable_file(tmp_path: Path) -> None:
    async with secured(tmp_path):
        pass
    (tmp_path / CONFIG / "firetrailUsers.json").chmod(0o644)
    with pytest.raises(StoreError, match="chmod 600"):
        async with secured(tmp_path):
            pass


async def test_without_access_control_its_requests_are_unknown(talk: Talk) -> None:
    answer = await talk.ask(RequestCode.AUTH_CREATE_USER, username="x")
    assert answer.code == 3
    assert answer.remark == " request type 3001 not supported: authenticationEnabled is false"


def test_permissions_without_signatures_are_refused() -> None:
    with pytest.raises(ConfigError, match="it needs authenticationEnabled=true"):
        BrokerConfig(authorization=True)
    with pytest.raises(ConfigError, match="it needs authenticationEnabled=true"):
        NameServerConfig(authorization=True)
    with pytest.raises(ConfigError, match="authenticationEnabled needs a folder"):
        NameServerConfig(authentication=True)


async def test_the_name_in_a_certificate_is_a_user(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, alice = authority.issue(file="server"), authority.issue("alice")
    for names, code in (("CN:*", 0), ("", 16)):
        tls = TlsConfig(
            certificate=server.certificate,
            key=server.key,
            client_auth="require",
            trust=authority.trust,
            user_names=names,
        )
        broker = Broker(
            tmp_path / (names or "none"),
            SECURE,
            SMALL.replace(store_host=Host("127.0.0.1", 0)),
            tls=ServerTls(tls),
        )
        await broker.start()
        own = ClientTls(ca=authority.trust, certificate=alice.certificate, key=alice.key)
        client = RemotingClient(access=Access(tls=own))
        root = RemotingClient(access=Access(ROOT, own))
        try:
            body = info("alice").encode(standard=True)
            create = RemotingCommand(RequestCode.AUTH_CREATE_USER, {"username": "alice"}, body)
            assert (await root.request(broker.address, create)).code == 0
            asked = RemotingCommand(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
            assert (await client.request(broker.address, asked)).code == code
        finally:
            await client.close()
            await root.close()
            await broker.stop()


async def test_a_name_server_of_its_own_has_its_own_users(tmp_path: Path) -> None:
    config = NameServerConfig(
        listen_port=0,
        authentication=True,
        authorization=True,
        users_folder=str(tmp_path),
        init_user=ROOT,
    )
    server = NameServer(config)
    address = f"127.0.0.1:{await server.start()}"
    client = RemotingClient()
    try:
        put = RequestCode.PUT_KV_CONFIG
        fields = {"namespace": "n", "key": "k", "value": "v"}
        unsigned, by_root = RemotingCommand(put, fields), signed(put, fields)
        answers = await asyncio.gather(
            client.request(address, unsigned), client.request(address, by_root)
        )
        assert [answer.code for answer in answers] == [16, 0]
        shown = await client.request(address, signed(RequestCode.GET_NAMESRV_CONFIG))
        assert b"initAuthenticationUser=(hidden)" in shown.content
    finally:
        await client.close()
        await server.stop()
    found = events(tmp_path / "audit" / "audit.log")
    assert [event["event"] for event in found] == [
        *("start", "administration", "login", "administration", "administration", "stop")
    ]
    assert found[1] == {
        **{"event": "administration", "outcome": "done", "source": "settings"},
        **{"request": "AUTH_CREATE_USER", "username": "root", "user_type": "Super"},
    }
    strangers = events(tmp_path / "audit" / "strangers.log")
    assert [event["event"] for event in strangers] == ["denied"]


class TestUsersWithoutAccessControl:
    """A store that has users, such as a restored one, and no setting that switches it on."""

    async def test_it_is_refused(self, tmp_path: Path) -> None:
        async with secured(tmp_path):
            pass
        with pytest.raises(ConfigError) as refused:
            Broker(tmp_path, BrokerConfig(), SMALL)
        assert str(refused.value) == (
            f"authenticationEnabled = False: {tmp_path}/config/firetrailUsers.json has 1 user,"
            " but access control is switched off, so every client could do everything; switch it on"
            " (authenticationEnabled=true and authorizationEnabled=true, or 'firetrail up --secure"
            " FOLDER'), or start without it by --ignore-users (in Python: ignore_users=True)"
        )

    async def test_it_starts_if_its_users_are_ignored(self, tmp_path: Path) -> None:
        async with secured(tmp_path):
            pass
        broker = Broker(tmp_path, BrokerConfig(), SMALL, ignore_users=True)
        assert broker.access.guard is None

    async def test_a_store_without_users_starts(self, tmp_path: Path) -> None:
        async with talking(tmp_path):
            pass
        assert Broker(tmp_path, BrokerConfig(), SMALL).access.guard is None
