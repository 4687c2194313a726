"""``firetrail user`` and ``firetrail acl``, on a broker and in the folder of a stopped one."""

import json
import os
import pwd
import stat
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from tests.access.actors import ROOT, SECRET, SECURE
from tests.access.audit.test_audit_log import events
from tests.cli.conftest import CommandResult, Firetrail

from firetrail.access.user_store import USERS_FILE, UserStore
from firetrail.broker.background import BackgroundBroker
from firetrail.cli.users import passwords
from firetrail.remoting.connections.access import ACCESS_KEY, SECRET_KEY
from firetrail.store.store import Store
from firetrail.system import SYSTEM

PASSWORD = f"{SECRET}-new"


@pytest.fixture(scope="module")
def secure() -> Iterator[BackgroundBroker]:
    with BackgroundBroker(config=SECURE) as broker:
        yield broker


@pytest.fixture
def ask(
    firetrail: Firetrail, secure: BackgroundBroker, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """Call a command as ``root``; no user is left afterwards, and no output has a secret."""
    monkeypatch.setenv(ACCESS_KEY, ROOT.access_key)
    monkeypatch.setenv(SECRET_KEY, ROOT.secret_key)
    monkeypatch.setenv(passwords.VARIABLE, PASSWORD)

    def run(command: str, action: str, *arguments: object) -> CommandResult:
        result = firetrail(command, action, "--namesrv", secure.namesrv, *arguments)
        assert SECRET not in result.out + result.err
        return result

    yield run
    for user in json.loads(run("user", "list", "--json").out):
        if user["user"] != ROOT.access_key:
            assert run("user", "delete", user["user"]).code == 0


def test_a_user_is_created_shown_changed_and_deleted(ask: Any) -> None:
    created = ask("user", "create", "shop")
    assert (created.code, created.out) == (0, "shop: created\n")
    assert "shop has no permissions yet: 'firetrail acl create shop …'" in created.err
    assert ask("user", "list").out.splitlines() == [
        "USER  TYPE    STATUS   BROKERS",
        "root  Super   enabled  broker-a",
        "shop  Normal  enabled  broker-a",
    ]
    assert ask("user", "update", "shop", "--disable", "--super").out == "shop: changed\n"
    shown = ask("user", "show", "shop", "--json")
    assert shown.json == {
        "user": "shop",
        "type": "Super",
        "status": "disable",
        "brokers": ["broker-a"],
        "entries": [],
    }
    assert ask("user", "delete", "shop", "--json").json == {"user": "shop", "deleted": True}
    missing = ask("user", "show", "shop")
    assert (missing.code, missing.out) == (2, "")
    assert "no user 'shop'" in missing.err


def test_policies_are_created_shown_and_deleted(ask: Any) -> None:
    ask("user", "create", "shop")
    allowed = ask("acl", "create", "shop", "Topic:orders*", "Group:shop", "--actions", "Pub,sub")
    assert allowed.out == "shop: allow Pub,sub on Topic:orders*, Group:shop\n"
    source = "--source", "10.1.0.0/16", "--source", "10.2.0.1"
    ask("acl", "update", "shop", "Topic:secret", "--actions", "All", "--deny", "--default", *source)
    lines = ask("acl", "list").out.splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "USER POLICY RESOURCE ACTIONS DECISION SOURCES BROKERS",
        "shop Custom Topic:orders* Pub,Sub Allow all broker-a",
        "shop Custom Group:shop Pub,Sub Allow all broker-a",
        "shop Default Topic:secret All Deny 10.1.0.0/16,10.2.0.1 broker-a",
    ]
    shown = json.loads(ask("acl", "show", "shop", "--json").out)
    assert json.loads(ask("acl", "list", "--json").out) == shown
    assert shown[2] == {
        "user": "shop",
        "policy": "Default",
        "resource": "Topic:secret",
        "actions": ["All"],
        "decision": "Deny",
        "sources": ["10.1.0.0/16", "10.2.0.1"],
        "brokers": ["broker-a"],
    }
    assert "Topic:orders*" in ask("user", "show", "shop").out
    assert ask("acl", "delete", "shop", "Group:shop").code == 0
    assert "Group:shop" not in ask("acl", "list").out
    assert ask("acl", "delete", "shop", "--all").code == 0
    nothing = ask("acl", "show", "shop")
    assert (nothing.code, nothing.out) == (0, "")
    assert "there are no entries for shop" in nothing.err


