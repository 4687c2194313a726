"""A broker with the accounts of ACL 1.0, over its ports."""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.access.actors import SECRET, credentials, signed
from tests.access.audit.test_audit_log import events
from tests.broker.access.test_access_of_waiting_requests import PULL
from tests.broker.brokers import Talk, talking
from tests.broker.processors.test_reply_processor import TO_P1
from tests.broker.secured import SEND
from tests.client.clusters import until
from tests.extras import require
from tests.helpers import PATIENCE_S

from firetrail.access.plain import plain_acl
from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.errors import ConfigError
from firetrail.remoting.wire.codes import PLAIN_CODES, RequestCode
from firetrail.remoting.wire.command import RemotingCommand


@pytest.fixture(autouse=True)
def yaml() -> None:
    require("yaml")


def account(name: str, *lines: str) -> str:
    members = (f"accessKey: {name}", f"secretKey: {credentials(name).secret_key}", *lines)
    return "- " + "\n  ".join(members) + "\n"


ACCOUNTS = "accounts:\n" + account("customer", "topicPerms: [T1=PUB]", "groupPerms: [G1=SUB]")
ACCOUNTS += account("operator", "admin: true")


class Plain:
    """A broker with ACL 1.0, and a client."""

    def __init__(self, talk: Talk, path: Path) -> None:
        self.broker = talk.broker
        self._client = talk.client
        self.path = path

    def write(self, text: str) -> None:
        self.path.touch(0o600)
        self.path.write_text(text)

    async def ask(
        self, code: int, fields: dict[str, str] | None = None, *, by: str = "", address: str = ""
    ) -> RemotingCommand:
        """Send a request that an account has signed, or nobody."""
        command = signed(code, fields, by=by) if by else RemotingCommand(code, fields or {})
        return await self._client.request(address or self.broker.address, command, PATIENCE_S)

    async def send(self, topic: str, by: str = "customer") -> RemotingCommand:
        return await self.ask(RequestCode.SEND_MESSAGE_V2, SEND | {"b": topic}, by=by)

    async def reply(self, topic: str, by: str = "customer") -> RemotingCommand:
        """Reply to a request of a client that has left."""
        fields = SEND | {"b": topic, "c": topic, "i": TO_P1}
        return await self.ask(RequestCode.SEND_REPLY_MESSAGE_V2, fields, by=by)

    async def held_pull(self, text: str, time_s: int, *, by: str) -> int:
        """Return the code of a pull that waits while the file is changed and a message is sent.

        Args:
            text: The new content of the file.
            time_s: The time of the change, which has to be another one each time.
            by: Who pulls.
        """
        pull = PULL | {"consumerGroup": "G1"}
        pull["queueOffset"] = str(self.broker.store.max_offset("T1", 0))
        held = asyncio.create_task(self.ask(RequestCode.PULL_MESSAGE, pull, by=by))
        long_polling = self.broker._parts.state.long_polling
        await until(lambda: long_polling._count == 1 or held.done())
        self.write(text)
        os.utime(self.path, (time_s, time_s))
        assert (await self.send("T1", by="operator")).code == 0
        return (await held).code


@asynccontextmanager
async def plain(folder: Path, text: str = ACCOUNTS) -> AsyncIterator[Plain]:
    path = folder / "plain_acl.yml"
    path.touch(0o600)
    path.write_text(text)
    config = BrokerConfig(acl=True, acl_file=str(path))
    async with talking(folder / "store", config) as talk:
        yield Plain(talk, path)


async def test_refusals_have_code_16_and_the_texts_of_acl_1(tmp_path: Path) -> None:
    async with plain(tmp_path) as broker:
        assert (await broker.send("T1")).code == 0
        refused = {
            "No default permission for topic:T2": await broker.send("T2"),
            "No accessKey is configured": await broker.send("T1", by=""),
            "No acl config for stranger": await broker.send("T1", by="stranger"),
            "Need admin permission for Topic:T9, but accessKey=customer is not": await broker.ask(
                RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "T9"}, by="customer"
            ),
            "GET_BROKER_CLUSTER_ACL_CONFIG: User:customer is not a super user": await broker.ask(
                54, by="customer"
            ),
        }
        for text, answer in refused.items():
            assert (answer.code, answer.remark) == (16, text)
        forged = signed(RequestCode.SEND_MESSAGE_V2, SEND, by="customer")
        forged = RemotingCommand(forged.code, forged.fields, b"another body")
        answer = await broker._client.request(broker.broker.address, forged, PATIENCE_S)
        assert answer.remark == "Check signature failed for accessKey=customer"
        assert broker.broker.store.max_offset("T2", 0) == 0


