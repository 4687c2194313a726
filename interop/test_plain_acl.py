"""ACL 1.0 with RocketMQ 4.9.7: the same ``plain_acl.yml`` for its own broker and for Firetrail's.

The name server is Java's, which checks nothing, so that every request reaches the broker.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from interop.servers import Servers, jars
from interop.stock import WAIT_S, registered
from tests.broker.processors.test_reply_processor import TO_P1
from tests.broker.secured import SEND

from firetrail.access.plain.plain_acl import PlainAcl
from firetrail.auth.credentials import Credentials
from firetrail.auth.signature import Signer
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.system import SYSTEM

CLIENT = Path(__file__).parent / "java" / "clients" / "SecuredClient.java"
ADMIN = ("administrator", "the-secret-of-the-admin")
SHOP = ("shop-account", "0123456")
ACCOUNTS = f"""\
globalWhiteRemoteAddresses:
- 10.10.103.*
accounts:
- accessKey: {SHOP[0]}
  secretKey: "{SHOP[1]}"
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - orders=PUB|SUB
  - listed=DENY
  groupPerms:
  - shop=SUB
- accessKey: {ADMIN[0]}
  secretKey: {ADMIN[1]}
  whiteRemoteAddress:
  admin: true
"""
SIDES = ("java", "firetrail")
CLUSTER = "DefaultCluster"


class Guarded(NamedTuple):
    """A broker with ACL 1.0, the tools of RocketMQ 4.9.7, and the file with the accounts."""

    side: str
    namesrv: str
    broker: str
    tools: Servers
    accounts: Path

    def mqadmin(self, command: str, *arguments: str) -> str:
        """Run a command, signed by the administrator."""
        return self.tools.mqadmin(command, "-n", self.namesrv, *arguments)


@pytest.fixture(scope="module", params=SIDES)
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    servers = Servers("v4", tmp_path_factory.mktemp(request.param))
    accounts = servers.folder / "conf" / "plain_acl.yml"
    accounts.touch(0o600)
    accounts.write_text(ACCOUNTS)
    tools = f"accessKey: {ADMIN[0]}\nsecretKey: {ADMIN[1]}\n"
    (servers.folder / "conf" / "tools.yml").write_text(tools)
    settings = f"aclEnable=true\nrocketmq.acl.plain.file={accounts}\n"
    with servers.name_server() as namesrv:
        run = servers.broker if request.param == "java" else servers.our_broker
        with run(namesrv, "broker-a", settings=settings) as broker:
            asyncio.run(registered(namesrv))
            yield Guarded(request.param, namesrv, broker, servers, accounts)


def test_java_clients_get_the_same_verdicts(guarded: Guarded) -> None:
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", jars("v4"), str(CLIENT)]
    done = subprocess.run(
        [*command, guarded.namesrv, *SHOP, "orders", "shop", "invoices"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert not done.returncode, done.stderr[-2000:]
    lines = [line.split("\t") for line in done.stdout.splitlines() if "\t" in line]
    verdicts = {line[0]: line[1] for line in lines}
    refused = "code 1" if guarded.side == "java" else "code 16"
    assert verdicts == {
        "right": "SEND_OK",
        "other topic": refused,
        "wrong key": refused,
        "no key": refused,
        "received": "for your eyes only",
    }
    texts = {line[0]: line[2] for line in lines if len(line) > 2}
    for what, text in (
        ("other topic", "No default permission for topic:invoices"),
        ("wrong key", f"Check signature failed for accessKey={SHOP[0]}"),
        ("no key", "No accessKey is configured"),
    ):
        # Java also shows the class of its exception before the text, and a line of its code after.
        assert text in texts[what]
        assert guarded.side == "java" or texts[what].startswith(text)


async def test_every_account_may_reply(guarded: Guarded) -> None:
    """RocketMQ checks nothing but the signature, Firetrail also a topic that is another one."""
    client, signer = RemotingClient(), Signer(Credentials(*SHOP))
    answers = {}
    try:
        for topic in (f"{CLUSTER}_REPLY_TOPIC", "invoices"):
            fields = signer.fields(SEND | {"b": topic, "c": topic, "i": TO_P1}, b"re")
            request = RemotingCommand(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"re")
            answer = await client.request(guarded.broker, request, WAIT_S)
            answers[topic] = "permission" in (answer.remark or "")
    finally:
        await client.close()
    assert answers == {f"{CLUSTER}_REPLY_TOPIC": False, "invoices": guarded.side == "firetrail"}


def test_mqadmin_manages_accounts(guarded: Guarded) -> None:
    at = ("-b", guarded.broker)
    new = ("-a", "new-account", "-s", "the-secret-of-the-new")
    said = guarded.mqadmin("updateAclConfig", *at, *new, "-t", "orders=SUB", "-i", "PUB")
    assert "success" in said
    assert "new-account" in guarded.accounts.read_text()
    assert "10.10.103" in guarded.accounts.read_text()
    said = guarded.mqadmin("updateGlobalWhiteAddr", *at, "-g", "10.10.104.*,10.10.105.1")
    assert "success" in said
    assert "10.10.105.1" in guarded.accounts.read_text()
    said = guarded.mqadmin("clusterAclConfigVersion", "-c", "DefaultCluster")
    assert guarded.broker in said
    assert "plain_acl.yml" in said
    said = guarded.mqadmin("getAclConfig", "-c", "DefaultCluster")
    assert "new-account" in said
    assert "10.10.104.*" in said
    assert ("the-secret-of-the-new" in said) == (guarded.side == "java")
    said = guarded.mqadmin("deleteAclConfig", *at, "-a", "new-account")
    assert "success" in said
    assert "new-account" not in guarded.accounts.read_text()


def test_only_administrators_manage_accounts(guarded: Guarded) -> None:
    """RocketMQ 4.9.7 lets every account do this, which was corrected in 5.3.0."""
    tools = guarded.tools.folder / "conf" / "tools.yml"
    before = tools.read_text()
    tools.write_text(f'accessKey: {SHOP[0]}\nsecretKey: "{SHOP[1]}"\n')
    try:
        at = ("-b", guarded.broker)
        new = ("-a", "intruder", "-s", "the-secret-of-the-intruder", "-m", "true")
        said = guarded.mqadmin("updateAclConfig", *at, *new)
    finally:
        tools.write_text(before)
    is_in = "intruder" in guarded.accounts.read_text()
    assert is_in == ("success" in said) == (guarded.side == "java")


def test_firetrail_reads_files_that_either_side_has_rewritten(guarded: Guarded) -> None:
    assert "orders=PUB|SUB" in guarded.accounts.read_text()
    acl = PlainAcl(SYSTEM, guarded.accounts, CLUSTER)
    acl.load()
    accounts = {each.access_key: each for each in acl.accounts}
    assert accounts[SHOP[0]].secret_key == SHOP[1]
    assert accounts[ADMIN[0]].is_admin