def test_an_entry_that_does_not_exist_cannot_be_deleted(ask: Any) -> None:
    ask("user", "create", "shop")
    ask("acl", "create", "shop", "Topic:orders*", "Group:shop", "--actions", "Pub,Sub")
    ask("acl", "create", "shop", "Topic:secret", "--actions", "All", "--deny", "--default")
    entries = "; it has entries for Topic:orders*, Group:shop, Topic:secret (Default)"
    for wrong, missing in (
        (("Topic:orders",), "no entry for Topic:orders"),
        (("Grup:shop",), "must be * or Cluster"),
        (("group:shop", "--default"), "no entry for Group:shop in the policy Default"),
    ):
        result = ask("acl", "delete", "shop", *wrong)
        assert (result.code, result.out) == (2, ""), wrong
        assert missing in result.err
        assert "must be" in missing or f"shop has {missing}{entries}" in result.err
    assert len(ask("acl", "show", "shop").out.splitlines()) == 4
    assert ask("acl", "delete", "shop", "topic:orders*").code == 0
    assert ask("acl", "delete", "shop", "--all").code == 0
    again = ask("acl", "delete", "shop", "--all")
    assert (again.code, again.out) == (2, "")
    assert "shop has no entries; 'firetrail acl list' lists" in again.err


def test_one_broker_can_be_chosen(ask: Any, secure: BackgroundBroker) -> None:
    assert ask("user", "create", "shop", "--broker", secure.address).code == 0
    (shop,) = json.loads(ask("user", "list", "--json", "--cluster", "DefaultCluster").out)[1:]
    assert (shop["user"], shop["brokers"]) == ("shop", ["broker-a"])
    assert "no master has registered" in ask("user", "list", "--cluster", "other").err


def test_refusals_name_the_reason(ask: Any) -> None:
    ask("user", "create", "shop")
    for arguments, reason in (
        (("user", "create", "shop"), "broker-a: The user is existed"),
        (("user", "create", "a b"), "1 to 64 letters"),
        (("user", "update", "shop"), "say what to change"),
        (("user", "update", "shp", "--disable"), "no user 'shp'; did you mean shop?"),
        (("user", "update", "root", "--normal"), "the last enabled super user"),
        (("user", "delete", "root"), "User:root cannot delete itself"),
        (("acl", "create", "nobody", "Topic:x", "--actions", "Pub"), "no user 'nobody'"),
        (("acl", "create", "shop", "Topic", "--actions", "Pub"), "must be * or Cluster"),
        (("acl", "create", "shop", "Topic:x", "--actions", "Fly"), "must be one of Pub, Sub"),
        (("acl", "create", "shop", "Topic:x", "--actions", ""), "The actions is empty."),
        (("acl", "delete", "shop"), "say what to delete: a resource, or --all"),
        (("acl", "delete", "shop", "Topic:x", "--all"), "say what to delete"),
    ):
        result = ask(*arguments)
        assert (result.code, result.out) == (2, ""), arguments
        assert reason in result.err


def test_a_broker_without_access_control_is_reported(firetrail: Firetrail) -> None:
    with BackgroundBroker() as broker:
        result = firetrail("user", "list", "--namesrv", broker.namesrv)
    assert result.code == 2
    assert "broker-a: access control is switched off there" in result.err


