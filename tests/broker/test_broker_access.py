"""A broker with access control, over its ports: what is refused has no effect and shows nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.access.actors import ROOT, SECRET, SECURE, acl, info, signed
from tests.access.test_audit_log import events
from tests.broker.brokers import SMALL, Talk, talking
from tests.helpers import PATIENCE_S
from tests.tls.authority import Authority

from firetrail.access.bodies import AclInfo
from firetrail.auth.credentials import Credentials
from firetrail.broker.broker import Broker
from firetrail.broker.config import BrokerConfig
from firetrail.errors import ConfigError, StoreError
from firetrail.format.hosts import Host
from firetrail.format.names import CONFIG
from firetrail.namesrv.config import NameServerConfig
from firetrail.namesrv.server import NameServer
from firetrail.remoting.access import Access
from firetrail.remoting.bodies import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    TopicList,
)
from firetrail.remoting.client import RemotingClient
from firetrail.remoting.codes import CommandFlag, RequestCode
from firetrail.remoting.command import RemotingCommand
from firetrail.remoting.connection import Connection
from firetrail.remoting.handlers import Handler
from firetrail.store.inspect.foreign import foreign_names
from firetrail.system import SYSTEM
from firetrail.tls.client_tls import ClientTls
from firetrail.tls.config import TlsConfig
from firetrail.tls.server_tls import ServerTls

SEND = {
    "a": "PG",
    "b": "T1",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "UNIQ_KEY\x01U1\x02KEYS\x01k1\x02",
    "j": "0",
    "k": "false",
}


class Secured:
    """A broker with access control, and a client whose requests are signed by users."""

    def __init__(self, talk: Talk) -> None:
        self.broker = talk.broker
        self._client = talk.client

    async def ask(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        by: str = "root",
        address: str = "",
    ) -> RemotingCommand:
        return await self.request(signed(code, fields, body, by=by), address)

    async def request(self, command: RemotingCommand, address: str = "") -> RemotingCommand:
        return await self._client.request(address or self.broker.address, command, PATIENCE_S)

    async def allow(self, name: str, *grants: str) -> None:
        """Create a user with grants."""
        body = info(name).encode(standard=True)
        answer = await self.ask(RequestCode.AUTH_CREATE_USER, {"username": name}, body)
        assert answer.code == 0, answer.remark
        if grants:
            await self.grant(acl(name, *grants))

    async def grant(self, policies: AclInfo) -> None:
        fields = {"subject": policies.subject}
        answer = await self.ask(RequestCode.AUTH_CREATE_ACL, fields, policies.encode(standard=True))
        assert answer.code == 0, answer.remark

    async def send(self, topic: str, *, by: str = "root", **more: str) -> RemotingCommand:
        fields = SEND | {"b": topic} | more
        return await self.ask(RequestCode.SEND_MESSAGE_V2, fields, b"hello", by=by)


@asynccontextmanager
async def secured(folder: Path | None = None) -> AsyncIterator[Secured]:
    async with talking(folder, SECURE) as talk:
        yield Secured(talk)


async def test_a_client_needs_a_signature_and_a_permission() -> None:
    async with secured() as secure:
        await secure.allow("alice", "Topic:T1 Pub")
        assert (await secure.send("T1", by="alice")).code == 0
        refused = await secure.send("T2", by="alice")
        assert refused.code == 16
        assert refused.remark == (
            "User:alice has no permission to access Topic:T2 from 127.0.0.1, no matched policies."
        )
        unsigned = RemotingCommand(RequestCode.SEND_MESSAGE_V2, SEND, b"hello")
        answer = await secure.request(unsigned)
        assert (answer.code, answer.remark) == (16, "username cannot be null.")
        assert set(secure.broker.topics.content().topic_config_table) >= {"T1"}
        assert "T2" not in secure.broker.topics.content().topic_config_table
        assert secure.broker.store.max_offset("T1", 0) == 1


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


class TestWhatWasFound:
    """Requests that name a record: the topic of the record decides, not the one they claim."""

    async def test_a_record_is_not_read_through_another_topic(self) -> None:
        async with secured() as secure:
            await secure.send("T1")
            await secure.allow("alice", "Topic:T2 All", "Group:CG All")
            view = RequestCode.VIEW_MESSAGE_BY_ID
            for claim in ({}, {"topic": "T2"}):
                answer = await secure.ask(view, {"offset": "0", **claim}, by="alice")
                assert (answer.code, "Topic:T1" in (answer.remark or "")) == (16, True)
                assert not answer.content
            await secure.grant(acl("alice", "Topic:T1 Get"))
            assert (await secure.ask(view, {"offset": "0"}, by="alice")).code == 0

    async def test_a_record_of_another_topic_is_not_sent_back(self) -> None:
        async with secured() as secure:
            await secure.send("T1")
            await secure.allow("alice", "Topic:T2 All", "Group:CG All")
            beat = HeartbeatData("c1", [], [ConsumerData("CG")]).encode(standard=True)
            assert (await secure.ask(RequestCode.HEART_BEAT, {}, beat, by="alice")).code == 0
            fields = {"offset": "0", "group": "CG", "delayLevel": "1", "originTopic": "T2"}
            back = RequestCode.CONSUMER_SEND_MSG_BACK
            end = secure.broker.store.log_range[1]
            assert (await secure.ask(back, fields, by="alice")).code == 16
            assert secure.broker.store.log_range[1] == end
            await secure.grant(acl("alice", "Topic:T1 Sub"))
            assert (await secure.ask(back, fields, by="alice")).code == 0

    async def test_a_transaction_of_another_topic_is_not_ended(self) -> None:
        async with secured() as secure:
            properties = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01U1\x02"
            assert (await secure.send("T1", i=properties, f="4")).code == 0
            await secure.allow("alice", "Topic:T2 All")
            fields = {
                "producerGroup": "PG",
                "tranStateTableOffset": "0",
                "commitLogOffset": "0",
                "commitOrRollback": "8",
                "topic": "T2",
            }
            end = RequestCode.END_TRANSACTION
            refused = await secure.ask(end, fields, by="alice")
            assert (refused.code, "Topic:T1" in (refused.remark or "")) == (16, True)
            assert secure.broker.store.max_offset("T1", 0) == 0
            await secure.grant(acl("alice", "Topic:T1 Pub"))
            assert (await secure.ask(end, fields, by="alice")).code == 0

    async def test_a_stranger_in_the_producer_group_is_not_asked_about_a_transaction(self) -> None:
        """The question for the outcome contains the message."""
        asked: list[RemotingCommand] = []

        def check(connection: Connection, request: RemotingCommand) -> None:
            asked.append(request)

        handlers: dict[int, Handler] = {RequestCode.CHECK_TRANSACTION_STATE: check}
        async with talking(None, SECURE, client_handlers=handlers) as talk:
            secure = Secured(talk)
            properties = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01U1\x02"
            properties += "CHECK_IMMUNITY_TIME_IN_SECONDS\x010\x02"
            assert (await secure.send("T1", i=properties, f="4")).code == 0
            await secure.allow("alice")
            beat = HeartbeatData("c1", [ProducerData("PG")]).encode(standard=True)
            heartbeat = RequestCode.HEART_BEAT
            assert (await secure.ask(heartbeat, {}, beat, by="alice")).code == 0
            await secure.broker.check_transactions()
            assert (await secure.ask(heartbeat, {}, beat)).code == 0  # questions would be earlier
            assert not asked
            await secure.broker.check_transactions()  # root may send to the topic
            assert (await secure.ask(heartbeat, {}, beat)).code == 0
            assert len(asked) == 1

    async def test_a_user_that_lost_its_rights_is_not_asked_about_a_transaction(self) -> None:
        asked: list[RemotingCommand] = []

        def check(connection: Connection, request: RemotingCommand) -> None:
            asked.append(request)

        handlers: dict[int, Handler] = {RequestCode.CHECK_TRANSACTION_STATE: check}
        async with talking(None, SECURE, client_handlers=handlers) as talk:
            secure = Secured(talk)
            properties = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01U1\x02"
            properties += "CHECK_IMMUNITY_TIME_IN_SECONDS\x010\x02"
            assert (await secure.send("T1", i=properties, f="4")).code == 0
            await secure.allow("alice", "Topic:T1 Pub")
            beat = HeartbeatData("c1", [ProducerData("PG")]).encode(standard=True)
            assert (await secure.ask(RequestCode.HEART_BEAT, {}, beat, by="alice")).code == 0
            for code, fields in (
                (RequestCode.AUTH_DELETE_ACL, {"subject": "User:alice"}),
                (RequestCode.AUTH_DELETE_USER, {"username": "alice"}),
            ):
                assert (await secure.ask(code, fields)).code == 0
                await secure.broker.check_transactions()
                assert (await secure.ask(4711)).code == 3  # questions would be earlier
                assert not asked

    async def test_a_reply_needs_the_reply_topic_whatever_topic_it_names(self) -> None:
        """It is pushed to a client, so the right to send to any topic is not enough."""
        async with secured() as secure:
            await secure.allow("alice", "Topic:T1 Pub")
            properties = "CORRELATION_ID\x0142\x02REPLY_TO_CLIENT\x01p1\x02"
            v1 = {"topic": "T1", "producerGroup": "PG", "properties": properties}
            v2 = SEND | {"i": properties}
            for code, fields in (
                (RequestCode.SEND_REPLY_MESSAGE, v1),
                (RequestCode.SEND_REPLY_MESSAGE_V2, v2),
            ):
                refused = await secure.ask(code, fields, by="alice")
                assert refused.code == 16
                assert "Topic:DefaultCluster_REPLY_TOPIC" in (refused.remark or "")
            await secure.grant(acl("alice", "Topic:DefaultCluster_REPLY_TOPIC Pub"))
            answer = await secure.ask(RequestCode.SEND_REPLY_MESSAGE_V2, v2, by="alice")
            assert (
                answer.remark == "the producer p1 that sent the request is not connected any more"
            )

    async def test_messages_are_not_consumed_directly_from_another_topic(self) -> None:
        async with secured() as secure:
            sent = await secure.send("T1")
            await secure.allow("alice", "Group:CG All")
            beat = HeartbeatData("c1", [], [ConsumerData("CG")]).encode(standard=True)
            assert (await secure.ask(RequestCode.HEART_BEAT, {}, beat, by="alice")).code == 0
            fields = {"consumerGroup": "CG", "clientId": "c1", "msgId": sent.fields["msgId"]}
            answer = await secure.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, by="alice")
            assert (answer.code, "Topic:T1" in (answer.remark or "")) == (16, True)


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


async def test_without_access_control_its_requests_are_unknown() -> None:
    async with talking() as talk:
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


def test_a_broker_whose_handlers_lack_a_rule_does_not_start(tmp_path: Path) -> None:
    broker = Broker(tmp_path, SECURE)
    with pytest.raises(ValueError, match=r"add rules for the requests \[4711\]"):
        broker.access.open([10, 4711])


async def test_the_audit_log_has_logins_administration_and_denied_requests(
    tmp_path: Path,
) -> None:
    async with secured(tmp_path) as secure:
        await secure.allow("alice", "Topic:T1 Pub")
        for topic in ("T1", "T1", "T2"):
            await secure.send(topic, by="alice")
        await secure.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "x"}, by="eve")
        names = secure.broker.namesrv
        await secure.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "b"}, address=names)
        assert not await asyncio.to_thread(foreign, tmp_path)
    found = [
        (event["event"], event.get("user"), event.get("request"), event.get("topic"))
        for event in events(tmp_path / "audit" / "audit.log")
    ]
    assert found == [
        ("start", None, None, None),
        ("login", "root", None, None),
        ("administration", "root", "AUTH_CREATE_USER", None),
        ("administration", "root", "AUTH_CREATE_ACL", None),
        ("login", "alice", None, None),
        ("denied", "alice", "SEND_MESSAGE_V2", "T2"),
        ("denied", None, "GET_ROUTEINFO_BY_TOPIC", "x"),
        ("login", "root", None, None),
        ("administration", "root", "WIPE_WRITE_PERM_OF_BROKER", None),
        ("stop", None, None, None),
    ]


def foreign(folder: Path) -> list[str]:
    return list(foreign_names(SYSTEM.files, folder, []))


async def test_a_denied_record_is_in_the_audit_log(tmp_path: Path) -> None:
    """The guard lets the request pass; its handler finds a record of another topic."""
    async with secured(tmp_path) as secure:
        await secure.allow("alice", "Topic:T1 Get")
        sent = await secure.send("T2")
        fields = {"offset": str(int(sent.fields["msgId"][16:32], 16)), "topic": "T1"}
        answer = await secure.ask(RequestCode.VIEW_MESSAGE_BY_ID, fields, by="alice")
        assert answer.code == 16
    denied = [e for e in events(tmp_path / "audit" / "audit.log") if e["event"] == "denied"]
    assert [event["request"] for event in denied] == ["VIEW_MESSAGE_BY_ID"]
    assert "Topic:T2" in denied[0]["reason"]


async def test_the_audit_log_can_be_switched_off(tmp_path: Path) -> None:
    async with talking(tmp_path, SECURE.replace(audit_log=False)) as talk:
        assert (await Secured(talk).send("T1")).code == 0
    assert not (tmp_path / "audit").exists()


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
        *("start", "denied", "login", "administration", "administration", "stop")
    ]
