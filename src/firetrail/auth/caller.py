"""The sender of a request, after authentication."""

from collections.abc import Iterable

from firetrail.auth.policies import User, refusal
from firetrail.auth.resources import Action, Requirement, ResourceType, need
from firetrail.errors import RequestError

NO_PERMISSION = 16
"""RocketMQ's response code for refused requests."""
NO_USER = "username cannot be null."

_SEEING = (Action.PUB, Action.SUB, Action.GET)


class Caller:
    """The sender of a request, its address, and whether its permissions are checked.

    Handlers use it to check permissions for records whose topic the request did not name.

    Args:
        user: The user; None for a sender that did not have to authenticate itself.
        source: The IP address of the client.
        is_checked: Whether permissions are checked. If not, an authenticated user may do everything
            that does not require a super user.
        trusted_as: The name of a user, or an empty text, with which requests from the address are
            trusted, if the sender would be checked or refused otherwise. Default: the trust in the
            address changes nothing.

    Attributes:
        is_super: Whether the sender may do everything.
    """

    __slots__ = ("is_checked", "is_super", "source", "trusted_as", "user")

    def __init__(
        self, user: User | None, source: str, *, is_checked: bool, trusted_as: str | None = None
    ) -> None:
        self.user = user
        self.source = source
        self.is_checked = is_checked
        self.trusted_as = trusted_as
        self.is_super = user is not None and user.is_super

    @property
    def user_name(self) -> str:
        """The name of the user; empty for a sender without one."""
        return "" if self.user is None else self.user.name

    @property
    def identity(self) -> str:
        """The owner of the client: the user, or the name with which its address is trusted."""
        return self.user_name or self.trusted_as or ""

    @property
    def is_authenticated(self) -> bool:
        """Whether the sender is known: by its user, or by an address that is trusted."""
        return self.user is not None or self.trusted_as is not None

    def refusal(self, needs: Iterable[Requirement]) -> str | None:
        """Return why one of the needs is not met; None if all are."""
        if not self.is_checked:
            return None
        if self.user is None:
            return NO_USER
        for each in needs:
            why = refusal(self.user, each, self.source)
            if why is not None:
                return why
        return None

    def require(self, *needs: Requirement) -> None:
        """Raise RequestError unless all needs are met."""
        why = self.refusal(needs)
        if why is not None:
            raise RequestError(NO_PERMISSION, why)

    def require_super(self, what: str) -> None:
        """Raise RequestError unless the sender is a super user."""
        if not self.is_super:
            name = NO_USER if self.user is None else f"{self.user.subject} is not a super user"
            raise RequestError(NO_PERMISSION, f"{what}: {name}")

    def may_list(self, topics: Iterable[str]) -> list[str]:
        """Return the topics whose names the sender may see: all, or those it may use."""
        listing = need(ResourceType.TOPIC, "*", Action.LIST)
        if self.refusal([listing]) is None:
            return list(topics)
        return [
            topic
            for topic in topics
            if self.refusal([need(ResourceType.TOPIC, topic, *_SEEING)]) is None
        ]


def proves(caller: Caller | None) -> bool:
    """Return whether a request that succeeded proves its connection to be that of a client.

    Connections that are not proven are those of strangers, who may keep little and have to give way
    to others. Every request proves one without access control; with it, those with a valid
    signature or certificate do.

    Args:
        caller: The sender of the request; None if there is no access control.
    """
    return caller is None or caller.is_authenticated
