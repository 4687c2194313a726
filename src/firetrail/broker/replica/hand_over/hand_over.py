"""The requests of a replica that takes over from its master, one method per step.

1. HAND_OVER: the master refuses messages from now on, and returns the end of its log. 2. The
replica waits until its log ends there. 3. STEP_DOWN: the master becomes a slave. From now on
there is no master. 4. The replica copies the tables of the former master for the last time, so no
offset goes back.

:meth:`HandOver.restore` undoes all of them.
"""

import asyncio
import logging
from collections.abc import Callable

from firetrail.broker.replica.replicated_broker import ReplicatedBroker
from firetrail.broker.replica.role_requests import Reachability, ask_status, try_ask_status
from firetrail.broker.replica.saved_role import HandOverNote
from firetrail.broker.replica.slave_synchronize import table_failures
from firetrail.errors import ReplicationError, RequestError
from firetrail.pace.reminders import Reminders
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.replica_bodies import ReplicaStatus
from firetrail.remoting.messages.replica_headers import (
    HandOverHeader,
    PromoteHeader,
    StepDownHeader,
)
from firetrail.remoting.wire.codes import RequestCode, ResponseCode

CATCH_UP_S = 30.0
"""The time that a replica may take to receive the end of the log; less than the time for which a
master that hands over refuses messages."""
SILENT_S = 8.0
"""A master that neither answers nor sends its log for this time counts as lost."""
STEP_DOWN_S = 60.0
"""The time that the former master may take to become a slave."""
RESTORE_S = 8.0
"""The time that a failed promotion waits for the former master to become the master again.
Afterwards it is asked in the background."""
RESTORE_PAUSE_S = 0.5
"""Pause between two checks of a former master that is made the master again."""
POLL_S = 0.05
TABLE_ATTEMPTS = 3

_log = logging.getLogger(__name__)