async def test_every_account_may_reply(tmp_path: Path) -> None:
    async with plain(tmp_path) as broker:
        answer = await broker.reply("DefaultCluster_REPLY_TOPIC")
        assert (answer.code, "p1" in (answer.remark or "")) == (1, True)  # there is no such client
        assert (await broker.reply("T2")).code == 16
        assert (await broker.reply("DefaultCluster_REPLY_TOPIC", by="stranger")).code == 16


async def test_the_name_server_knows_the_accounts_too(tmp_path: Path) -> None:
    async with plain(tmp_path) as broker:
        route, at = RequestCode.GET_ROUTEINFO_BY_TOPIC, broker.broker.namesrv
        assert (await broker.send("T1")).code == 0
        assert (await broker.ask(route, {"topic": "T1"}, by="customer", address=at)).code == 0
        assert (await broker.ask(route, {"topic": "TBW102"}, by="customer", address=at)).code == 0
        assert (await broker.ask(route, {"topic": "T2"}, by="customer", address=at)).code == 16
        assert (await broker.ask(route, {"topic": "T1"}, address=at)).code == 16


async def test_a_white_address_replaces_signature_and_permission_but_makes_no_administrator(
    tmp_path: Path,
) -> None:
    white = "globalWhiteRemoteAddresses: [127.0.0.1]\n"
    async with plain(tmp_path, white + ACCOUNTS) as broker:
        assert (await broker.send("T2", by="")).code == 0
        assert (await broker.send("T2", by="stranger")).code == 0
        assert (await broker.ask(RequestCode.GET_BROKER_CONFIG)).code == 0
        for by in ("", "stranger", "customer"):
            for code in PLAIN_CODES:
                assert (await broker.ask(code, {"accessKey": "x"}, by=by)).code == 16
        assert (await broker.ask(54, by="operator")).code == 0
    own = ACCOUNTS.replace("admin: true", "admin: true\n  whiteRemoteAddress: 127.0.0.1")
    async with plain(tmp_path, own) as broker:
        assert (await broker.send("T2", by="")).code == 16
        claimed = {"AccessKey": "operator", "Signature": "forged"}
        assert (await broker.ask(RequestCode.GET_BROKER_CONFIG, claimed)).code == 0
        assert (await broker.ask(54, claimed)).code == 16


@pytest.mark.parametrize(
    ("before", "by"),
    [
        pytest.param(ACCOUNTS.replace("T1=PUB", "T1=PUB|SUB"), "customer", id="forbidden"),
        pytest.param("globalWhiteRemoteAddresses: [127.0.0.1]\n" + ACCOUNTS, "", id="not trusted"),
    ],
)
async def test_a_waiting_pull_gets_nothing_if_a_changed_file_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, by: str
) -> None:
    monkeypatch.setattr(plain_acl, "RELOAD_S", 3600.0)
    async with plain(tmp_path, before) as broker:
        assert (await broker.send("T1")).code == 0
        broker.broker.groups.require("G1")
        for text, code in ((before + " ", 0), (ACCOUNTS, 16)):
            assert await broker.held_pull(text, code, by=by) == code


async def test_changed_files_are_used_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plain_acl, "RELOAD_S", 0.01)
    async with plain(tmp_path) as broker:
        broker.write(ACCOUNTS + account("newcomer", "defaultTopicPerm: PUB"))
        await until(lambda: "3 accounts of ACL 1.0 are in force now" in caplog.text)
        assert (await broker.send("T2", by="newcomer")).code == 0
        broker.write("accounts: [")
        await until(lambda: "remain in force" in caplog.text)
        assert (await broker.send("T2", by="newcomer")).code == 0
        broker.write(ACCOUNTS)
        await until(lambda: "2 accounts of ACL 1.0 are in force now" in caplog.text)
        assert (await broker.send("T2", by="newcomer")).code == 16


