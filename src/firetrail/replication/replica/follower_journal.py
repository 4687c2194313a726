"""The journal of a replica: notes and log lines about its state."""

import logging

from firetrail.pace.reminders import Reminders
from firetrail.replication.replica.follower_status import FollowerState
from firetrail.system import Clock

_PROBLEMS = {
    FollowerState.FAILED: "the replica cannot follow",
    FollowerState.STUCK: "the replica is stuck",
    FollowerState.DIVERGED: "the replica has diverged",
}
"""The name of each state in the log."""

_log = logging.getLogger(__name__)


class FollowerJournal:
    """The state of a replica. Changes are logged at once, and lasting states at growing intervals.

    Attributes:
        state: The present activity of the replica.
        error: The reason why it does not follow; empty if it does.
        since_ms: The time at which the state began, in milliseconds since 1970.
    """

    def __init__(self, clock: Clock, state: FollowerState, error: str) -> None:
        """Begin in a state.

        Args:
            clock: The time.
            state: The state.
            error: The reason why the replica does not follow.
        """
        self._clock = clock
        self._reminders = Reminders(clock.monotonic)
        self._was_expected = False
        self.state = state
        self.error = error
        self.since_ms = clock.now_ms()

    def enter(
        self, state: FollowerState, error: str, broker: str, own_max: int, *, may_be_expected: bool
    ) -> None:
        """Note the state, and log it if that is due.

        Args:
            state: The state.
            error: The reason why the replica does not follow.
            broker: ``ip:port`` of the master's broker.
            own_max: Where the replica's log ends.
            may_be_expected: Whether this may be expected, and is a warning only if it lasts.
        """
        is_news = state is not self.state
        self.error = error
        if is_news:
            self.state, self.since_ms = state, self._clock.now_ms()
        if state is FollowerState.CHECKING or (state is FollowerState.FOLLOWING and not is_news):
            return
        is_first = is_news or not self._was_expected
        self._was_expected = may_be_expected
        if not self._reminders.is_due(f"{state.value}: {error}"):
            return
        if state is FollowerState.FOLLOWING:
            _log.info("following master %s from offset %d", broker, own_max)
        elif state is FollowerState.WAITING:
            _log.info("master %s: %s", broker, error)
        elif is_first and may_be_expected:
            _log.info("master %s is not followed at the moment: %s", broker, error)
        else:
            _log.warning("master %s: %s: %s", broker, _PROBLEMS[state], error)

    def note_unknown_end(self, error: str) -> None:
        """Log that the master does not report the end of its log, if that is due.

        Args:
            error: Its answer, or why there is none.
        """
        if self._reminders.is_due(f"end: {error}"):
            _log.info("the end of the master's log is not known: %s", error)

    def forget(self) -> None:
        """Log every problem again: the replica has followed in between, or has another master."""
        self._reminders.forget()
