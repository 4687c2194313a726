"""``firetrail user`` and ``firetrail acl`` with a Java broker that has ACL 2.0."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from interop.servers import Servers
from interop.stock import registered

from firetrail.cli.main import main
from firetrail.cli.users import passwords
from firetrail.client import Access, Credentials
from firetrail.remoting.connections.access import ACCESS_KEY, SECRET_KEY

ADMIN = ("admin", "the-password-of-admin")
INNER = {"accessKey": "inner", "secretKey": "the-password-of-inner"}
_PROVIDERS = "org.apache.rocketmq.auth"
SETTINGS = f"""\
authenticationEnabled=true
authorizationEnabled=true
initAuthenticationUser={json.dumps({"username": ADMIN[0], "password": ADMIN[1]})}
innerClientAuthenticationCredentials={json.dumps(INNER)}
authenticationProvider={_PROVIDERS}.authentication.provider.DefaultAuthenticationProvider
authorizationProvider={_PROVIDERS}.authorization.provider.DefaultAuthorizationProvider
authenticationMetadataProvider={_PROVIDERS}.authentication.provider.LocalAuthenticationMetadataProvider
authorizationMetadataProvider={_PROVIDERS}.authorization.provider.LocalAuthorizationMetadataProvider
"""


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server of a Java broker with access control."""
    servers = Servers("v5", tmp_path_factory.mktemp("java"))
    with servers.name_server() as namesrv, servers.broker(namesrv, "broker-j", settings=SETTINGS):
        asyncio.run(registered(namesrv, Access(Credentials(*ADMIN))))
        yield namesrv


def test_users_and_policies_of_a_java_broker(
    namesrv: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ACCESS_KEY, ADMIN[0])
    monkeypatch.setenv(SECRET_KEY, ADMIN[1])
    monkeypatch.setenv(passwords.VARIABLE, "the-password-of-shop")

    def said(*arguments: str) -> str:
        code = main([*arguments, "--namesrv", namesrv])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        assert "password" not in captured.out
        return captured.out

    assert said("user", "create", "shop") == "shop: created\n"
    users = {user["user"]: user for user in json.loads(said("user", "list", "--json"))}
    assert users["shop"] == {
        "user": "shop",
        "type": "Normal",
        "status": "enable",
        "brokers": ["broker-j"],
    }
    assert (users["admin"]["type"], users["inner"]["type"]) == ("Super", "Super")
    said("acl", "create", "shop", "Topic:orders*", "Group:shop", "--actions", "Pub,Sub")
    said("acl", "update", "shop", "Topic:orders*", "--actions", "Pub", "--source", "10.1.0.0/16")
    said("acl", "create", "shop", "Topic:secret", "--actions", "All", "--deny")
    entries = {
        entry["resource"]: (entry["actions"], entry["decision"], entry["sources"])
        for entry in json.loads(said("acl", "show", "shop", "--json"))
    }
    assert entries == {
        "Topic:orders*": (["Pub"], "Allow", ["10.1.0.0/16"]),
        "Group:shop": (["Pub", "Sub"], "Allow", []),
        "Topic:secret": (["All"], "Deny", []),
    }
    said("acl", "delete", "shop", "Topic:secret")
    assert "Topic:secret" not in said("acl", "list")
    said("user", "update", "shop", "--disable", "--super", "--password")
    assert "shop: Super, disabled on broker-j" in said("user", "show", "shop")
    said("acl", "delete", "shop", "--all")
    said("user", "delete", "shop")
    assert main(["user", "show", "shop", "--namesrv", namesrv]) == 2
    assert "no user 'shop'" in capsys.readouterr().err
