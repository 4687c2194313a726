"""Users for ``firetrail user`` and ``firetrail acl``: those of brokers, or of a store's folder."""

import argparse
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from firetrail.access.acl_deletion import check_acl_deletion
from firetrail.access.audit.local_audit import record_local_change
from firetrail.access.user_bodies import AclInfo, UserInfo
from firetrail.access.user_store import UserStore
from firetrail.auth.policies import SUBJECT_PREFIX, Decision, PolicyType, UserStatus, UserType
from firetrail.cli import running_cluster
from firetrail.cli.subcommand import Subparsers
from firetrail.client import Admin
from firetrail.errors import NoSuchError
from firetrail.format.names import LOCK
from firetrail.remoting.messages.admin.user_headers import AclHeader, UserHeader
from firetrail.remoting.messages.typed_header import Header
from firetrail.remoting.wire.codes import RequestCode
from firetrail.store.root.folder import FolderLock
from firetrail.system import SYSTEM
from firetrail.text import did_you_mean


def add_action(
    actions: Subparsers, name: str, summary: str, *, user: bool = True
) -> argparse.ArgumentParser:
    """Add an action with the options that select the place of the users."""
    action = running_cluster.add_action(actions, name, summary)
    if user:
        action.add_argument("user", metavar="USER", help="name of the user")
    action.add_argument(
        "--cluster", metavar="NAME", help="only brokers of this cluster (default: all)"
    )
    action.add_argument("--broker", metavar="HOST:PORT", help="only this broker (default: all)")
    action.add_argument(
        "--store",
        metavar="FOLDER",
        type=Path,
        help="the folder of a stopped broker, or of a name server's users, instead of brokers; for "
        "the first user",
    )
    return action


class StoredUsers:
    """The users in a folder, with the methods of :class:`firetrail.client.Admin`.

    Changes are recorded in the folder's audit log.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._store = UserStore(SYSTEM, folder)
        self._store.load()

    async def users(self) -> dict[str, list[UserInfo]]:
        """Return the users, without passwords."""
        users = self._store.users
        return {"": [UserInfo(user.name, None, user.type, user.status) for user in users]}

    async def create_user(
        self, name: str, password: str, *, user_type: UserType = UserType.NORMAL
    ) -> None:
        """Create a user."""
        user = UserInfo(name, password, user_type)
        await self._store.create(user)
        self._record(RequestCode.AUTH_CREATE_USER, UserHeader(name), user)

    async def update_user(
        self,
        name: str,
        *,
        password: str | None = None,
        user_type: UserType | None = None,
        status: UserStatus | None = None,
    ) -> None:
        """Change a user."""
        user = UserInfo(name, password, user_type, status)
        await self._store.update(user)
        self._record(RequestCode.AUTH_UPDATE_USER, UserHeader(name), user)

    async def delete_user(self, name: str) -> None:
        """Delete a user."""
        await self._store.delete(name)
        self._record(RequestCode.AUTH_DELETE_USER, UserHeader(name))

    async def acls(self) -> dict[str, list[AclInfo]]:
        """Return the policies of the users that have any."""
        return {"": [acl for user in self._store.users if (acl := AclInfo.of(user)) is not None]}

    async def set_acl(
        self,
        name: str,
        resources: Sequence[str],
        actions: Sequence[str],
        *,
        decision: Decision = Decision.ALLOW,
        sources: Sequence[str] = (),
        policy_type: PolicyType = PolicyType.CUSTOM,
    ) -> None:
        """Add an entry for each resource to a policy of a user, or replace it."""
        acl = AclInfo.granting(name, resources, actions, decision, sources, policy_type)
        await self._store.merge_acl(acl)
        self._record(RequestCode.AUTH_UPDATE_ACL, AclHeader(acl.subject), acl)

    async def delete_acl(
        self, name: str, *, resource: str | None = None, policy_type: PolicyType | None = None
    ) -> None:
        """Delete entries of the policies of a user; raise NoSuchError if there are none."""
        acls = chain(*(await self.acls()).values())
        check_acl_deletion(acls, name, resource, policy_type, str(self._folder))
        subject = SUBJECT_PREFIX + name
        await self._store.delete_acl(subject, resource or "", policy_type or "")
        self._record(RequestCode.AUTH_DELETE_ACL, AclHeader(subject, policy_type, resource))

    def _record(
        self, code: RequestCode, header: Header, body: UserInfo | AclInfo | None = None
    ) -> None:
        record_local_change(SYSTEM, self._folder, code, header, body)


class UserDirectory(NamedTuple):
    """Users on brokers or in a folder, and the arguments that select the brokers."""

    users: Admin | StoredUsers
    where: dict[str, Any]
    place: str

    async def known(self, name: str) -> dict[str, UserInfo]:
        """Return a user by broker; raise NoSuchError if no broker has it."""
        found = await self.users.users(**self.where)
        same = {
            broker: user
            for broker, users in found.items()
            for user in users
            if user.username == name
        }
        if not same:
            names = {user.username for users in found.values() for user in users}
            hint = did_you_mean(name, names) or "; 'firetrail user list' lists the users"
            raise NoSuchError(f"{self.place}: no user {name!r}{hint}")
        return same


def run(args: argparse.Namespace, work: Callable[[UserDirectory], Awaitable[None]]) -> None:
    """Call ``work`` with the users that the arguments select."""
    if args.store is not None:
        if args.action != "create" and not args.store.is_dir():
            first = f"'firetrail user create NAME --super --store {args.store}' makes it"
            raise NoSuchError(f"{args.store}: no such folder; check the path, or {first}")
        asyncio.run(_stored(args.store, work))
    else:
        running_cluster.run(args, _clustered(args, work))


async def _clustered(
    args: argparse.Namespace, work: Callable[[UserDirectory], Awaitable[None]]
) -> None:
    async with Admin(args.namesrv) as admin:
        where = {"cluster": args.cluster, "address": args.broker}
        await work(UserDirectory(admin, where, args.broker or args.namesrv))


async def _stored(folder: Path, work: Callable[[UserDirectory], Awaitable[None]]) -> None:
    async with _unused(folder):
        await work(UserDirectory(StoredUsers(folder), {}, str(folder)))


@asynccontextmanager
async def _unused(folder: Path) -> AsyncIterator[None]:
    """Keep brokers from opening a store; raise StoreLockedError if one has it open.

    A folder without the file of the lock has never been a store, so no other process has it open.
    """
    lock = FolderLock(SYSTEM, folder) if (folder / LOCK).exists() else None
    try:
        yield
    finally:
        if lock is not None:
            lock.release()
