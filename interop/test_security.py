"""Access control with RocketMQ's own peers: ``mqadmin`` creates users, and Java clients sign."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from interop.servers import Servers, jars
from interop.stock import BROKER_CONF, WAIT_S, firetrail_up

CLIENT = Path(__file__).parent / "java" / "clients" / "SecuredClient.java"
ADMIN = ("admin", "the-password-of-admin")
SHOP = ("shop", "the-password-of-shop")
SETTINGS = f"""\
{BROKER_CONF}authenticationEnabled=true
authorizationEnabled=true
initAuthenticationUser={json.dumps({"username": ADMIN[0], "password": ADMIN[1]})}
"""
GRANTS = "Topic:orders,Topic:TBW102,Group:shop"


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
        yield secure


def test_mqadmin_lists_users_without_passwords(secured: Secured) -> None:
    said = secured.mqadmin("listUser")
    assert all(name in said for name in ("admin", "shop", "Super", "Normal", "enable"))
    assert SHOP[1] not in said
    assert ADMIN[1] not in said


def test_mqadmin_lists_policies(secured: Secured) -> None:
    said = secured.mqadmin("listAcl", "-s", f"User:{SHOP[0]}")
    for word in ("User:shop", "Custom", "Topic:orders", "Group:shop", "Pub", "Sub", "127.0.0.0/8"):
        assert word in said


def test_java_clients_are_checked(secured: Secured) -> None:
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", jars("v5"), str(CLIENT)]
    done = subprocess.run(
        [*command, secured.namesrv, *SHOP, "orders", "shop", "invoices"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert not done.returncode, done.stderr[-2000:]
    said = dict(line.split("\t")[:2] for line in done.stdout.splitlines() if "\t" in line)
    # The broker refuses the other topic. Without a valid signature the name server tells no route.
    assert said == {
        "right": "SEND_OK",
        "other topic": "code 16",
        "wrong key": "code 10005",
        "no key": "code 10005",
        "received": "for your eyes only",
    }