class HandOver:
    """A hand-over of the master to this replica."""

    def __init__(
        self, broker: ReplicatedBroker, master: str, successor: str, enter: Callable[[str], None]
    ) -> None:
        """Initialize.

        Args:
            broker: The broker of the replica.
            master: ``ip:port`` of the master.
            successor: ``ip:port`` of the replica, as the master was told or will be.
            enter: Called with the name of each step.
        """
        self._broker = broker
        self._master = master
        self._successor = successor
        self._enter = enter
        self._client = RemotingClient(access=broker.client_access)
        self._reminders = Reminders(_now)

    async def close(self) -> None:
        """Close the connection to the master."""
        await self._client.close()

    async def begin(self, member: int = 0) -> ReplicaStatus:
        """Make the master refuse messages; return its last status.

        Args:
            member: The number of this replica in its group. Default: 0, for no group.
        """
        self._enter("asking the master to hand over")
        header = HandOverHeader(self._successor, member=member)
        try:
            return await ask_status(self._client, self._master, RequestCode.HAND_OVER, header)
        except RequestError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            raise ReplicationError(
                f"the master at {self._master} cannot hand over, because it is not a Firetrail "
                "broker; stop it, and promote the replica with --force when it has received "
                "everything"
            ) from None

    async def cancel(self) -> ReplicaStatus | None:
        """Let the master accept messages again if it still is one; return its status.

        A request to step down that is still on its way is refused afterwards. None is returned if
        the master does not answer.
        """
        header = HandOverHeader(self._successor, cancel=True)
        code = RequestCode.HAND_OVER
        return await try_ask_status(self._client, self._master, code, header, self._reminders)

    async def catch_up(self, end: int) -> None:
        """Wait until this replica has the log of the master, which ends at ``end``.

        Raises:
            ReplicationError: The master is lost, or too slow.
        """
        self._enter("receiving the end of the log")
        receiving = asyncio.ensure_future(self._receive(end))
        losing = asyncio.ensure_future(self._loss())
        tasks = [receiving, losing]
        try:
            await asyncio.wait(tasks, timeout=CATCH_UP_S, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                raise ReplicationError(self._why_not_received(end, losing))
            receiving.result()
        except BaseException:
            await self.cancel()
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive(self, end: int) -> None:
        while self._broker.broker_store.log.max_offset < end:
            await asyncio.sleep(POLL_S)

    async def _loss(self) -> str:
        """Wait until the master counts as lost; return the reason."""
        reachability, heard_at, known_end = Reachability(_now), _now(), -1
        while True:
            status = await try_ask_status(
                self._client, self._master, reminders=self._reminders, reachability=reachability
            )
            own_end = self._broker.broker_store.log.max_offset
            if status is not None or own_end > known_end:
                heard_at, known_end = _now(), own_end
            if reachability.is_gone:
                return self._gone
            if _now() - heard_at > SILENT_S:
                return f"the master at {self._master} has been silent for {SILENT_S:g} seconds"
            await asyncio.sleep(POLL_S)

    @property
    def _gone(self) -> str:
        return f"the master at {self._master} no longer runs"

    def _why_not_received(self, end: int, losing: asyncio.Future[str]) -> str:
        own_end = self._broker.broker_store.log.max_offset
        if losing.done():
            return (
                f"{losing.result()}; this replica has its log up to {own_end} of {end}. If the "
                "master is lost, promote the replica with --force, which loses the rest"
            )
        return (
            f"the replica did not reach the end of the master's log at {end} within "
            f"{CATCH_UP_S:g} seconds"
        )

    async def step_down(self, epoch: int) -> None:
        """Make the master a slave of this replica, which will begin an epoch."""
        self._enter("waiting for the master to step down")
        header = StepDownHeader(self._successor, self._broker.config.broker_id, epoch)
        try:
            await ask_status(self._client, self._master, RequestCode.STEP_DOWN, header)
        except OSError as error:  # it may still step down
            _log.warning("the master %s has not answered: %s", self._master, error)
        deadline = _now() + STEP_DOWN_S
        reachability = Reachability(_now)
        while True:
            status = await try_ask_status(
                self._client, self._master, reminders=self._reminders, reachability=reachability
            )
            if status is not None and not status.step:
                if status.is_slave:
                    return
                raise ReplicationError(
                    f"the master at {self._master} did not step down: {status.step_error}"
                )
            if reachability.is_gone:
                raise ReplicationError(self._gone)
            if _now() > deadline:
                raise ReplicationError(
                    f"the master at {self._master} did not become a slave within {STEP_DOWN_S:g} "
                    "seconds; look at its log"
                )
            await asyncio.sleep(POLL_S)

    async def receive_lease(self, member: int) -> None:
        """Make the master of a group, which is frozen, give its lease to this member.

        Args:
            member: The number of this member.
        """
        self._enter("waiting for the lease of the group")
        header = StepDownHeader(self._successor, member)
        try:
            await ask_status(self._client, self._master, RequestCode.STEP_DOWN, header)
        except OSError as error:  # it may have given it nevertheless
            _log.warning("the master %s has not answered: %s", self._master, error)

    async def copy_tables(self) -> None:
        """Copy the tables of the former master, which no longer change."""
        self._enter("copying topics, groups and offsets")
        replica = self._broker.replica
        assert replica is not None
        for _ in range(TABLE_ATTEMPTS):
            if await replica.tables.copy(self._master):
                break
        else:
            raise ReplicationError(
                f"the tables of {self._master} could not be copied: "
                + "; ".join(table_failures(replica.tables.status.failures))
            )
        status = await ask_status(self._client, self._master)
        own_end = self._broker.broker_store.log.max_offset
        if status.max_offset > own_end:
            raise ReplicationError(
                f"the log of {self._master} ends at {status.max_offset}, that of this replica at "
                f"{own_end}"
            )

    async def restore(self, note: HandOverNote) -> bool:
        """Make the former master the master again, or let it continue if it still is.

        Returns:
            Whether it is the master. If not, it did not answer, or could not change its role.
        """
        self._enter("making the former master the master again")
        force = PromoteHeader(force=True, role=note.role)
        deadline = _now() + RESTORE_S
        while _now() < deadline:
            status = await self.cancel()
            if status is not None and not status.step:
                if not status.is_slave:
                    return True
                code = RequestCode.PROMOTE_REPLICA
                await try_ask_status(self._client, self._master, code, force, self._reminders)
            await asyncio.sleep(RESTORE_PAUSE_S)
        return False


def _now() -> float:
    return asyncio.get_running_loop().time()
