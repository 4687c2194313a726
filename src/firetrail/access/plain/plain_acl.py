"""The accounts of RocketMQ's ACL 1.0 in memory, which follow their files.

The files are read every :data:`RELOAD_S` seconds. All of them are parsed before the new accounts
replace the old ones, so no request sees half of a change. Invalid files change nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from firetrail.access.plain.plain_accounts import PlainAccount
from firetrail.access.plain.plain_files import SETTING, AclFile, read_files
from firetrail.auth.address_patterns import AddressPattern
from firetrail.auth.policies import User
from firetrail.errors import ConfigError
from firetrail.pace.periodic import GuardedStep, every
from firetrail.remoting.messages.bodies import DataVersion
from firetrail.system import System
from firetrail.text import counted

RELOAD_S = 2.0
"""Interval at which the files are compared with those in use. RocketMQ takes up to 5 s."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Accounts:
    """The content of all files after parsing."""

    files: Mapping[Path, AclFile] = field(default_factory=dict)
    by_key: Mapping[str, PlainAccount] = field(default_factory=dict)
    users: Mapping[str, User] = field(default_factory=dict)
    white: tuple[AddressPattern, ...] = ()

    @classmethod
    def of(cls, files: Mapping[Path, AclFile], cluster: str) -> _Accounts:
        by_key: dict[str, PlainAccount] = {}
        users: dict[str, User] = {}
        white: dict[str, AddressPattern] = {}
        for path, file in files.items():
            white.update({pattern.text: pattern for pattern in file.white})
            for account in file.accounts:
                if by_key.setdefault(account.access_key, account) is account:
                    try:
                        users[account.access_key] = account.user(cluster)
                    except ConfigError as error:
                        why = f"account {account.access_key}: {error}"
                        raise ConfigError(SETTING, str(path), why) from None
                else:
                    _log.warning(
                        "%s: account %s is ignored, because another file has it, too",
                        path,
                        account.access_key,
                    )
        return cls(files, by_key, users, tuple(white.values()))


