"""Access control with RocketMQ's own peers: ``mqadmin`` creates users, and Java clients sign.

The clients trace their messages: they send records about them to a topic for which they need a
permission, too.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from interop.servers import LINES, Servers, jars
from interop.stock import BROKER_CONF, WAIT_S, create_topics, firetrail_up

from firetrail.client import Access, Admin, Credentials, PullConsumer
from firetrail.format.names import TRACE_TOPIC

CLIENT = Path(__file__).parent / "java" / "clients" / "SecuredClient.java"
ADMIN = ("admin", "the-password-of-admin")
SHOP = ("shop", "the-password-of-shop")
SETTINGS = f"""\
{BROKER_CONF}authenticationEnabled=true
authorizationEnabled=true
initAuthenticationUser={json.dumps({"username": ADMIN[0], "password": ADMIN[1]})}
"""
GRANTS = "Topic:orders-v4,Topic:orders-v5,Topic:TBW102,Group:shop-v4,Group:shop-v5"
QUIET = ("quiet", "the-password-of-quiet")
"""A user without permission for the topic of traces."""
Trace = tuple[str, str]
BY_ADMIN = Access(credentials=Credentials(*ADMIN))


class Secured(NamedTuple):
    """A name server with a broker of Firetrail, and the tools of RocketMQ 5.3.3."""

    namesrv: str
    tools: Servers

    def mqadmin(self, command: str, *arguments: str) -> str:
        """Run a command on all brokers, signed by the administrator."""
        return self.tools.mqadmin(command, "-n", self.namesrv, "-c", "DefaultCluster", *arguments)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    tools = Servers("v5", tmp_path_factory.mktemp("tools"))
    (tools.folder / "conf" / "tools.yml").write_text(
        f"accessKey: {ADMIN[0]}\nsecretKey: {ADMIN[1]}\n"
    )
    with firetrail_up(folder, SETTINGS) as namesrv:
        secure = Secured(namesrv, tools)
        said = secure.mqadmin("createUser", "-u", SHOP[0], "-p", SHOP[1], "-t", "Normal")
        assert "success" in said
        said = secure.mqadmin(
            *("createAcl", "-s", f"User:{SHOP[0]}", "-r", GRANTS, "-a", "Pub,Sub", "-d", "Allow"),
            *("-i", "127.0.0.0/8"),
        )
        assert "success" in said
        asyncio.run(prepared(namesrv))
        yield secure


async def prepared(namesrv: str) -> None:
    """Create the topic of traces, which the first user may send to, and the second user."""
    await create_topics(namesrv, TRACE_TOPIC, access=BY_ADMIN)
    async with Admin(namesrv, access=BY_ADMIN) as admin:
        await admin.set_acl(SHOP[0], [f"Topic:{TRACE_TOPIC}"], ["Pub"])
        await admin.create_user(*QUIET)
        await admin.set_acl(
            QUIET[0], ["Topic:whispers", "Topic:TBW102", "Group:quiet"], ["Pub", "Sub"]
        )


async def traces(namesrv: str) -> set[Trace]:
    """Return what clients have traced: topics with the word Pub, and groups with SubBefore."""
    async with PullConsumer(namesrv, access=BY_ADMIN) as consumer:
        queues = await consumer.queues(TRACE_TOPIC)
        found = [message.body.decode() for each in queues async for message in consumer.read(each)]
    lines = [line.split("\1") for text in found for line in text.split("\2") if line]
    return {(line[0], line[4] if line[0] == "Pub" else line[3]) for line in lines}


async def traced(namesrv: str, *expected: Trace) -> None:
    """Wait until clients have traced this."""
    async with asyncio.timeout(WAIT_S):
        while not set(expected) <= await traces(namesrv):
            await asyncio.sleep(0.1)


def check_client(
    line: str, namesrv: str, user: tuple[str, str], *names: str, expected: Sequence[Trace] = ()
) -> None:
    """Run a Java client that traces until everything that is expected has been traced."""
    command = ["java", "-XX:TieredStopAtLevel=1", "-Dtrace=true", "-cp", jars(line), str(CLIENT)]
    with subprocess.Popen(
        [*command, namesrv, *user, *names], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        try:
            assert client.stdout is not None
            said: dict[str, str] = {}
            for text in client.stdout:
                if "\t" in text:
                    what, outcome = text.rstrip().split("\t")[:2]
                    said[what] = outcome
                if "received" in said:
                    break
            assert said == OUTCOMES
            asyncio.run(traced(namesrv, *expected))
        finally:
            client.kill()


def test_mqadmin_lists_users_without_passwords(secured: Secured) -> None:
    said = secured.mqadmin("listUser")
    assert all(name in said for name in ("admin", "shop", "Super", "Normal", "enable"))
    assert SHOP[1] not in said
    assert ADMIN[1] not in said


def test_mqadmin_lists_policies(secured: Secured) -> None:
    said = secured.mqadmin("listAcl", "-s", f"User:{SHOP[0]}")
    for word in (
        "User:shop",
        "Custom",
        "Topic:orders-v4",
        "Group:shop-v4",
        "Pub",
        "Sub",
        "127.0.0.0/8",
    ):
        assert word in said


# The broker refuses the other topic. Without a valid signature the name server tells no route.
OUTCOMES = {
    "right": "SEND_OK",
    "other topic": "code 16",
    "wrong key": "code 10005",
    "no key": "code 10005",
    "received": "for your eyes only",
}


@pytest.mark.parametrize("line", LINES)
def test_java_clients_are_checked(secured: Secured, line: str) -> None:
    topic, group = f"orders-{line}", f"shop-{line}"
    expected = [("Pub", topic), ("SubBefore", group)]
    check_client(line, secured.namesrv, SHOP, topic, group, "invoices", expected=expected)


def test_a_user_who_may_not_trace_sends_and_consumes(secured: Secured) -> None:
    names = ("whispers", "quiet", "invoices")
    check_client("v5", secured.namesrv, QUIET, *names)
    assert not {name for _, name in asyncio.run(traces(secured.namesrv))} & set(names)
