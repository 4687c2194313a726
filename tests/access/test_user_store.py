"""The users: changes, their file, and what is refused."""

import json
import os
from pathlib import Path

import pytest
from tests.access.actors import ROOT, SECRET, acl, credentials, info, user_store

from firetrail.access.user_bodies import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from firetrail.access.user_store import USERS_FILE, UserStore, open_users
from firetrail.auth.credentials import Credentials
from firetrail.auth.policies import UserStatus, UserType
from firetrail.errors import ConfigError, StoreError
from firetrail.system import SYSTEM


def reopened(folder: Path) -> UserStore:
    store = UserStore(SYSTEM, folder)
    store.load()
    return store


def shown(store: UserStore, name: str) -> dict[str, object]:
    user = store.find(name)
    assert user is not None
    found = AclInfo.of(user)
    return {} if found is None else found.to_json()


async def test_users_and_policies_survive_a_restart(tmp_path: Path) -> None:
    store = await user_store(tmp_path, alice=["Topic:T* Pub,Sub", "Group:* Sub"])
    await store.merge_acl(acl("alice", "Topic:T1 All", decision="Deny", sources=["10.0.0.0/8"]))
    await store.update(UserInfo("alice", None, None, "disable"))
    again = reopened(tmp_path)
    assert [user.name for user in again.users] == ["alice", "root"]
    alice, root = again.users
    assert (alice.type, alice.status) == (UserType.NORMAL, UserStatus.DISABLED)
    assert (root.type, root.status) == (UserType.SUPER, UserStatus.ENABLED)
    assert alice.password == credentials("alice").secret_key
    assert shown(again, "alice") == shown(store, "alice")
    assert shown(again, "alice")["policies"] == [
        {
            "policyType": "Custom",
            "entries": [
                {"resource": "Topic:T*", "actions": ["Pub", "Sub"], "decision": "Allow"},
                {"resource": "Group:*", "actions": ["Sub"], "decision": "Allow"},
                {
                    "resource": "Topic:T1",
                    "actions": ["All"],
                    "sourceIps": ["10.0.0.0/8"],
                    "decision": "Deny",
                },
            ],
        }
    ]


async def test_the_file_is_private_and_refused_if_it_is_not(tmp_path: Path) -> None:
    await user_store(tmp_path)
    files = [tmp_path / "config" / name for name in (USERS_FILE, f"{USERS_FILE}.bak")]
    for file in files:
        assert file.stat().st_mode & 0o777 == 0o600
    for file in files:
        file.chmod(0o640)
        with pytest.raises(
            StoreError, match=r"run chmod 600 .*, and change the passwords"
        ) as caught:
            reopened(tmp_path)
        assert SECRET not in str(caught.value)
        file.chmod(0o600)
    reopened(tmp_path)


async def test_only_a_changed_file_is_read_again(tmp_path: Path) -> None:
    store = await user_store(tmp_path)
    other = reopened(tmp_path)
    assert not other.reload()
    await store.create(info("alice"))
    path = tmp_path / "config" / USERS_FILE
    os.utime(path, (1, 1))
    assert other.reload()
    assert other.find("alice") is not None
    path.chmod(0o644)
    os.utime(path, (2, 2))
    with pytest.raises(StoreError, match="chmod 600"):
        other.reload()
    assert not other.reload(), "a file that cannot be used is reported once"
    assert other.find("alice") is not None


async def test_a_damaged_file_is_refused_without_showing_a_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await user_store(tmp_path, alice=[])
    path = tmp_path / "config" / USERS_FILE
    good = path.read_bytes()
    for bad in (
        good.replace(b"alice", b"alicf"),
        good[:-20],
        json.dumps({"users": [{"username": "x", "password": [SECRET]}]}).encode(),
        json.dumps({"users": [{"username": "x y", "password": SECRET}]}).encode(),
        json.dumps({"users": [], "acls": [{"subject": "User:x"}]}).encode(),
    ):
        for each in (path, path.with_name(f"{USERS_FILE}.bak")):
            each.write_bytes(bad)
        with pytest.raises(StoreError, match=USERS_FILE) as caught:
            reopened(tmp_path)
        assert SECRET not in str(caught.value)
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (UserInfo("", SECRET), "1 to 64 letters"),
        (UserInfo("a b", SECRET), "1 to 64 letters"),
        (UserInfo("a:b", SECRET), "1 to 64 letters"),
        (UserInfo("x", None), "password can not be blank"),
        (UserInfo("x", 123456789012345), "password can not be blank"),
        (UserInfo("x", "short"), "a password must have 12 to 256 printable characters"),
        (UserInfo("x", "x" * 300), "a password must have 12 to 256 printable characters"),
        (UserInfo("x", "123456789012"), "not easy to guess"),
        (UserInfo("x", "aaaaaaaaaaaaaa"), "not easy to guess"),
        (UserInfo("x", SECRET, "Boss"), "must be one of Super, Normal"),
        (UserInfo("x", SECRET, None, "maybe"), "must be one of enable, disable"),
        (UserInfo("root", SECRET), "The user is existed"),
    ],
)
async def test_invalid_users_are_refused(tmp_path: Path, bad: UserInfo, message: str) -> None:
    store = await user_store(tmp_path)
    with pytest.raises(ConfigError, match=message) as caught:
        await store.create(bad)
    assert (
        not isinstance(bad.password, str)
        or len(bad.password) < 6
        or (bad.password not in str(caught.value))
    )
    assert [user.name for user in store.users] == ["root"]