class PlainAcl:
    """The accounts of a broker.

    Args:
        system: Files and clock to use.
        main: The main file; more files may be in the folder ``acl`` beside it.
        cluster: The cluster of the broker.
    """

    def __init__(self, system: System, main: Path, cluster: str) -> None:
        self._system = system
        self._main = main
        self._cluster = cluster
        self._contents: Mapping[Path, bytes] = {}
        self._modified: Mapping[Path, int | None] = {}
        self._failed: object = None
        self._accounts = _Accounts()
        self._changing = system.threads.lock()

    # -- what the guard asks ------------------------------------------------------------------

    def find(self, name: str) -> User | None:
        """Return the user of an account; None if there is none."""
        return self._accounts.users.get(name)

    def trusts(self, source: str, name: str) -> bool:
        """Return whether requests from an address, with an access key or none, are not checked."""
        accounts = self._accounts
        if any(pattern.matches(source) for pattern in accounts.white):
            return True
        account = accounts.by_key.get(name)
        return account is not None and account.white_address.matches(source)

    @property
    def accounts(self) -> list[PlainAccount]:
        """All accounts."""
        return list(self._accounts.by_key.values())

    @property
    def white_addresses(self) -> list[str]:
        """The patterns of addresses that are not checked."""
        return [pattern.text for pattern in self._accounts.white]

    @property
    def versions(self) -> Mapping[Path, DataVersion]:
        """The versions of the files, that of the main file first."""
        return {path: file.version for path, file in self._accounts.files.items()}

    # -- files --------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the files at the start; raise ConfigError if one cannot be used."""
        with self._changing:
            self._use(read_files(self._system.files, self._main))
        if not self._accounts.by_key and not self._accounts.white:
            _log.warning("there are no accounts in %s, so every request is refused", self._main)

    async def watch(self) -> None:
        """Follow the files until cancelled."""
        trouble = f"the accounts in {self._main} could not be read again; will retry"
        refresh = GuardedStep(lambda: asyncio.to_thread(self.refresh), trouble, _log)
        await every(RELOAD_S, refresh)

    def have_changed(self) -> bool:
        """Return whether a file in use has changed since it was read; new files do not count."""
        return self._modified_ms() != self._modified

    def _modified_ms(self) -> Mapping[Path, int | None]:
        times: dict[Path, int | None] = {}
        for path in self._contents:
            try:
                times[path] = self._system.files.modified_ms(path)
            except OSError:
                times[path] = None
        return times

    def refresh(self) -> bool:
        """Use the files if they have changed; return whether they are in use now."""
        with self._changing:
            modified = self._modified_ms()
            found: object = None
            try:
                contents = read_files(self._system.files, self._main)
                if contents == self._contents:
                    self._failed = None
                    return False
                found = contents
                self._check_emptied(contents)
                self._use(contents)
            except ConfigError as error:
                if (found, str(error)) != self._failed:
                    self._failed = (found, str(error))
                    _log.error("the previous accounts of ACL 1.0 remain in force: %s", error)
                return False
            finally:  # until now, the accounts were not those of these files
                self._modified = modified
        self._failed = None
        _log.warning("%s of ACL 1.0 are in force now", counted(len(self.accounts), "account"))
        return True

    def _check_emptied(self, contents: Mapping[Path, bytes]) -> None:
        """Raise ConfigError if a file was emptied: an editor may be about to write it."""
        for path, content in contents.items():
            if not content.strip() and self._contents.get(path, b"").strip():
                raise ConfigError(SETTING, str(path), "is empty")

    def _use(self, contents: Mapping[Path, bytes]) -> None:
        files = {path: AclFile.parse(path, content) for path, content in contents.items()}
        self._accounts = _Accounts.of(files, self._cluster)
        self._contents = contents

    # -- changes ------------------------------------------------------------------------------

    def put(self, access_key: str, fields: Mapping[str, str]) -> None:
        """Create an account, or change it: fields that are absent stay as they are.

        Raises:
            ConfigError: A value is invalid, or the files cannot be used as they are.
            OSError: The file cannot be written.
        """

        def change(files: Mapping[Path, AclFile]) -> tuple[Path, AclFile]:
            path = _holder(files, access_key) or self._main
            file = files.get(path, AclFile())
            account = file.find(access_key)
            if account is None:
                account = PlainAccount(access_key, fields.get("secretKey", ""))
            return path, file.with_account(account.changed(fields))

        self._change(change)

    def delete(self, access_key: str) -> None:
        """Delete an account; raise ConfigError if it does not exist, OSError as in ``put``."""

        def change(files: Mapping[Path, AclFile]) -> tuple[Path, AclFile]:
            path = _holder(files, access_key)
            if path is None:
                raise ConfigError("accessKey", access_key, "there is no such account")
            return path, files[path].without(access_key)

        self._change(change)

    def set_white_addresses(self, patterns: list[str], path: str = "") -> None:
        """Replace the addresses that are not checked.

        Args:
            patterns: The patterns.
            path: The file to write them to, which must be one of the files. Default: the main file.

        Raises:
            ConfigError: A pattern is invalid, or ``path`` is none of the files.
            OSError: The file cannot be written.
        """
        white = tuple(AddressPattern.parse(each) for each in patterns)

        def change(files: Mapping[Path, AclFile]) -> tuple[Path, AclFile]:
            chosen = Path(path) if path else self._main
            if chosen != self._main and chosen not in files:
                raise ConfigError("aclFileFullPath", path, "is not a file with accounts")
            return chosen, replace(files.get(chosen, AclFile()), white=white)

        self._change(change)

    def _change(self, change: Callable[[Mapping[Path, AclFile]], tuple[Path, AclFile]]) -> None:
        """Change one file and use it. Files that were edited meanwhile are read first."""
        with self._changing:
            contents = read_files(self._system.files, self._main)
            files = {path: AclFile.parse(path, content) for path, content in contents.items()}
            path, file = change(files)
            content = file.changed_at(self._system.clock.now_ms()).content()
            written = {**contents, path: content}
            parsed = {**files, path: AclFile.parse(path, content)}
            new = _Accounts.of(parsed, self._cluster)
            self._system.files.replace(path, content)
            self._accounts, self._contents = new, written


def _holder(files: Mapping[Path, AclFile], access_key: str) -> Path | None:
    """Return the first file with an account; None if there is none."""
    return next((path for path, file in files.items() if file.find(access_key)), None)
