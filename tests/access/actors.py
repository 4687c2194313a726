"""Users, policies and signed requests for the tests of access control."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from firetrail.access.guard import AccessPolicy, Guard
from firetrail.access.user_bodies import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from firetrail.access.user_store import UserStore
from firetrail.auth.caller import Caller
from firetrail.auth.credentials import Credentials
from firetrail.auth.policies import User
from firetrail.auth.signature import Signer
from firetrail.broker.broker_config import BrokerConfig
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.system import SYSTEM

SECRET = "canary-of-secrets"
ROOT = Credentials("root", f"{SECRET}-root")
SECURE = BrokerConfig(authentication=True, authorization=True, init_user=ROOT)
"""Settings of a broker with access control, whose only user is ``root``."""


def credentials(name: str) -> Credentials:
    return Credentials(name, f"{SECRET}-{name}")


def signed(
    code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", *, by: str = "root"
) -> RemotingCommand:
    return RemotingCommand(code, Signer(credentials(by)).fields(fields or {}, body), body)


def acl(
    name: str, *grants: str, decision: str = "Allow", sources: list[str] | None = None
) -> AclInfo:
    """Return policies; a grant is written as ``Topic:T1 Pub,Sub``."""
    entries = [
        PolicyEntryInfo(resource, actions.split(","), sources, decision)
        for resource, actions in (grant.split() for grant in grants)
    ]
    return AclInfo(f"User:{name}", [PolicyInfo(None, entries)])


def info(name: str, **more: Any) -> UserInfo:
    return UserInfo(name, credentials(name).secret_key, **more)


async def user_store(folder: Path, **grants: list[str]) -> UserStore:
    """Return a store with ``root`` and a normal user for each keyword with its grants."""
    store = UserStore(SYSTEM, folder)
    store.load()
    store.add_super(ROOT)
    for name, given in grants.items():
        await store.create(info(name))
        if given:
            await store.merge_acl(acl(name, *given))
    return store


class Peer:
    """A connection, as far as access control looks at it."""

    def __init__(self, peer: str = "10.0.0.5:4711", certificate_user: str | None = None) -> None:
        self.peer = peer
        self.caller: Caller | None = None
        self.is_encrypted = True
        self.certificate_user = certificate_user


class Users:
    """A directory in memory."""

    def __init__(self, *users: User) -> None:
        self._users = {user.name: user for user in users}

    def find(self, name: str) -> User | None:
        return self._users.get(name)

    def put(self, user: User) -> None:
        self._users[user.name] = user


def guard_of(*users: User, policy: AccessPolicy | None = None) -> Guard:
    return Guard(Users(*users), policy or AccessPolicy(cluster="C1"), SYSTEM.clock)