async def test_administrators_change_accounts_by_request(tmp_path: Path) -> None:
    async with plain(tmp_path) as broker:
        fields = {
            "accessKey": "newcomer",
            "secretKey": credentials("newcomer").secret_key,
            "defaultTopicPerm": "PUB",
            "topicPerms": "T5=DENY",
        }
        assert (await broker.ask(50, fields, by="operator")).code == 0
        assert (await broker.send("T2", by="newcomer")).code == 0
        assert (await broker.send("T5", by="newcomer")).remark == "No permission for topic:T5"
        shown = await broker.ask(54, by="operator")
        body = json.loads(shown.content)
        assert [each["accessKey"] for each in body["plainAccessConfigs"]] == [
            *("customer", "operator", "newcomer")
        ]
        assert {each["secretKey"] for each in body["plainAccessConfigs"]} == {""}
        version = await broker.ask(52, by="operator")
        assert json.loads(version.fields["version"])["counter"] == 1
        assert list(json.loads(version.fields["allAclFileVersion"])) == [str(broker.path)]
        assert version.fields["brokerAddr"] == broker.broker.address
        assert (await broker.ask(51, {"accessKey": "newcomer"}, by="operator")).code == 0
        assert (await broker.send("T2", by="newcomer")).code == 16
        white = {"globalWhiteAddrs": "10.1.*, 10.2.3.4"}
        assert (await broker.ask(53, white, by="operator")).code == 0
        assert "10.2.3.4" in broker.path.read_text()


async def test_invalid_changes_have_rocketmqs_codes(tmp_path: Path) -> None:
    async with plain(tmp_path) as broker:
        for code, fields, failure in (
            (50, {"accessKey": "customer", "topicPerms": "T1=WRITE"}, 209),
            (50, {"accessKey": "newcomer", "secretKey": "12345678"}, 209),
            (51, {"accessKey": "nobody"}, 210),
            (51, {"accessKey": "operator"}, 210),
            (53, {"globalWhiteAddrs": "10.0.0.0/8"}, 211),
            (53, {"globalWhiteAddrs": "*", "aclFileFullPath": "/etc/x.yml"}, 211),
        ):
            answer = await broker.ask(code, fields, by="operator")
            assert answer.code == failure
            assert answer.remark
        assert broker.path.read_text() == ACCOUNTS


async def test_no_secret_is_in_a_log_or_an_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with plain(tmp_path) as broker:
        for code in sorted(broker.broker.answered_codes[0] - {200050, 200054, 11, 361}):
            answer = await broker.ask(code, {"accessKey": "customer"}, by="operator")
            assert SECRET not in f"{answer.remark} {answer.fields} {answer.content!r}"
        holders = [
            path for path in tmp_path.rglob("*")
            if path.is_file() and SECRET.encode() in path.read_bytes()
        ]  # fmt: skip
        assert holders == [broker.path]
    assert SECRET not in caplog.text


async def test_acl_1_and_acl_2_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be combined with authenticationEnabled"):
        BrokerConfig(acl=True, authentication=True)
    with pytest.raises(ConfigError, match="it needs authenticationEnabled=true"):
        BrokerConfig(migrate_acl=True)


async def test_the_file_must_be_known_and_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    with pytest.raises(ConfigError, match="unless ROCKETMQ_HOME is set"):
        Broker(tmp_path, BrokerConfig(acl=True))
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"conf/plain_acl.yml'?: the file .* does not exist"):
        async with Broker.running(tmp_path / "store", BrokerConfig(acl=True)):
            pass


async def test_accounts_are_migrated_to_users(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "plain_acl.yml"
    path.touch(0o600)
    path.write_text(ACCOUNTS)
    config = BrokerConfig(
        authentication=True, authorization=True, migrate_acl=True, acl_file=str(path)
    )
    async with talking(tmp_path / "store", config) as talk:
        broker = Plain(talk, path)
        assert (await broker.send("T1")).code == 0
        assert (await broker.send("T2")).remark == (
            "User:customer has no permission to access Topic:T2 from 127.0.0.1, the decision is"
            " deny. The request needs Pub on Topic:T2."
        )
        assert (await broker.ask(3005, by="operator")).code == 0
        answer = await broker.reply("DefaultCluster_REPLY_TOPIC")
        assert (answer.code, "p1" in (answer.remark or "")) == (1, True)  # there is no such client
    assert "there are no users" not in caplog.text
    _, customer, operator, *_ = events(tmp_path / "store" / "audit" / "audit.log")
    entries = [(e["resource"], e["decision"]) for e in customer.pop("entries")]
    assert ("Topic:T1", "Allow") in entries
    assert ("Topic:*", "Deny") in entries
    for event, name, kind in ((customer, "customer", "Normal"), (operator, "operator", "Super")):
        assert event == {
            **{"event": "administration", "outcome": "done", "source": "settings"},
            **{"request": "AUTH_CREATE_USER", "username": name, "user_type": kind},
        }
