"""The users that client ids belong to.

A client chooses its id, and sends it in heartbeats, in requests for locks, and with every gRPC
call. Brokers send replies, questions about transactions and notifications to the client with an id.
So an id belongs to the user who used it first. Any number of processes and connections of this user
may use it, one after the other or at the same time.
"""

from collections.abc import Callable
from typing import NamedTuple

from firetrail.auth.caller import NO_PERMISSION, Caller
from firetrail.errors import RequestError
from firetrail.text import printable

HELD_S = 600.0
"""The time for which an id belongs to a user after it was last used. A client that was disconnected
or is being restarted still gets the replies to its requests, which rarely wait for longer."""
IDS_PER_USER = 10_000
"""Maximum number of ids of one user, such as the clients of a proxy. A new one replaces the least
recently used one."""
IDS_MAX = 30_000
"""Maximum number of ids of all users. The user with the most ids loses one, so a few users cannot
displace others."""
ID_SHOWN = 64
"""Maximum length of an id in a message."""


class Ownership(NamedTuple):
    """The user that an id belongs to, and for how long."""

    user: str
    until: float


class ClientOwners:
    """All ids that belong to a user.

    Args:
        now: A monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._owners: dict[str, Ownership] = {}
        self._ids: dict[str, dict[str, None]] = {}  # by user; the one unused longest first

    def __len__(self) -> int:
        return len(self._owners)

    def claim(self, client_id: str, caller: Caller) -> None:
        """Note that a caller uses an id, which from then on belongs to its user.

        Raises:
            RequestError: It belongs to another user.
        """
        self.check(client_id, caller)
        user = caller.identity
        if client_id in self._owners:
            del self._ids[user][client_id]  # it becomes the one that was used last
        else:
            self._make_room(user)
        self._ids.setdefault(user, {})[client_id] = None
        self._owners[client_id] = Ownership(user, self._now() + HELD_S)

    def check(self, client_id: str, caller: Caller) -> None:
        """Raise RequestError if an id belongs to another user than a caller's."""
        owner = self._owners.get(client_id)
        if owner is None or owner.user == caller.identity:
            return
        if owner.until <= self._now():
            self._drop(client_id)
            return
        raise owned_by_another(client_id)

    def release(self, client_id: str, caller: Caller) -> None:
        """Release an id of a caller: its client has ended and waits for no answers."""
        owner = self._owners.get(client_id)
        if owner is not None and owner.user == caller.identity:
            self._drop(client_id)

    def _make_room(self, user: str) -> None:
        """Drop ids, if there are too many for a new one of a user."""
        own = self._ids.get(user, {})
        if len(own) >= IDS_PER_USER:
            self._drop(next(iter(own)))
        if len(self._owners) >= IDS_MAX:
            most = max(self._ids.values(), key=len)
            self._drop(next(iter(most)))

    def _drop(self, client_id: str) -> None:
        user = self._owners.pop(client_id).user
        ids = self._ids[user]
        del ids[client_id]
        if not ids:
            del self._ids[user]


def owned_by_another(client_id: str) -> RequestError:
    """Return the refusal of a request with the client id of another user."""
    return RequestError(
        NO_PERMISSION,
        f"client {printable(client_id, ID_SHOWN)} belongs to another user; use another client id, "
        f"or wait until this one was not used for {HELD_S:g} s",
    )