async def test_updates_change_what_is_given(tmp_path: Path) -> None:
    store = await user_store(tmp_path, alice=["Topic:T1 Pub"])
    await store.update(UserInfo("alice", "another-password"))
    await store.update(UserInfo("alice", None, "Super"))
    alice = store.find("alice")
    assert alice is not None
    assert (alice.password, alice.type) == ("another-password", UserType.SUPER)
    assert shown(store, "alice")["policies"]
    with pytest.raises(ConfigError, match="The user is not exist"):
        await store.update(UserInfo("nobody", "another-password"))


async def test_the_last_super_user_remains(tmp_path: Path) -> None:
    store = await user_store(tmp_path, alice=[])
    await store.create(info("spare", user_type="Super", user_status="disable"))
    for change in (
        store.update(UserInfo("root", None, "Normal")),
        store.update(UserInfo("root", None, None, "disable")),
        store.delete("root"),
    ):
        with pytest.raises(ConfigError, match=r"last enabled super user.* create another one"):
            await change
    await store.update(UserInfo("alice", None, "Super"))
    await store.update(UserInfo("root", None, "Normal"))
    assert [user.name for user in reopened(tmp_path).users if user.is_super] == ["alice", "spare"]


async def test_policies_are_deleted_by_resource_and_as_a_whole(tmp_path: Path) -> None:
    store = await user_store(tmp_path, alice=["Topic:T1 Pub", "Topic:T2 Pub"])
    await store.delete_acl("User:alice", "Topic:T1")
    assert "T1" not in str(shown(store, "alice"))
    await store.delete_acl("User:alice", "Topic:T2", "Custom")
    assert shown(store, "alice") == {}
    with pytest.raises(ConfigError, match="The subject of User:nobody is not exist"):
        await store.delete_acl("User:nobody")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (PolicyEntryInfo("Topic:T1", [], None, "Allow"), "The actions is empty."),
        (PolicyEntryInfo("Topic:T1", ["Any"], None, "Allow"), "must be one of Pub"),
        (PolicyEntryInfo("Topic:T1", ["Pub"], None, ""), "The decision is null or illegal."),
        (PolicyEntryInfo("Topic:T1", ["Pub"], ["10.0.0"], "Allow"), "must be an address"),
        (PolicyEntryInfo("T1", ["Pub"], None, "Allow"), "must be \\* or"),
    ],
)
async def test_invalid_entries_are_refused(
    tmp_path: Path, entry: PolicyEntryInfo, message: str
) -> None:
    store = await user_store(tmp_path, alice=[])
    with pytest.raises(ConfigError, match=message):
        await store.merge_acl(AclInfo("User:alice", [PolicyInfo(None, [entry])]))
    with pytest.raises(ConfigError, match="The policies is empty"):
        await store.merge_acl(AclInfo("User:alice", []))
    with pytest.raises(ConfigError, match="policyType"):
        await store.merge_acl(
            AclInfo("alice", [PolicyInfo("Other", [PolicyEntryInfo("*", ["All"], None, "Allow")])])
        )


async def test_deleting_a_user_deletes_its_policies(tmp_path: Path) -> None:
    store = await user_store(tmp_path, alice=["Topic:T1 Pub"])
    await store.delete("alice")
    await store.delete("nobody")
    await store.create(info("alice"))
    assert shown(reopened(tmp_path), "alice") == {}


def test_the_first_users_are_created_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = UserStore(SYSTEM, tmp_path)
    open_users(store, None)
    assert "set initAuthenticationUser" in caplog.text
    open_users(store, ROOT, None)
    open_users(store, Credentials("root", "a-changed-password"))
    assert [user.password for user in reopened(tmp_path).users] == [ROOT.secret_key]
    assert SECRET not in caplog.text
