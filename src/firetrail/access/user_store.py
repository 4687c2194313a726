"""The users of a server and their policies, in memory and in one file.

The file is ``config/firetrailUsers.json``. It contains passwords in clear, because signatures are
computed with them, so it is refused if others than its owner may read it. No request shows it.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from firetrail.access.plain.plain_acl import PlainAcl
from firetrail.access.user_bodies import (
    AclInfo,
    UserFileBody,
    UserInfo,
    check_password,
    check_user_name,
    policy_type,
    user_status,
    user_type,
)
from firetrail.auth.credentials import Credentials
from firetrail.auth.policies import SUBJECT_PREFIX, Policy, PolicyType, User, UserStatus, UserType
from firetrail.auth.resources import Resource
from firetrail.errors import ConfigError, StoreError
from firetrail.settings.config_file import ConfigFile
from firetrail.system import System
from firetrail.text import counted

USERS_FILE = "firetrailUsers.json"
USERS_MAX = 10_000
"""Maximum number of users: the whole file is written with every change."""
IGNORE_USERS = "--ignore-users"
"""The option that starts a server without access control on a folder that has users."""

_log = logging.getLogger(__name__)


class UserStore:
    """The users by name. A change is durable before it is visible.

    Args:
        system: Files to use.
        root: The folder that contains ``config``.
    """

    def __init__(self, system: System, root: Path) -> None:
        self._files = system.files
        self._file = ConfigFile(system, root, USERS_FILE)
        self._users: Mapping[str, User] = {}
        self._changing = asyncio.Lock()
        self._reading = system.threads.lock()
        self._read_ms: int | None = None

    def load(self) -> None:
        """Read the file.

        Raises:
            StoreError: The file is damaged, invalid, or readable by others than its owner.
        """
        written = self._file.modified_ms()
        try:
            self._users = self._read()
        finally:  # until now, the users were not those of this file
            self._read_ms = written

    def _read(self) -> Mapping[str, User]:
        path = self._file.path
        for each in (path, path.with_name(f"{USERS_FILE}.bak")):
            if each.exists() and not self._files.is_private(each):
                raise StoreError(
                    f"{each}: other users of this machine may read or write it, and it contains "
                    f"passwords; run chmod {self._files.private_mode(each)} {each}, and change "
                    "the passwords"
                )
        body = self._file.load(UserFileBody)
        try:
            users = {info.username: _user(info) for info in body.users}
            for acl in body.acls:
                name = acl.subject.removeprefix(SUBJECT_PREFIX)
                users[name] = replace(users[name], policies=acl.merged(users[name].policies))
        except (ConfigError, KeyError) as error:
            raise StoreError(f"{path}: {error}; correct the file") from None
        return users

    def has_changed(self) -> bool:
        """Return whether the file has changed since it was read, by one look at its status."""
        return self._file.modified_ms() != self._read_ms

    def reload(self) -> bool:
        """Read the file again if it has changed; return whether it has.

        For a server that does not change its users itself: another process does.

        Raises:
            StoreError: The new file cannot be used. The users stay as they were, and the same file
                is not read again.
        """
        with self._reading:
            if not self.has_changed():
                return False
            self.load()
            return True

    def find(self, name: str) -> User | None:
        """Return the user with a name; None if there is none."""
        return self._users.get(name)

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def by_name(self) -> Mapping[str, User]:
        """All users by name, in an object that every change replaces."""
        return self._users

    @property
    def users(self) -> list[User]:
        """All users, by name."""
        return sorted(self._users.values(), key=lambda user: user.name)

    # -- changes ------------------------------------------------------------------------------

    def add_super(self, credentials: Credentials) -> bool:
        """Create a super user at the start, unless the name exists; return whether it was new.

        A password that was changed in the settings changes nothing, as in RocketMQ.
        """
        name = check_user_name(credentials.access_key)
        if name in self._users:
            return False
        user = User(name, credentials.secret_key, UserType.SUPER)
        self._save(users := {**self._users, name: user})
        self._users = users
        return True

    def migrate(self, accounts: PlainAcl) -> None:
        """Create a user at the start for each account of ACL 1.0 whose name is new.

        White addresses are not copied: every user has to sign its requests.
        """
        users = dict(self._users)
        for account in accounts.accounts:
            found = accounts.find(account.access_key)
            if found is None or found.name in users:
                continue
            users[found.name] = User(
                found.name, found.password, found.type, policies=found.policies
            )
            _log.warning("user %s was created for the account of ACL 1.0", found.name)
            if account.white_address.text:
                _log.warning(
                    "the white address %s of account %s was not copied: user %s has to sign its "
                    "requests, from there, too",
                    account.white_address.text,
                    found.name,
                    found.name,
                )
        if len(users) > len(self._users):
            self._save(users)
            self._users = users

    async def create(self, info: UserInfo) -> None:
        """Create a user; raise ConfigError if it exists, or something is invalid."""
        name = check_user_name(info.username)
        user = User(
            name,
            check_password(info.password),
            user_type(info.user_type),
            user_status(info.user_status),
        )
        async with self._changing:
            if name in self._users:
                raise ConfigError("username", name, "The user is existed")
            if len(self._users) >= USERS_MAX:
                raise ConfigError(
                    "username", name, f"there are {USERS_MAX} users, which is the limit"
                )
            await self._put(user)

    async def update(self, info: UserInfo) -> None:
        """Change the given properties of a user.

        Raises:
            ConfigError: There is no such user, a value is invalid, or no enabled super user would
                remain.
        """
        async with self._changing:
            user = self._existing(info.username)
            await self._put(
                replace(
                    user,
                    password=check_password(info.password) if info.password else user.password,
                    type=user_type(info.user_type, user.type),
                    status=user_status(info.user_status, user.status),
                )
            )

    async def delete(self, name: str) -> None:
        """Delete a user and its policies, if it exists.

        Raises:
            ConfigError: It is the last enabled super user.
        """
        async with self._changing:
            if name in self._users:
                await self._swap({k: v for k, v in self._users.items() if k != name})

    async def merge_acl(self, acl: AclInfo) -> None:
        """Add entries to the policies of a user; raise ConfigError if something is invalid."""
        async with self._changing:
            user = self._subject(acl.subject)
            if not any(policy.entries for policy in acl.policies):
                raise ConfigError("policies", acl.subject, "The policies is empty.")
            await self._put(replace(user, policies=acl.merged(user.policies)))

    async def delete_acl(self, subject: str, resource: str = "", policy: str = "") -> None:
        """Delete the policies of a user, one of them, or the entries for a resource."""
        async with self._changing:
            user = self._subject(subject)
            chosen = [policy_type(policy)] if policy else list(PolicyType)
            custom, default = (
                _reduced(each, resource) if kind in chosen else each
                for kind, each in zip(PolicyType, user.policies, strict=True)
            )
            await self._put(replace(user, policies=(custom, default)))

    async def adopt(self, before: Mapping[str, User], users: Mapping[str, User]) -> bool:
        """Replace all users, unless they have changed meanwhile; return whether that was done.

        Args:
            before: The value of :attr:`by_name` when the new users were computed.
            users: The new users by name.

        Raises:
            ConfigError: No enabled super user would remain.
        """
        async with self._changing:
            if self._users is not before:
                return False
            await self._swap(users)
            return True

    def _existing(self, name: str) -> User:
        user = self._users.get(name)
        if user is None:
            raise ConfigError("username", name, "The user is not exist")
        return user

    def _subject(self, subject: str) -> User:
        user = self._users.get(subject.removeprefix(SUBJECT_PREFIX))
        if user is None:
            raise ConfigError("subject", subject, f"The subject of {subject:.80} is not exist.")
        return user

    async def _put(self, user: User) -> None:
        await self._swap({**self._users, user.name: user})

    async def _swap(self, users: Mapping[str, User]) -> None:
        if _has_super(self._users) and not _has_super(users):
            raise ConfigError(
                "userType",
                "",
                "this is the last enabled super user, and only super users manage users; "
                "create another one first",
            )
        await asyncio.to_thread(self._save, users)
        self._users = users

    def _save(self, users: Mapping[str, User]) -> None:
        acls = [acl for user in users.values() if (acl := AclInfo.of(user)) is not None]
        infos = [
            UserInfo(user.name, user.password, user.type, user.status) for user in users.values()
        ]
        self._file.save_both(UserFileBody(infos, acls).to_json())


def refuse_users(system: System, root: Path) -> None:
    """Refuse a folder with users, for a server whose access control is switched off.

    Args:
        system: Files to use.
        root: The folder that contains ``config``.

    Raises:
        ConfigError: There are users.
        StoreError: The file cannot be used.
    """
    store = UserStore(system, root)
    store.load()
    if not store.users:
        return
    raise ConfigError(
        "authenticationEnabled",
        False,
        f"{store.path} has {counted(len(store.users), 'user')}, but access control is switched"
        " off, so every client could do everything; switch it on (authenticationEnabled=true and"
        " authorizationEnabled=true, or 'firetrail up --secure FOLDER'), or start without it by"
        f" {IGNORE_USERS} (in Python: ignore_users=True)",
    )


def _has_super(users: Mapping[str, User]) -> bool:
    return any(user.is_super and user.status is UserStatus.ENABLED for user in users.values())


def _reduced(policy: Policy, resource: str) -> Policy:
    return policy.without(Resource.parse(resource)) if resource else Policy()


def _user(info: UserInfo) -> User:
    if not isinstance(info.password, str) or not info.password:
        raise ConfigError("password", "", f"is missing (user {info.username})")
    name = check_user_name(info.username)
    return User(name, info.password, user_type(info.user_type), user_status(info.user_status))


def open_users(
    store: UserStore, *first: Credentials | None, accounts: PlainAcl | None = None
) -> list[User]:
    """Load the users at the start of a server, and create those of its settings.

    Args:
        store: The users.
        first: The super users of the settings.
        accounts: The accounts of ACL 1.0 that become users. Default: none.

    Returns:
        The users that were created.

    Raises:
        StoreError: The file cannot be used.
        OSError: It cannot be written.
    """
    store.load()
    before = store.by_name
    for credentials in first:
        if credentials is not None and store.add_super(credentials):
            _log.warning("super user %s was created", credentials.access_key)
    if accounts is not None:
        store.migrate(accounts)
    if not store.users:
        _log.warning(
            "there are no users, so every request is refused; set initAuthenticationUser to create "
            "the first one"
        )
    return [user for user in store.users if user.name not in before]
