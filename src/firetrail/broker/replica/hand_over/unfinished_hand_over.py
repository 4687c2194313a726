"""Hand-overs that were interrupted, on both sides.

A replica notes durably that it takes over before it asks the master to step down. If it stops or
crashes before it is the master, there may be no master. When it runs again, it asks the former
master, and then does one of the following:

- The master has not stepped down, or is the master again: nothing is left to do.
- It has stepped down for this replica, which has the whole log: the hand-over is finished.
- It has stepped down, but this replica lacks the end of the log, as after a power failure: the
  former master is made the master again.
- It does not answer: it is asked again until it does, or until an administrator decides.

The former master notes that it has stepped down, until it has found a master to follow. If it finds
none, an administrator can make it the master again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from firetrail.broker.replica.hand_over.hand_over import HandOver
from firetrail.broker.replica.replicated_broker import ReplicatedBroker, newest_epoch
from firetrail.broker.replica.saved_role import HandOverNote, SavedRole
from firetrail.errors import FiretrailError
from firetrail.pace.reminders import Reminders
from firetrail.remoting.messages.replica_bodies import HandOverReport, ReplicaStatus
from firetrail.replication.replica.follower_status import FollowerState
from firetrail.store.settings.store_config import BrokerRole

PAUSE_S = 1.0
"""Pause between two attempts to settle a hand-over."""
SUCCESSOR_S = 60.0
"""After this time without a master, a former master warns that its successor is missing."""
NOT_ANSWERED = "it does not answer"

_log = logging.getLogger(__name__)


def unfinished_remark(saved: SavedRole, own: str, reason: str = "") -> str:
    """Return a remark about an unfinished hand-over, with its remedy; empty without one.

    Args:
        saved: The saved role of one of the two brokers.
        own: ``ip:port`` of this broker, for the command.
        reason: The reason why it could not be finished. Default: empty, if the broker does not run.
    """
    force = f"'firetrail replica promote {own} --force'"
    if saved.taking_over is not None:
        master = saved.taking_over.master
        why = f": {reason}" if reason else ""
        return (
            f"{master} was asked to step down for this broker, and the hand-over is not finished"
            f"{why}; it is finished or undone when {master} and this broker run. If {master} is "
            f"lost, use {force}"
        )
    if saved.stepped_down is not None:
        successor = saved.stepped_down.successor
        return (
            f"this broker has stepped down for {successor}, which is not known to be the master "
            f"yet; start {successor}, or make this broker the master again with {force}"
        )
    return ""


class UnfinishedHandOver:
    """Settles a hand-over that is noted in the saved role of a broker."""

    def __init__(
        self,
        broker: ReplicatedBroker,
        become_master: Callable[[BrokerRole, int], Awaitable[None]],
        enter: Callable[[str], None],
    ) -> None:
        """Initialize.

        Args:
            broker: The broker.
            become_master: Makes it the master with a role and an epoch.
            enter: Called with the name of each step; an empty one after the last.
        """
        self._broker = broker
        self._become_master = become_master
        self._enter = enter
        self._task: asyncio.Task[None] | None = None
        self._reason = ""
        self._is_undoing = False
        self._reminders = Reminders(_now)

    @property
    def report(self) -> HandOverReport | None:
        """The hand-over that is not finished; None if there is none."""
        saved = self._broker.roles.saved
        note = saved.hand_over if saved is not None else None
        if saved is None or note is None:
            return None
        if note is saved.stepped_down and self._has_found_master:
            return None  # the note is removed soon
        remark = unfinished_remark(saved, self._broker.address, self._reason)
        return HandOverReport(note.master, note.successor, note.epoch, remark)

    def start(self, *, undo: bool = False) -> None:
        """Settle the hand-over that is noted, if there is one; with ``undo``, do not finish it."""
        self.give_up()
        saved = self._broker.roles.saved
        self._reason, self._is_undoing = "", undo
        if saved is None:
            return
        loop = asyncio.get_running_loop()
        if saved.taking_over is not None:
            self._task = loop.create_task(self._settle(saved.taking_over))
        elif saved.stepped_down is not None:
            self._task = loop.create_task(self._await_master(saved.stepped_down))

    def give_up(self) -> None:
        """Leave the hand-over to an administrator."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def stop(self) -> None:
        """Leave the hand-over to the next start."""
        if (task := self._task) is not None:
            self.give_up()
            await asyncio.gather(task, return_exceptions=True)

    def _remind(self) -> None:
        """Log that the hand-over is not finished, at growing intervals."""
        report = self.report
        if report is not None and self._reminders.is_due(report.remark):
            _log.warning("%s", report.remark)

    # -- on the replica -----------------------------------------------------------------------

    async def _settle(self, note: HandOverNote) -> None:
        hand_over = HandOver(self._broker, note.master, note.successor, self._enter)
        _log.warning("the hand-over from %s to this broker was interrupted", note.master)
        try:
            while not await self._try_settle(hand_over, note):
                self._remind()
                await asyncio.sleep(PAUSE_S)
        finally:
            await hand_over.close()

    async def _try_settle(self, hand_over: HandOver, note: HandOverNote) -> bool:
        """Finish or undo the hand-over; return whether its outcome is known."""
        try:
            status = await hand_over.cancel()
            if status is None or status.step:
                self._reason = NOT_ANSWERED if status is None else f"it is {status.step}"
                return False
            if outcome := self._known_outcome(status, note):
                _log.warning("the hand-over from %s is over: %s", note.master, outcome)
                self._broker.roles.end_hand_over()
                return True
            if self._is_undoing or self._lacks(status):
                return await self._undo(hand_over, note)
            await hand_over.copy_tables()
            await self._become_master(BrokerRole(note.successor_role), note.epoch)
        except Exception as error:
            if not isinstance(error, FiretrailError | OSError):
                _log.exception("the hand-over from %s could not be finished", note.master)
            self._reason = str(error) or type(error).__name__
            self._is_undoing = True
            return False
        finally:
            self._enter("")
        return True

    def _known_outcome(self, status: ReplicaStatus, note: HandOverNote) -> str:
        """Return the outcome of the hand-over without this broker; empty if there is none."""
        if not status.is_slave:
            return "it is the master"
        found = status.hand_over
        expected = (note.successor, note.epoch)
        if found is None or (found.successor, found.epoch) != expected:
            return (
                "it is a slave, but not of this broker; if there is no master, promote one of the "
                "two with --force"
            )
        registered, newest = self._broker.registered_epoch, newest_epoch(self._broker)
        if newest > note.epoch or registered == note.epoch:
            return f"another master has epoch {newest}"
        return ""

    def _lacks(self, status: ReplicaStatus) -> bool:
        """Whether this replica has lost the end of the log, which it had."""
        own_end = self._broker.broker_store.log.max_offset
        if own_end >= status.max_offset:
            return False
        self._reason = (
            f"this replica has the log up to {own_end}, {status.address} up to {status.max_offset}"
        )
        return True

    async def _undo(self, hand_over: HandOver, note: HandOverNote) -> bool:
        _log.warning("%s is made the master again: %s", note.master, self._reason)
        if not await hand_over.restore(note):
            return False
        self._broker.roles.end_hand_over()
        return True

    # -- on the former master -----------------------------------------------------------------

    async def _await_master(self, note: HandOverNote) -> None:
        """Follow the successor, wait until a master is found, and warn if it takes long."""
        if self._broker.replica is not None:
            self._broker.replica.expect(note.successor)
            await self._broker.replica.trust()
        began = _now()
        while not self._has_found_master:
            if _now() - began > SUCCESSOR_S:
                self._remind()
            await asyncio.sleep(PAUSE_S)
        self._broker.roles.end_hand_over()

    @property
    def _has_found_master(self) -> bool:
        replica = self._broker.replica
        if replica is None or replica.is_checked:
            return True
        return replica.follower.status.state in (FollowerState.DIVERGED, FollowerState.STUCK)


def _now() -> float:
    return asyncio.get_running_loop().time()
