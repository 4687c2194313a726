"""The number of a member, which the engine binds to the identity of its store."""

import logging
from collections.abc import Callable

from firetrail.replication.group.election import Coordinator
from firetrail.replication.group.group_check import store_obstacle
from firetrail.replication.group.group_view import UNKNOWN, GroupView

_log = logging.getLogger(__name__)


class MemberNumber:
    """Claims the number of a member, and tells the others its address.

    Attributes:
        identity: The identity of the store; empty before it is known.
    """

    def __init__(self, coordinator: Coordinator, number: int, address: str) -> None:
        """Prepare; nothing is sent.

        Args:
            coordinator: The consensus engine.
            number: The number of the member.
            address: ``ip:port`` of its broker.
        """
        self._coordinator = coordinator
        self._number = number
        self._address = address
        self._bound = ""  # the identity to which the engine has bound the number
        self.identity = ""

    @property
    def is_own(self) -> bool:
        """Whether the number is known to be that of this store."""
        return bool(self.identity) and self._bound == self.identity

    @property
    def is_foreign(self) -> bool:
        """Whether the number is known to be that of another store."""
        return bool(self._bound) and not self.is_own

    def store_obstacle(self, view: GroupView) -> str:
        """Return why the store cannot be that of the member; empty if it can.

        Args:
            view: The state of the group.
        """
        identities = dict(view.identities)
        if self._bound:
            identities[self._number] = self._bound
        return store_obstacle(identities, self._number, self.identity)

    def forget(self) -> None:
        """Claim the number again: the engine has lost it."""
        self._bound = ""

    def may_claim(self, view: GroupView) -> bool:
        """Return whether the number is to be claimed now.

        Args:
            view: The state of the group.
        """
        if not self.identity or self._bound or view is UNKNOWN:
            return False
        return self._number in view.identities or not self.store_obstacle(view)

    def claim(self, view: GroupView) -> None:
        """Bind the number to this store, unless it is bound to another one.

        Args:
            view: The state of the group.

        Raises:
            NotReachedError: The engine cannot be reached.
            ElectionError: It refuses the request.
        """
        self._bound = self._coordinator.claim(self._number, self.identity)
        if not self.is_own:
            _log.error("this broker cannot be a member of the group: %s", self.store_obstacle(view))

    def pending_announcement(self, view: GroupView) -> Callable[[], None] | None:
        """Return the request that tells the others the address; None if they know it.

        Args:
            view: The state of the group.
        """
        if not self.is_own or view.addresses.get(self._number, "") == self._address:
            return None
        return lambda: self._coordinator.announce(self._number, self._address)
