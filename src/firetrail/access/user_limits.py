"""Limits for each user: connections, requests and bytes."""

import asyncio
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet

from firetrail.auth.policies import User
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.servers.addresses import RequestRates
from firetrail.settings.server_limits import ServerLimitSettings

TOO_FAST = "its user sends more than is allowed per second"
"""The reasons to stop reading from a connection."""


class UserSession(Protocol):
    """A connection, or a client of the gRPC service."""

    @property
    def is_closed(self) -> bool:
        """Whether it has ended."""


class UserShare(RequestRates):
    """The connections and rates of one user."""

    __slots__ = ("held", "sessions")

    def __init__(self, limits: ServerLimitSettings, now: float) -> None:
        super().__init__(limits.request_rate_per_user, limits.byte_rate_per_user, now)
        self.sessions: WeakSet[UserSession] = WeakSet()
        self.held: set[Connection] = set()  # the connections that are not read from


class UserLimits:
    """The connections and rates of all users, and their limits.

    Super users, which are people and brokers, have no limits. Only requests of authenticated
    senders count, so a user cannot use up the share of another one.

    Args:
        limits: The settings.
        now: A monotonic clock in seconds.
    """

    def __init__(self, limits: ServerLimitSettings, now: Callable[[], float]) -> None:
        self._limits = limits
        self._now = now
        self._shares: dict[str, UserShare] = {}
        self._has_rates = bool(limits.request_rate_per_user or limits.byte_rate_per_user)
        self.has_byte_rate = bool(limits.byte_rate_per_user)

    def enter(self, user: User, session: UserSession) -> str | None:
        """Count a connection or a client; return the reason if it is refused, else None."""
        most = self._limits.connections_per_user
        if not most or user.is_super:
            return None
        sessions = self._share(user).sessions
        if len(sessions) >= most:
            for ended in [each for each in sessions if each.is_closed]:
                sessions.discard(ended)
        if len(sessions) >= most and session not in sessions:
            return (
                f"user {user.name} has {len(sessions)} connections, the limit for a user; close "
                "some, or raise connections_per_user"
            )
        sessions.add(session)
        return None

    def charge(self, user: User, connection: Connection, size: int) -> None:
        """Count a request, and pause reading from its connection while its user exceeds the rates.

        Args:
            user: The user.
            connection: The connection that the request came over.
            size: The bytes of the request.
        """
        if not self._has_rates or user.is_super:
            return
        share = self._share(user)
        pause = share.charge(1, size, self._now())
        if pause and connection not in share.held:
            share.held.add(connection)
            connection.hold(TOO_FAST)
            self._resume_later(pause, share, connection)

    def _resume_later(self, pause: float, share: UserShare, connection: Connection) -> None:
        asyncio.get_running_loop().call_later(pause, self._resume, share, connection)

    def _resume(self, share: UserShare, connection: Connection) -> None:
        """Read from a connection again, unless requests were charged during the pause."""
        pause = share.pause_s(self._now())
        if pause and not connection.is_closed:
            self._resume_later(pause, share, connection)
            return
        share.held.discard(connection)
        connection.release(TOO_FAST)

    def charge_call(self, user: User, size: int) -> str | None:
        """Count a gRPC call; return the reason if it is refused, else None.

        Args:
            user: The user.
            size: The bytes of the call, if there is a limit for them.
        """
        if not self._has_rates or user.is_super:
            return None
        if self._share(user).admits(size, self._now()):
            return None
        return (
            f"user {user.name} sends more than request_rate_per_user or byte_rate_per_user "
            "allows; send less, or raise the limit"
        )

    def _share(self, user: User) -> UserShare:
        share = self._shares.get(user.name)
        if share is None:
            share = self._shares[user.name] = UserShare(self._limits, self._now())
        return share


def user_limits(limits: ServerLimitSettings, now: Callable[[], float]) -> UserLimits | None:
    """Return the limits of users that the settings ask for; None if there are none.

    Args:
        limits: The settings.
        now: A monotonic clock in seconds.
    """
    if limits.connections_per_user or limits.request_rate_per_user or limits.byte_rate_per_user:
        return UserLimits(limits, now)
    return None
