"""Changes of the master by command: planned, with a hand-over, or in an emergency.

A planned change is carried out by the replica that is promoted:

1. HAND_OVER: the master refuses messages from now on, and tells where its log ends.
2. The replica waits until its log ends there.
3. STEP_DOWN: the master becomes a slave. From now on there is no master.
4. The replica copies the tables of the former master for the last time, so no offset goes back.
5. The replica begins an epoch and becomes the master. The former one follows it.

If a step fails before the third, the master accepts messages again; it does so by itself after
``HANDOVER_S``. If one fails later, the replica asks the former master to become the master again.

In an emergency only the last step is taken. What the replica has not received is then lost, and the
former master is fenced when it comes back (:mod:`firetrail.broker.replica.fencing`).

A change ends the term in which it was requested, so the request is answered before the change
begins, and its progress can be asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

from firetrail.broker.replica.replica_service import ReplicaService
from firetrail.broker.replica.replicated_broker import (
    ReplicatedBroker,
    epoch_entries,
    replica_status,
)
from firetrail.broker.replica.role_requests import ask_status
from firetrail.broker.replica.saved_role import SavedRole
from firetrail.errors import ConfigError, FiretrailError, ReplicationError, RequestError
from firetrail.remoting.bodies import MASTER_ID
from firetrail.remoting.client import RemotingClient, split_address
from firetrail.remoting.codes import RequestCode, ResponseCode
from firetrail.remoting.command import RemotingCommand
from firetrail.remoting.connection import Connection
from firetrail.remoting.handlers import Handler
from firetrail.remoting.header import Header
from firetrail.remoting.replica_bodies import ReplicaStatus
from firetrail.remoting.replica_headers import (
    EpochHeader,
    HandOverHeader,
    PromoteHeader,
    StepDownHeader,
)
from firetrail.replication.epochs import Epoch
from firetrail.replication.follower import FollowerState
from firetrail.store.config import BrokerRole
from firetrail.store.lifecycle.gate import Closure

HANDOVER_S = 60.0
"""How long a master that hands over refuses messages while nothing else happens."""
CATCH_UP_S = 30.0
"""How long a replica may take to receive the end of the log; less than ``HANDOVER_S``."""
STEP_DOWN_S = 60.0
"""How long the former master may take to become a slave."""
LAG_MAX = 64 << 20
"""A replica that lags by more bytes than this is not promoted as planned: producers would wait."""
MASTER_ROLES = (BrokerRole.ASYNC_MASTER.value, BrokerRole.SYNC_MASTER.value)
POLL_S = 0.05
TABLE_ATTEMPTS = 3
RESTORE_ATTEMPTS, RESTORE_PAUSE_S = 5, 1.0
"""How often the former master is asked to continue after a failed promotion."""

_log = logging.getLogger(__name__)


class Promotion:
    """Handles the requests that change the role of a broker, and those about its status.

    Attributes:
        handlers: The handlers, which serve in every role and during a change.
        step: What a change is doing now; empty if there is none.
        error: Why the last change failed; empty if it did not.
    """

    def __init__(self, broker: ReplicatedBroker) -> None:
        self._broker = broker
        self._task: asyncio.Task[None] | None = None
        self._successor = ""  # the broker to which this one hands over
        self._reopening: asyncio.TimerHandle | None = None
        self.step = ""
        self.error = ""
        self.handlers: dict[int, Handler] = {
            RequestCode.PROMOTE_REPLICA: self._promote,
            RequestCode.GET_REPLICA_STATUS: self._status,
            RequestCode.HAND_OVER: self._hand_over,
            RequestCode.STEP_DOWN: self._step_down,
            RequestCode.GET_BROKER_EPOCH_CACHE: self._epochs,
        }

    async def stop(self) -> None:
        """Give up a change that is waiting for another broker."""
        self._forget_reopening()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # -- status -------------------------------------------------------------------------------

    @property
    def status(self) -> ReplicaStatus:
        """The status of the broker."""
        return replica_status(self._broker, self.step, self.error)

    def _status(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(body=self.status.encode(standard=True))

    def _epochs(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Tell the epochs. A master without any begins the first one if a replica asks."""
        broker = self._broker
        is_asked = EpochHeader.decode(request.fields).replica and not self.step
        if is_asked and broker.replica is None and not broker.epochs.epochs:
            broker.epochs.append(Epoch(1, broker.store.log_range[0]))
        return request.answer(body=epoch_entries(broker).encode(standard=True))

    # -- on the replica -----------------------------------------------------------------------

    def _promote(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = PromoteHeader.decode(request.fields)
        role = _master_role(header.role)
        self._check_idle()
        broker = self._broker
        if broker.replica is None and not self._is_fenced():
            raise _refused(f"{broker.address} is the master already")
        if broker.replica is None and not header.force:
            raise _refused(f"{broker.address} is a former master; promote it with --force")
        if not header.force:
            self._check_follows()
        _log.warning(
            "%s has requested the promotion of this broker%s",
            connection.peer,
            " without asking its master" if header.force else "",
        )
        self._begin(self._take_over(role) if header.force else self._replace_master(role))
        return request.answer(body=self.status.encode(standard=True))

    def _is_fenced(self) -> bool:
        fencing = self._broker.fencing
        return fencing is not None and fencing.is_fenced

    def _check_follows(self) -> None:
        """Raise RequestError unless this replica is close to its master."""
        assert self._broker.replica is not None
        status = self._broker.replica.follower.status
        advice = "if the master is lost, use --force, which loses what the replica has not received"
        if status.state is not FollowerState.FOLLOWING:
            raise _refused(
                f"the replica does not follow its master ({status.state.value}: {status.error}); "
                f"{advice}"
            )
        if status.lag > LAG_MAX:
            raise _refused(
                f"the replica lags by {status.lag} bytes; wait until it has caught up; {advice}"
            )

    async def _take_over(self, role: BrokerRole | None) -> None:
        """Become the master, whatever the present one says."""
        known = await self._epoch_of_master()
        epoch = max(self._broker.newest_epoch, known) + 1
        await self._become_master(role or self._last_role(), epoch)

    def _last_role(self) -> BrokerRole:
        """Return the role of the last master: this broker, or the one that it has followed."""
        own = self._broker.store.config.role
        if own is not BrokerRole.SLAVE:
            return own
        known = self._broker.slave_mark.notes.master_role
        return BrokerRole(known) if known in MASTER_ROLES else BrokerRole.ASYNC_MASTER

    async def _epoch_of_master(self) -> int:
        """Return the epoch of the present master; 0 if it does not answer."""
        replica = self._broker.replica
        if replica is None or replica.master is None:
            return 0
        client = RemotingClient()
        try:
            master = replica.master.broker
            status = await _try_ask(client, master, RequestCode.GET_REPLICA_STATUS)
            return status.epoch if status is not None else 0
        finally:
            await client.close()

    async def _replace_master(self, role: BrokerRole | None) -> None:
        """Become the master after the present one has handed over."""
        replica = self._broker.replica
        assert replica is not None and replica.master is not None
        master = replica.master.broker
        client = RemotingClient()
        try:
            before = await self._hand_over_of(client, master)
            epoch = max(self._broker.newest_epoch, before.epoch) + 1
            await self._catch_up(client, master, before.max_offset)
            try:
                await self._stop_master(client, master, epoch)
                await self._copy_tables(replica, master, client)
                await self._become_master(role or BrokerRole(before.role), epoch)
            except BaseException:
                await self._restore(client, master, before)
                raise
        finally:
            await client.close()

    async def _hand_over_of(self, client: RemotingClient, master: str) -> ReplicaStatus:
        """Make the master refuse messages; return its last status."""
        self._enter("handing over")
        header = HandOverHeader(self._broker.address)
        try:
            return await ask_status(client, master, RequestCode.HAND_OVER, header)
        except RequestError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            raise ReplicationError(
                f"the master at {master} cannot hand over, because it is not a Firetrail broker; "
                "stop it, and promote the replica with --force when it has received everything"
            ) from None

    async def _catch_up(self, client: RemotingClient, master: str, end: int) -> None:
        """Wait until this replica has the log of the master, which ends at ``end``."""
        self._enter("catching up")
        try:
            await _until(
                lambda: self._broker.store.log_range[1] >= end,
                CATCH_UP_S,
                f"the replica did not reach the end of the master's log at {end}",
            )
        except BaseException:
            header = HandOverHeader(self._broker.address, cancel=True)
            await _try_ask(client, master, RequestCode.HAND_OVER, header)
            raise

    async def _stop_master(self, client: RemotingClient, master: str, epoch: int) -> None:
        """Make the master a slave."""
        self._enter("stepping down")
        own = self._broker
        header = StepDownHeader(own.address, own.config.broker_id, epoch)
        try:
            await ask_status(client, master, RequestCode.STEP_DOWN, header)
        except OSError as error:  # it may step down all the same
            _log.warning("the master %s has not answered: %s", master, error)
        await self._wait_for_slave(client, master)

    async def _wait_for_slave(self, client: RemotingClient, master: str) -> None:
        deadline = asyncio.get_running_loop().time() + STEP_DOWN_S
        while True:
            status = await _try_ask(client, master, RequestCode.GET_REPLICA_STATUS)
            if status is not None and not status.step:
                if status.role == BrokerRole.SLAVE.value:
                    return
                raise ReplicationError(
                    f"the master at {master} did not step down: {status.step_error}"
                )
            if asyncio.get_running_loop().time() > deadline:
                raise ReplicationError(
                    f"the master at {master} did not become a slave within {STEP_DOWN_S:g} "
                    "seconds; look at its log, and promote the replica with --force once it does "
                    "not accept messages"
                )
            await asyncio.sleep(POLL_S)

    async def _copy_tables(
        self, replica: ReplicaService, master: str, client: RemotingClient
    ) -> None:
        """Copy the tables of the former master, which nobody changes any more."""
        self._enter("copying tables")
        for _ in range(TABLE_ATTEMPTS):
            if await replica.tables.copy(master):
                break
        else:
            raise ReplicationError(
                f"the tables of {master} could not be copied: {replica.tables.status.failures}"
            )
        status = await ask_status(client, master, RequestCode.GET_REPLICA_STATUS)
        own_end = self._broker.store.log_range[1]
        if status.max_offset != own_end:
            raise ReplicationError(
                f"the log of {master} has grown during the change, from {own_end} to "
                f"{status.max_offset}"
            )

    async def _restore(self, client: RemotingClient, master: str, before: ReplicaStatus) -> None:
        """Make the former master the master again, or let it continue if it is one still."""
        _log.warning("the promotion failed; %s is made the master again", master)
        cancel = HandOverHeader(self._broker.address, cancel=True)
        force = PromoteHeader(force=True, role=before.role)
        for _ in range(RESTORE_ATTEMPTS):
            status = await _try_ask(client, master, RequestCode.HAND_OVER, cancel)
            if status is not None and not status.step:
                if status.role != BrokerRole.SLAVE.value:
                    return
                if await _try_ask(client, master, RequestCode.PROMOTE_REPLICA, force) is not None:
                    return
            await asyncio.sleep(RESTORE_PAUSE_S)
        _log.error(
            "%s could not be made the master again, so there may be no master: use 'firetrail "
            "replica promote ADDRESS --force'",
            master,
        )

    async def _become_master(self, role: BrokerRole, epoch: int) -> None:
        """Begin an epoch, whose number is larger than all that are known."""
        self._enter("changing role")
        await self._become(role, MASTER_ID, epoch)

    # -- on the master ------------------------------------------------------------------------

    def _hand_over(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = HandOverHeader.decode(request.fields)
        _check_address(header.successor)
        store = self._broker.store
        if header.cancel:
            if header.successor == self._successor and not self.step:
                self._reopen()
            return request.answer(body=self.status.encode(standard=True))
        self._check_idle()
        if self._broker.replica is not None or self._is_fenced():
            raise _refused(f"{self._broker.address} is not the master, so it cannot hand over")
        if self._successor not in ("", header.successor):
            raise _refused(f"{self._broker.address} is handing over to {self._successor}")
        self._successor = header.successor
        store.refuse_puts(Closure.HANDOVER, f"{header.successor} will be the master")
        _log.warning("messages are refused from now on: %s will be the master", header.successor)
        self._forget_reopening()
        loop = asyncio.get_running_loop()
        self._reopening = loop.call_later(HANDOVER_S, self._reopen)
        return request.answer(body=self.status.encode(standard=True))

    def _reopen(self) -> None:
        """Accept messages again, because the successor has given up."""
        _log.warning("%s does not become the master; messages are accepted again", self._successor)
        self._successor = ""
        self._forget_reopening()
        self._broker.store.accept_puts(Closure.HANDOVER)

    def _forget_reopening(self) -> None:
        if self._reopening is not None:
            self._reopening.cancel()
            self._reopening = None

    def _step_down(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = StepDownHeader.decode(request.fields)
        _check_address(header.successor)
        if header.broker_id <= MASTER_ID:
            raise _invalid(f"brokerId = {header.broker_id}: the id of a slave is 1 or larger")
        self._check_idle()
        if not self._successor or header.successor != self._successor:
            raise _refused(f"{self._broker.address} is not handing over to {header.successor}")
        self._forget_reopening()
        _log.warning("%s replaces this broker as the master", header.successor)
        self._begin(self._become_slave(header))
        return request.answer(body=self.status.encode(standard=True))

    async def _become_slave(self, header: StepDownHeader) -> None:
        self._enter("changing role")
        named = self._broker.config.name_servers
        address = "" if named else header.successor  # otherwise name servers tell it
        try:
            await self._become(BrokerRole.SLAVE, header.broker_id, header.epoch, address)
        except BaseException:
            self._reopen()
            raise
        self._successor = ""

    # -- both ---------------------------------------------------------------------------------

    async def _become(
        self, role: BrokerRole, broker_id: int, epoch: int, master_address: str = ""
    ) -> None:
        """Save the role, so that a restart keeps it, and change it."""
        roles = self._broker.roles
        before: SavedRole | None = roles.load()
        roles.save(roles.changed(role, broker_id, master_address, epoch))
        begins = 0 if role is BrokerRole.SLAVE else epoch
        try:
            await self._broker.become(role, broker_id, epoch=begins, master_address=master_address)
        except BaseException:
            roles.save(before)
            raise

    def _check_idle(self) -> None:
        if self._broker.config.etcd_servers:
            raise _refused(
                f"the role of {self._broker.address} follows the lease of its group; to change the "
                "master, stop it, and start it again when another one has taken over"
            )
        if self._task is not None and not self._task.done():
            raise _refused(f"the role of {self._broker.address} is being changed: {self.step}")

    def _enter(self, step: str) -> None:
        self.step = step
        _log.info("change of the role: %s", step)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        self.step, self.error = "beginning", ""
        self._task = asyncio.get_running_loop().create_task(self._run(work))

    async def _run(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except (FiretrailError, OSError) as error:
            self.error = str(error) or type(error).__name__
            _log.warning("the role was not changed: %s", self.error)
        except Exception as error:
            self.error = str(error) or type(error).__name__
            _log.exception("the role was not changed")
        finally:
            self.step = ""


def _master_role(name: str | None) -> BrokerRole | None:
    if name is None:
        return None
    if name not in MASTER_ROLES:
        raise _invalid(f"role = {name:.40}: expected ASYNC_MASTER or SYNC_MASTER")
    return BrokerRole(name)


def _check_address(address: str) -> None:
    try:
        split_address(address)
    except ConfigError as error:
        raise _invalid(str(error)) from None


def _invalid(reason: str) -> RequestError:
    return RequestError(ResponseCode.INVALID_PARAMETER, reason)


def _refused(reason: str) -> RequestError:
    return RequestError(ResponseCode.NO_PERMISSION, reason)


async def _try_ask(
    client: RemotingClient, address: str, code: RequestCode, header: Header | None = None
) -> ReplicaStatus | None:
    """Ask a broker; return None if it does not answer or refuses."""
    try:
        return await ask_status(client, address, code, header)
    except (OSError, FiretrailError) as error:
        _log.info("%s of %s failed: %s", code.name, address, error)
        return None


async def _until(holds: Callable[[], bool], limit_s: float, failure: str) -> None:
    try:
        async with asyncio.timeout(limit_s):
            while not holds():
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise ReplicationError(f"{failure} within {limit_s:g} seconds") from None
