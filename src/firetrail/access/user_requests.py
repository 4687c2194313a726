"""The requests of ``mqadmin`` about users and their policies (codes 3001 to 3010).

Only super users may send them. Passwords are part of an answer only if an operator has allowed
that, and only over TLS.
"""

import json
import logging
from collections.abc import Awaitable

from firetrail.access.user_bodies import AclInfo, UserInfo
from firetrail.access.user_store import UserStore
from firetrail.auth.caller import NO_PERMISSION
from firetrail.auth.policies import SUBJECT_PREFIX, User
from firetrail.errors import ConfigError, ProtocolError, RequestError
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.messages.admin.user_headers import AclFilterHeader, UserFilterHeader
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

_log = logging.getLogger(__name__)


class UserRequests:
    """Handles the requests about users and policies.

    Args:
        store: The users.
        return_passwords: Whether answers to clients with TLS contain passwords.
    """

    def __init__(self, store: UserStore, return_passwords: bool = False) -> None:
        self._store = store
        self._return_passwords = return_passwords
        self.handlers: dict[int, Handler] = {
            RequestCode.AUTH_CREATE_USER: self._create_user,
            RequestCode.AUTH_UPDATE_USER: self._update_user,
            RequestCode.AUTH_DELETE_USER: self._delete_user,
            RequestCode.AUTH_GET_USER: self._get_user,
            RequestCode.AUTH_LIST_USER: self._list_users,
            RequestCode.AUTH_CREATE_ACL: self._merge_acl,
            RequestCode.AUTH_UPDATE_ACL: self._merge_acl,
            RequestCode.AUTH_DELETE_ACL: self._delete_acl,
            RequestCode.AUTH_GET_ACL: self._get_acl,
            RequestCode.AUTH_LIST_ACL: self._list_acls,
        }

    # -- users --------------------------------------------------------------------------------

    async def _create_user(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        info = _user_in(request)
        return await self._done(request, self._store.create(info), f"created user {info.username}")

    async def _update_user(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        info = _user_in(request)
        return await self._done(request, self._store.update(info), f"changed user {info.username}")

    async def _delete_user(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        name = _named(request, "username")
        if request.caller is not None and request.caller.user_name == name:
            raise RequestError(NO_PERMISSION, f"User:{name} cannot delete itself")
        return await self._done(request, self._store.delete(name), f"deleted user {name}")

    def _get_user(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        user = self._store.find(_named(request, "username"))
        if user is None:
            return request.answer()
        return request.answer(body=self._shown(user, connection).encode(standard=True))

    def _list_users(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        wanted = UserFilterHeader.decode(request.fields).filter
        users = (user for user in self._store.users if wanted in user.name)
        return request.answer(body=_list([self._shown(u, connection).to_json() for u in users]))

    def _shown(self, user: User, connection: Connection) -> UserInfo:
        has_password = self._return_passwords and connection.is_encrypted
        return UserInfo(user.name, user.password if has_password else None, user.type, user.status)

    # -- policies -----------------------------------------------------------------------------

    async def _merge_acl(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        subject = _named(request, "subject")
        try:
            body = AclInfo.decode(request.content)
        except ProtocolError as error:
            raise RequestError(ResponseCode.INVALID_PARAMETER, str(error)) from None
        acl = AclInfo(subject, body.policies)
        return await self._done(
            request, self._store.merge_acl(acl), f"changed the ACL of {subject}"
        )

    async def _delete_acl(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        subject = _named(request, "subject")
        work = self._store.delete_acl(
            subject, request.fields.get("resource", ""), request.fields.get("policyType", "")
        )
        return await self._done(request, work, f"deleted from the ACL of {subject}")

    def _get_acl(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        subject = _named(request, "subject")
        user = self._store.find(subject.removeprefix(SUBJECT_PREFIX))
        acl = AclInfo.of(user) if user is not None else None
        return request.answer(body=b"" if acl is None else acl.encode(standard=True))

    def _list_acls(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = AclFilterHeader.decode(request.fields)
        subject, resource = header.subject_filter, header.resource_filter
        acls = (AclInfo.of(user) for user in self._store.users)
        found = [
            acl.to_json()
            for acl in acls
            if acl is not None
            and subject in acl.subject
            and any(resource in e.resource for policy in acl.policies for e in policy.entries)
        ]
        return request.answer(body=_list(found))

    async def _done(
        self, request: RemotingCommand, work: Awaitable[None], what: str
    ) -> RemotingCommand:
        try:
            await work
        except ConfigError as error:
            raise RequestError(NO_PERMISSION, error.allowed) from None
        who = request.caller.user_name if request.caller is not None else "?"
        _log.warning("user %s has %s", who, what)
        return request.answer()


def _user_in(request: RemotingCommand) -> UserInfo:
    """Return the user in a request. The message about an invalid one shows none of it."""
    name = _named(request, "username")
    try:
        body = UserInfo.decode(request.content)
    except ProtocolError:
        detail = "the body is not a user: {username, password, userType, userStatus}"
        raise RequestError(ResponseCode.INVALID_PARAMETER, detail) from None
    return UserInfo(name, body.password, body.user_type, body.user_status)


def _named(request: RemotingCommand, field: str) -> str:
    value = request.fields.get(field, "").strip()
    if not value:
        raise RequestError(ResponseCode.INVALID_PARAMETER, f"The {field} is blank")
    return value


def _list(found: list[dict[str, object]]) -> bytes:
    return json.dumps(found, ensure_ascii=False).encode() if found else b""
