"""The errors that keep a member from winning or keeping the lease, and what the log says of them.

A member does several kinds of work with the consensus engine, and each can fail while the others
succeed: an engine without space answers reads and renews leases, but changes nothing. So each kind
has an error of its own, and failover works again when none is left.
"""

import logging
from enum import StrEnum
from typing import NamedTuple

from firetrail.errors import ElectionError, NotReachedError
from firetrail.pace.reminders import Reminders
from firetrail.replication.group.group_memory import is_full_disk
from firetrail.replication.group.group_status import GroupProblem
from firetrail.system import System

LASTING_S = 40.0
"""The time for which an error lasts although its work is not due. Some requests are only repeated
after the time of a lease, or after 15 s (:mod:`firetrail.replication.group.confirmed_entry`)."""

_log = logging.getLogger(__name__)


class GroupWork(StrEnum):
    """The kinds of work of a member; the status shows the error of the first one that fails."""

    LEASE = "lease"
    """Renewals of the lease."""
    CHANGES = "changes"
    """Campaigns and all other changes of the group."""
    WATCH = "watch"
    """Reads of the group."""


class _Failure(NamedTuple):
    text: str
    problem: GroupProblem
    at: float


class FailoverErrors:
    """Notes the errors of several threads."""

    def __init__(self, system: System) -> None:
        """Begin without errors; ``system`` has the clock and the locks."""
        self._now = system.clock.monotonic
        self._guard = system.threads.lock()
        self._reminders = Reminders(self._now)
        self._failures: dict[GroupWork, _Failure] = {}
        self._is_silent = False

    @property
    def current(self) -> tuple[str, GroupProblem]:
        """The error that is shown, and its kind; an empty text if there is none."""
        with self._guard:
            for work in GroupWork:
                if work in self._failures:
                    failure = self._failures[work]
                    return failure.text, failure.problem
        return "", GroupProblem.NONE

    def note(self, work: GroupWork, error: Exception) -> None:
        """Note that work has failed.

        An error that lasts is logged at growing intervals, an unexpected one with its traceback.

        Args:
            work: The kind of work.
            error: The error.
        """
        text = str(error) or type(error).__name__
        problem = GroupProblem.FULL_DISK if is_full_disk(error) else GroupProblem.NO_COORDINATOR
        is_expected = isinstance(error, NotReachedError | ElectionError)
        with self._guard:
            self._failures[work] = _Failure(text, problem, self._now())
            if not self._is_silent and self._reminders.is_due(text):
                _log.warning(
                    "failover does not work at the moment: %s; will retry",
                    text,
                    exc_info=None if is_expected else error,
                )

    def done(self, work: GroupWork) -> None:
        """Note that work has succeeded."""
        with self._guard:
            self._forget(work)

    def idle(self, work: GroupWork) -> None:
        """Note that no work of a kind is due; its error ends :data:`LASTING_S` after it failed."""
        with self._guard:
            failure = self._failures.get(work)
            if failure is not None and self._now() - failure.at >= LASTING_S:
                self._forget(work)

    def silence(self) -> None:
        """Log nothing from now on: the member stops."""
        with self._guard:
            self._is_silent = True

    def _forget(self, work: GroupWork) -> None:
        failure = self._failures.pop(work, None)
        if failure is None or self._failures:
            return
        self._reminders.forget()
        if not self._is_silent:
            _log.info("failover works again; it did not because of: %s", failure.text)
