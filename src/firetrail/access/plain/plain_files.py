"""The files of RocketMQ's ACL 1.0: ``plain_acl.yml``, and those in the folder ``acl`` beside it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from firetrail.access.plain.plain_accounts import PlainAccount
from firetrail.access.plain.yaml_text import dump_yaml, load_yaml
from firetrail.auth.address_patterns import AddressPattern
from firetrail.errors import ConfigError, FormatError
from firetrail.remoting.messages.bodies import DataVersion
from firetrail.system import Files
from firetrail.text import os_reason

SETTING = "rocketmq.acl.plain.file"
FOLDER = "acl"
"""The folder with more files, beside the main file."""
FILES_MAX = 100
"""Maximum number of files, because all are read every few seconds."""
DEPTH_MAX = 4
"""Maximum depth of folders."""
_WHITE, _ACCOUNTS, _VERSION = "globalWhiteRemoteAddresses", "accounts", "dataVersion"
_ENDINGS = (".yml", ".yaml")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AclFile:
    """The content of a file.

    Attributes:
        white: Addresses of clients that are not checked.
        accounts: The accounts.
        version: The number of times that the file was changed by requests, and when.
    """

    white: tuple[AddressPattern, ...] = ()
    accounts: tuple[PlainAccount, ...] = ()
    version: DataVersion = DataVersion()  # noqa: RUF009  (never changes)

    @classmethod
    def parse(cls, path: Path, content: bytes) -> AclFile:
        """Parse a file; raise ConfigError, which shows no secret, if it is not valid."""
        try:
            value = load_yaml(content) or {}
            if not isinstance(value, dict):
                raise ConfigError(path.name, "", f"must have the members {_WHITE} and {_ACCOUNTS}")
            for key in sorted(set(value) - {_WHITE, _ACCOUNTS, _VERSION}):
                _log.warning("%s: the key %.80r has no effect", path, key)
            return cls(
                tuple(AddressPattern.parse(each) for each in _texts(value, _WHITE)),
                tuple(PlainAccount.of(each) for each in _list(value, _ACCOUNTS)),
                _version(value),
            )
        except (ConfigError, FormatError) as error:
            raise ConfigError(SETTING, str(path), f"{error}; correct the file") from None

    def content(self) -> bytes:
        """Return the file as it is written."""
        return dump_yaml(
            {
                _WHITE: [pattern.text for pattern in self.white],
                _ACCOUNTS: [account.to_yaml() for account in self.accounts],
                _VERSION: [{"counter": self.version.counter, "timestamp": self.version.timestamp}],
            }
        )

    def find(self, access_key: str) -> PlainAccount | None:
        """Return an account; None if the file does not have it."""
        return next((each for each in self.accounts if each.access_key == access_key), None)

    def with_account(self, account: PlainAccount) -> AclFile:
        """Return the file with an account, which replaces the one with the same access key."""
        accounts = {each.access_key: each for each in self.accounts} | {account.access_key: account}
        return replace(self, accounts=tuple(accounts.values()))

    def without(self, access_key: str) -> AclFile:
        """Return the file without an account."""
        rest = tuple(each for each in self.accounts if each.access_key != access_key)
        return replace(self, accounts=rest)

    def changed_at(self, now_ms: int) -> AclFile:
        """Return the file with the next version."""
        return replace(self, version=DataVersion(self.version.counter + 1, now_ms))


def read_files(files: Files, main: Path) -> Mapping[Path, bytes]:
    """Return the contents of all files, the main file first.

    Raises:
        ConfigError: There is no file, or one cannot be read, or others may read it.
    """
    found = [main] if main.exists() else []
    found += _below(files, main.parent / FOLDER, DEPTH_MAX)
    if not found:
        raise ConfigError(
            SETTING, str(main), "the file with the accounts of ACL 1.0 does not exist: create it"
        )
    if len(found) > FILES_MAX:
        raise ConfigError(SETTING, str(main), f"there are more than {FILES_MAX} files")
    return {path: _read(files, path) for path in found}


def _below(files: Files, folder: Path, depth: int) -> Iterable[Path]:
    if not folder.is_dir() or not depth:
        return
    for name in sorted(files.names(folder)):
        path = folder / name
        if path.is_dir():
            yield from _below(files, path, depth - 1)
        elif name.endswith(_ENDINGS):
            yield path


def _read(files: Files, path: Path) -> bytes:
    try:
        if not files.is_private(path):
            raise ConfigError(
                SETTING,
                str(path),
                "other users of this machine may read or write it, and it contains secret keys;"
                f" run chmod {files.private_mode(path)} {path}, and change the keys",
            )
        return files.read(path)
    except OSError as error:
        raise ConfigError(SETTING, str(path), f"cannot be read: {os_reason(error)}") from None


def _list(value: dict[str, Any], key: str) -> list[Any]:
    found = value.get(key) or []
    if not isinstance(found, list):
        raise ConfigError(key, "", "must be a list")
    return found


def _texts(value: dict[str, Any], key: str) -> list[str]:
    found = _list(value, key)
    if not all(isinstance(each, str) for each in found):
        raise ConfigError(key, "", "must be a list of texts")
    return found


def _version(value: dict[str, Any]) -> DataVersion:
    """Return the version in a file; an invalid one is as if absent."""
    try:
        latest = _list(value, _VERSION)[0]
        return DataVersion(int(latest["counter"]), int(latest["timestamp"]))
    except (LookupError, TypeError, ValueError):
        return DataVersion()
