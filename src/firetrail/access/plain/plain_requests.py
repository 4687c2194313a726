"""The requests of ``mqadmin`` about the accounts of ACL 1.0 (codes 50 to 54).

Only administrators may send them. No answer contains a secret key: RocketMQ showed those of all
accounts until 4.9.8 and 5.2.0 (CVE-2024-23321).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from firetrail.access.plain.plain_accounts import PlainAccount
from firetrail.access.plain.plain_acl import PlainAcl
from firetrail.errors import ConfigError, RequestError
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.messages.admin.user_headers import AccountHeader, WhiteAddressesHeader
from firetrail.remoting.messages.typed_body import Body
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand

UPDATE_FAILED, DELETE_FAILED, WHITE_ADDRESSES_FAILED = 209, 210, 211
"""Response codes of RocketMQ 4.9. Clients of 5.x have other names for these numbers."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlainAccountInfo(Body):
    """An account in an answer. The secret key is always empty."""

    access_key: str
    secret_key: str = ""
    white_remote_address: str = ""
    admin: bool = False
    default_topic_perm: str = ""
    default_group_perm: str = ""
    topic_perms: list[str] = field(default_factory=list)
    group_perms: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, account: PlainAccount) -> PlainAccountInfo:
        """Return the account as it is shown."""
        return cls.from_json({**account.to_yaml(), "secretKey": ""})


@dataclass(frozen=True, slots=True)
class AclConfigInfo(Body):
    """The answer to GET_BROKER_CLUSTER_ACL_CONFIG."""

    global_white_addrs: list[str] = field(default_factory=list)
    plain_access_configs: list[PlainAccountInfo] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class BrokerNames:
    """The names of a broker in the answer about its version."""

    cluster: str
    name: str
    address: Callable[[], str]


class PlainRequests:
    """Handles the requests about accounts."""

    def __init__(self, acl: PlainAcl, names: BrokerNames) -> None:
        self._acl = acl
        self._names = names
        self.handlers: dict[int, Handler] = {
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: self._put,
            RequestCode.DELETE_ACL_CONFIG: self._delete,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: self._version,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: self._set_white_addresses,
            RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: self._config,
        }

    async def _put(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        key = AccountHeader.decode(request.fields).access_key.strip()
        work = asyncio.to_thread(self._acl.put, key, request.fields)
        return await _done(request, work, UPDATE_FAILED, f"changed account {key!r}")

    async def _delete(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        key = AccountHeader.decode(request.fields).access_key.strip()
        if request.caller is not None and request.caller.user_name == key:
            raise RequestError(DELETE_FAILED, f"account {key} cannot delete itself")
        work = asyncio.to_thread(self._acl.delete, key)
        return await _done(request, work, DELETE_FAILED, f"deleted account {key!r}")

    async def _set_white_addresses(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        header = WhiteAddressesHeader.decode(request.fields)
        patterns = [each.strip() for each in header.global_white_addrs.split(",") if each.strip()]
        path = header.acl_file_full_path.strip()
        work = asyncio.to_thread(self._acl.set_white_addresses, patterns, path)
        done = f"set the white addresses {', '.join(patterns)!r}"
        return await _done(request, work, WHITE_ADDRESSES_FAILED, done)

    def _version(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        versions = {str(path): each.to_json() for path, each in self._acl.versions.items()}
        first = next(iter(versions.values()), {})
        return request.answer(
            fields={
                "version": json.dumps(first),
                "allAclFileVersion": json.dumps(versions),
                "brokerName": self._names.name,
                "brokerAddr": self._names.address(),
                "clusterName": self._names.cluster,
            }
        )

    def _config(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        shown = [PlainAccountInfo.of(account) for account in self._acl.accounts]
        body = AclConfigInfo(self._acl.white_addresses, shown)
        return request.answer(body=body.encode(standard=True))


async def _done(
    request: RemotingCommand, work: Awaitable[None], code: int, what: str
) -> RemotingCommand:
    try:
        await work
    except (ConfigError, OSError) as error:
        raise RequestError(code, str(error)) from None
    who = request.caller.user_name if request.caller is not None else "?"
    _log.warning("user %s has %s", who, what)
    return request.answer()
