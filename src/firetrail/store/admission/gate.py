"""The gate that lets messages into the store, or refuses them with a reason."""

import logging
from enum import Enum

from firetrail.store.admission.fence import Fence, KnownFence
from firetrail.system import Threads


class Closure(Enum):
    """The reasons for refusing puts; each is lifted separately."""

    CLOSED = "the store is closed"
    SLAVE = "the store is a slave"
    FENCED = "the broker must not act as the master"
    HANDOVER = "the broker hands over to another master"
    DISK_FULL = "the disk is nearly full"
    FAILED = "writing was given up"


_TEMPORARY = {Closure.FENCED, Closure.HANDOVER, Closure.DISK_FULL}
"""Reasons that end without an operator."""
_LOGGED = {Closure.DISK_FULL: logging.WARNING, Closure.FAILED: logging.ERROR}

_log = logging.getLogger(__name__)


class Gate:
    """Accepts puts while there is no reason to refuse them."""

    def __init__(self, threads: Threads) -> None:
        self._reasons: dict[Closure, str] = {}
        self._guard = threads.lock()
        self.refusal = ""
        """The reason why puts are refused; empty while they are accepted."""
        self.is_temporary = True
        """Whether all reasons end by themselves."""
        self.fence: Fence = KnownFence()
        """Allows acknowledgements; a member of a group sets one that asks the clock."""

    def shut(self, closure: Closure, detail: str = "") -> None:
        """Refuse puts for this reason, in addition to others."""
        with self._guard:
            is_news = closure not in self._reasons
            reason = f"{closure.value}: {detail}" if detail else closure.value
            self._reasons[closure] = reason
            self.is_temporary = self._reasons.keys() <= _TEMPORARY
            self.refusal = "; ".join(self._reasons.values())
        if is_news and closure in _LOGGED:
            _log.log(_LOGGED[closure], "the store refuses messages from now on: %s", reason)

    def lift(self, closure: Closure) -> None:
        """Remove this reason."""
        with self._guard:
            was = self._reasons.pop(closure, None)
            self.is_temporary = self._reasons.keys() <= _TEMPORARY
            self.refusal = "; ".join(self._reasons.values())
            is_over = self._reasons.keys() <= {Closure.SLAVE}  # a slave takes those of its master
        if was is not None and closure in _LOGGED and is_over:
            _log.warning("the store accepts messages again; it refused them because %s", was)

    def is_shut(self, closure: Closure) -> bool:
        """Return whether this is one of the reasons to refuse puts."""
        return closure in self._reasons

    def refusal_besides(self, closure: Closure) -> str:
        """Return why puts would be refused without this reason; empty if they would not be."""
        with self._guard:
            return "; ".join(text for reason, text in self._reasons.items() if reason != closure)

    def shut_for_good(self, reason: str) -> None:
        """Refuse puts for good, without taking a lock that a thread lost in a fork may hold."""
        self._reasons = {Closure.CLOSED: reason}
        self.is_temporary = False
        self.refusal = reason
