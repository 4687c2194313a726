"""The synchronization of users: a slave takes over those of its master that it may know.

Commands about users go to every broker. One that was down meanwhile would keep a deleted user, and
a promotion would make that the state of the group.
"""

import logging
from collections.abc import Mapping

from firetrail.access.copied_users import CopiedUsers, copied_users
from firetrail.access.user_bodies import AclInfo, UserInfo, listed
from firetrail.access.user_store import UserStore
from firetrail.auth.policies import User
from firetrail.errors import ConfigError, FiretrailError, RequestError
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.system import Clock

ANSWER_S = 10.0
"""The time that the master may take for a list of its users."""
REFUSED_S = 300.0
"""Pause after a refusal: each one is a line in the audit log of the master."""

_log = logging.getLogger(__name__)


class UserSynchronize:
    """Compares users and policies with those of a master, one round at a time.

    Args:
        client: Sends the requests.
        users: The users of the slave.
        clock: The time.
    """

    def __init__(self, client: RemotingClient, users: UserStore, clock: Clock) -> None:
        self._client = client
        self._users = users
        self._clock = clock
        self._master = ""
        self._compared: tuple[Mapping[str, User], bytes, bytes] | None = None
        self._missing: list[str] = []  # in the round before
        self._remarks: set[str] = set()  # what was logged about the master
        self._not_before = 0.0

    async def copy(self, master: str) -> None:
        """Take over the changes at the broker at ``master``; log those that fail.

        Raises:
            OSError: The users cannot be saved.
        """
        if master != self._master:
            self._master, self._compared, self._missing = master, None, []
            self._remarks.clear()
            self._not_before = 0.0
        if self._clock.monotonic() < self._not_before:
            return
        before = self._users.by_name
        try:
            users = await self._listed(RequestCode.AUTH_LIST_USER)
            acls = await self._listed(RequestCode.AUTH_LIST_ACL)
            if self._compared != (before, users, acls) or self._missing:
                await self._adopt(before, users, acls)
        except RequestError as error:
            self._not_before = self._clock.monotonic() + REFUSED_S
            self._remark_once(_refusal(error))
        except ConfigError as error:
            self._remark_once(f"the users cannot be copied: {error}")
        except (FiretrailError, ConnectionError, TimeoutError) as error:
            _log.debug("the users of master %s cannot be compared: %s", master, error)

    async def _listed(self, code: RequestCode) -> bytes:
        answer = await self._client.ask(self._master, RemotingCommand(code), ANSWER_S)
        return answer.content

    async def _adopt(self, before: Mapping[str, User], users: bytes, acls: bytes) -> None:
        found = copied_users(
            before,
            [UserInfo.from_json(each) for each in listed(users)],
            [AclInfo.from_json(each) for each in listed(acls)],
        )
        if found.changes:
            if not await self._users.adopt(before, found.users):
                return  # a request has changed them meanwhile: the next round compares again
            _log.warning("as at master %s: %s", self._master, "; ".join(found.changes))
        self._compared = self._users.by_name, users, acls
        self._report(found)

    def _report(self, found: CopiedUsers) -> None:
        """Log the changes that need a password.

        A user that is missing in one round only is being created: the master comes first.
        """
        lacking = [name for name in found.missing if name in self._missing]
        self._missing = found.missing
        if lacking:
            names = ", ".join(lacking)
            self._remark_once(
                f"this slave lacks the users {names}, whose passwords the master does not show; "
                "run 'firetrail user create NAME --broker HOST:PORT' with the address of this "
                "slave, or stop it and copy config/firetrailUsers.json"
            )
        if found.unverified:
            self._remark_once(
                "passwords are not compared, because the master does not show them; if one was "
                "changed while this slave was down, run 'firetrail user update NAME' again"
            )

    def _remark_once(self, remark: str) -> None:
        if remark not in self._remarks:
            self._remarks.add(remark)
            _log.warning("users of master %s: %s", self._master, remark)


def _refusal(error: RequestError) -> str:
    if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return "they are not compared, because it has no users: its access control is off"
    return (
        f"they are not compared, because it refuses to list them ({error}); "
        "let this slave sign as a super user"
    )