class TestPasswords:
    """The sources of a new password, of which an argument is none."""

    def test_it_is_in_a_private_file(self, tmp_path: Path) -> None:
        file = tmp_path / "password"
        file.write_text(f"{PASSWORD}\n")
        file.chmod(0o644)
        with pytest.raises(Exception, match="chmod 600"):
            passwords.new_password(str(file), "shop")
        file.chmod(0o600)
        assert passwords.new_password(str(file), "shop") == PASSWORD

    def test_it_is_on_standard_input(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.stdin", StringIO(f"{PASSWORD}\nmore"))
        assert passwords.new_password("-", "shop") == PASSWORD

    def test_without_one_the_remedy_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(passwords.VARIABLE, raising=False)
        monkeypatch.setattr("sys.stdin", StringIO(""))
        with pytest.raises(Exception, match=r"--password-file, or set FIRETRAIL_NEW_PASSWORD"):
            passwords.new_password(None, "shop")

    def test_it_is_asked_for_twice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Terminal(StringIO):
            def isatty(self) -> bool:
                return True

        monkeypatch.delenv(passwords.VARIABLE, raising=False)
        monkeypatch.setattr("sys.stdin", Terminal())
        answers = iter([PASSWORD, PASSWORD, PASSWORD, "another one"])
        monkeypatch.setattr(passwords, "getpass", lambda prompt: next(answers))
        assert passwords.new_password(None, "shop") == PASSWORD
        with pytest.raises(Exception, match="the two are not the same") as caught:
            passwords.new_password(None, "shop")
        assert SECRET not in str(caught.value)

    def test_a_weak_one_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(passwords.VARIABLE, "short")
        with pytest.raises(Exception, match="12 to 256 printable characters"):
            passwords.new_password(None, "shop")


class TestStopped:
    """The users in a folder, while no broker has it open."""

    @pytest.fixture(autouse=True)
    def password(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(passwords.VARIABLE, PASSWORD)

    def test_the_first_user_is_created_before_the_first_start(
        self, firetrail: Firetrail, tmp_path: Path
    ) -> None:
        folder = tmp_path / "data"
        at = "--store", folder
        assert firetrail("user", "create", "admin", "--super", *at).code == 0
        assert firetrail("user", "create", "shop", *at).code == 0
        assert firetrail("acl", "create", "shop", "Topic:x", "--actions", "Pub", *at).code == 0
        assert firetrail("user", "update", "shop", "--disable", *at).code == 0
        shown = firetrail("user", "show", "shop", *at).out
        assert shown.splitlines()[0] == "shop: Normal, disabled"
        assert firetrail("acl", "delete", "shop", "Topic:x", *at).code == 0
        assert stat.S_IMODE((folder / "config" / USERS_FILE).stat().st_mode) == 0o600
        with BackgroundBroker(folder, config=SECURE.replace(init_user=None)):
            running = firetrail("user", "list", *at)
        assert running.code == 2
        assert "has the store open" in running.err
        assert firetrail("user", "delete", "shop", *at).code == 0
        users = UserStore(SYSTEM, folder)
        users.load()
        assert [(user.name, user.password) for user in users.users] == [("admin", PASSWORD)]

    @pytest.mark.parametrize(
        "arguments",
        [("user", "list"), ("user", "show", "a"), ("acl", "list"), ("acl", "show", "a")],
    )
    def test_a_folder_that_does_not_exist_is_an_error(
        self, firetrail: Firetrail, tmp_path: Path, arguments: tuple[str, ...]
    ) -> None:
        missing = tmp_path / "nope"
        result = firetrail(*arguments, "--store", missing)
        assert (result.code, result.out) == (2, "")
        assert f"{missing}: no such folder; check the path" in result.err
        assert not missing.exists()

    def test_a_store_that_exists_stays_as_it_is(self, firetrail: Firetrail, tmp_path: Path) -> None:
        with Store.open(tmp_path):
            pass
        assert firetrail("user", "create", "admin", "--super", "--store", tmp_path).code == 0
        with Store.open(tmp_path) as store:
            assert store.recovery.clean


def test_changes_in_a_folder_are_recorded(
    tmp_path: Path, firetrail: Firetrail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(passwords.VARIABLE, PASSWORD)
    at = ("--store", tmp_path)
    for words in (
        ("user", "create", "admin", "--super"),
        ("user", "create", "shop"),
        ("user", "update", "shop", "--disable"),
        ("acl", "create", "shop", "Topic:orders*", "--actions", "Pub"),
        ("acl", "delete", "shop", "Topic:orders*"),
        ("user", "delete", "shop"),
    ):
        assert firetrail(*words, *at).code == 0, words
    assert firetrail("user", "delete", "nobody", *at).code == 2
    found = events(tmp_path / "audit" / "local.log")
    account = pwd.getpwuid(os.getuid()).pw_name
    for event in found:
        assert event.pop("event") == "administration"
        assert (event.pop("source"), event.pop("os_user")) == ("local command", account)
        assert event.pop("outcome") == "done"
    assert [event.pop("request") for event in found] == [
        *("AUTH_CREATE_USER", "AUTH_CREATE_USER", "AUTH_UPDATE_USER", "AUTH_UPDATE_ACL"),
        *("AUTH_DELETE_ACL", "AUTH_DELETE_USER"),
    ]
    assert found[0] == {"username": "admin", "user_type": "Super", "password_changed": True}
    assert found[2] == {"username": "shop", "user_status": "disable"}
    assert found[3]["entries"][0]["resource"] == "Topic:orders*"
    assert found[4] == {"subject": "User:shop", "resource": "Topic:orders*"}
    assert SECRET not in (tmp_path / "audit" / "local.log").read_text()
