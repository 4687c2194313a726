"""The files of ACL 1.0: loading, following, and changing them."""

from pathlib import Path

import pytest
from tests.extras import require

from firetrail.access.plain.plain_acl import PlainAcl
from firetrail.access.user_bodies import UserInfo
from firetrail.access.user_store import UserStore
from firetrail.errors import ConfigError
from firetrail.system import SYSTEM

SECRET = "canary-of-secrets"
ACCOUNTS = f"""\
globalWhiteRemoteAddresses:
- 10.10.103.*
accounts:
- accessKey: shop-account
  secretKey: {SECRET}
  whiteRemoteAddress: 192.168.1.*
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - orders=PUB|SUB
- accessKey: administrator
  secretKey: {SECRET}-admin
  admin: true
"""


@pytest.fixture(autouse=True)
def yaml() -> None:
    require("yaml")


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def more(name: str) -> str:
    return f"accounts:\n- accessKey: {name}\n  secretKey: {SECRET}-{name}\n"


@pytest.fixture
def main(tmp_path: Path) -> Path:
    return written(tmp_path / "conf" / "plain_acl.yml", ACCOUNTS)


@pytest.fixture
def acl(main: Path) -> PlainAcl:
    found = PlainAcl(SYSTEM, main, "C1")
    found.load()
    return found


def test_accounts_become_users(acl: PlainAcl) -> None:
    user, admin = acl.find("shop-account"), acl.find("administrator")
    assert user is not None
    assert not user.is_super
    assert admin is not None
    assert admin.is_super
    assert acl.find("nobody") is None


def test_white_addresses_are_those_of_everybody_and_of_the_account(acl: PlainAcl) -> None:
    assert acl.trusts("10.10.103.7", "")
    assert acl.trusts("192.168.1.7", "shop-account")
    assert not acl.trusts("192.168.1.7", "administrator")
    assert not acl.trusts("192.168.1.7", "")
    assert not acl.trusts("10.10.104.7", "shop-account")


def test_all_files_of_the_folder_count_and_the_first_account_wins(
    main: Path, acl: PlainAcl, caplog: pytest.LogCaptureFixture
) -> None:
    written(main.parent / "acl" / "a.yaml", more("from-folder"))
    written(main.parent / "acl" / "deep" / "b.yml", more("shop-account"))
    written(main.parent / "acl" / "notes.txt", "not YAML: [")
    assert acl.refresh()
    assert acl.find("from-folder") is not None
    user = acl.find("shop-account")
    assert user is not None
    assert user.password == SECRET
    assert "account shop-account is ignored, because another file has it" in caplog.text
    (main.parent / "acl" / "a.yaml").unlink()
    assert acl.refresh()
    assert acl.find("from-folder") is None


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("accounts: [", 0o600, "line 1 is not valid YAML"),
        ("", 0o600, "is empty"),
        ("accounts: x", 0o600, "must be a list"),
        (more("x"), 0o600, "needs 7 characters"),
        (ACCOUNTS.replace(f"{SECRET}-admin", "12345678"), 0o600, "RocketMQ's example"),
        (ACCOUNTS + " ", 0o644, "chmod 600"),
        (ACCOUNTS.replace("10.10.103.*", "10.0.0.0/8"), 0o600, "must be an address"),
    ],
)
def test_a_file_that_cannot_be_used_changes_nothing(
    main: Path, acl: PlainAcl, caplog: pytest.LogCaptureFixture, text: str, mode: int, why: str
) -> None:
    before = acl.find("shop-account")
    written(main, text, mode)
    assert not acl.refresh()
    assert not acl.refresh()
    assert acl.find("shop-account") is before
    said = [each.getMessage() for each in caplog.records]
    assert len(said) == 1, "it is said once"
    assert "the previous accounts of ACL 1.0 remain in force" in said[0]
    assert why in said[0]
    assert str(main) in said[0]
    assert SECRET not in said[0]
    written(main, more("new-account"))
    assert acl.refresh()
    assert acl.find("shop-account") is None


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist: create it"):
        PlainAcl(SYSTEM, tmp_path / "plain_acl.yml", "C1").load()


def test_no_account_at_all_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    PlainAcl(SYSTEM, written(tmp_path / "plain_acl.yml", ""), "C1").load()
    assert "there are no accounts" in caplog.text


def test_changes_are_written_privately_and_counted(main: Path, acl: PlainAcl) -> None:
    acl.put("new-account", {"secretKey": f"{SECRET}-new", "topicPerms": "a=PUB,b=SUB"})
    acl.put("shop-account", {"defaultTopicPerm": "PUB"})
    acl.delete("administrator")
    acl.set_white_addresses(["127.0.0.1"])
    assert [version.counter for version in acl.versions.values()] == [4]
    assert SYSTEM.files.is_private(main)
    again = PlainAcl(SYSTEM, main, "C1")
    again.load()
    assert again.accounts == acl.accounts
    assert [each.access_key for each in again.accounts] == ["shop-account", "new-account"]
    assert again.white_addresses == ["127.0.0.1"]
    assert not acl.refresh(), "its own change is not a new one"


def test_an_account_is_changed_in_the_file_that_has_it(main: Path, acl: PlainAcl) -> None:
    other = written(main.parent / "acl" / "a.yml", more("from-folder"))
    acl.put("from-folder", {"admin": "true"})
    assert "admin: true" in other.read_text()
    assert "from-folder" not in main.read_text()
    acl.set_white_addresses(["::1"], str(other))
    assert sorted(acl.white_addresses) == ["10.10.103.*", "::1"]


@pytest.mark.parametrize("path", ["/etc/passwd", "plain_acl.yml", "../x.yml"])
def test_a_path_from_a_request_must_be_one_of_the_files(acl: PlainAcl, path: str) -> None:
    with pytest.raises(ConfigError, match="is not a file with accounts"):
        acl.set_white_addresses(["*"], path)


def test_an_invalid_change_changes_nothing(main: Path, acl: PlainAcl) -> None:
    for key, fields in (
        ("new-account", {}),
        ("new-account", {"secretKey": "short"}),
        ("shop-account", {"topicPerms": "a=WRITE"}),
        ("shop-account", {"whiteRemoteAddress": "x"}),
        ("", {"secretKey": SECRET}),
    ):
        with pytest.raises(ConfigError):
            acl.put(key, fields)
    with pytest.raises(ConfigError, match="there is no such account"):
        acl.delete("nobody")
    assert main.read_text() == ACCOUNTS
    written(main, "accounts: [")
    with pytest.raises(ConfigError, match="not valid YAML"):
        acl.put("shop-account", {"admin": "true"})
    assert main.read_text() == "accounts: ["


async def test_accounts_become_users_of_acl_2(
    acl: PlainAcl, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = UserStore(SYSTEM, tmp_path)
    store.load()
    await store.create(UserInfo("administrator", "a password of acl 2"))
    store.migrate(acl)
    kept = store.find("administrator")
    assert kept is not None
    assert not kept.is_super
    again = UserStore(SYSTEM, tmp_path)
    again.load()
    user, account = again.find("shop-account"), acl.find("shop-account")
    assert user is not None
    assert account is not None
    assert user.password == SECRET
    assert [p.entries for p in user.policies] == [p.entries for p in account.policies]
    assert "white address 192.168.1.* of account shop-account was not copied" in caplog.text
    assert SECRET not in caplog.text
