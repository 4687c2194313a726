"""Changes of the master by command: planned, with a hand-over, or in an emergency.

A planned change is carried out by the replica that is promoted, in the steps of
:mod:`firetrail.broker.replica.hand_over.hand_over`. Then it begins an epoch and becomes the
master, and the former one follows it.

If a step fails before the master has stepped down, it accepts messages again; it does so by itself
when the replica has given up or is gone, or after ``HANDOVER_S``. If one fails later, the replica
asks the former master to become the master again. If the replica crashes, the hand-over is finished
or undone when it runs again (:mod:`firetrail.broker.replica.hand_over.unfinished_hand_over`).

In an emergency only the last step is taken. Messages that the replica has not received are then
lost, and :mod:`firetrail.broker.replica.epoch_fence` fences the former master when it is back.

A change ends the term in which it was requested, so the request is answered before the change
begins, and its progress can be asked for.
"""

import asyncio
import logging
from collections.abc import Coroutine

from firetrail.broker.replica.hand_over.group_hand_over import GroupHandOver
from firetrail.broker.replica.hand_over.hand_over import HandOver
from firetrail.broker.replica.hand_over.live_master_check import LiveMaster, live_master
from firetrail.broker.replica.hand_over.unfinished_hand_over import UnfinishedHandOver
from firetrail.broker.replica.replicated_broker import (
    ReplicatedBroker,
    epoch_entries,
    newest_epoch,
    replica_status,
)
from firetrail.broker.replica.role_requests import Reachability, try_ask_status
from firetrail.broker.replica.saved_role import HandOverNote, SavedRole
from firetrail.errors import ConfigError, FiretrailError, ReplicationError, RequestError
from firetrail.pace.reminders import Reminders
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Answer, Handler
from firetrail.remoting.connections.remoting_client import RemotingClient, split_address
from firetrail.remoting.messages.bodies import MASTER_ID
from firetrail.remoting.messages.replica_bodies import ReplicaStatus
from firetrail.remoting.messages.replica_headers import (
    EpochHeader,
    HandOverHeader,
    PromoteHeader,
    StepDownHeader,
)
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.replication.log.epochs import Epoch
from firetrail.replication.replica.follower_status import FollowerState
from firetrail.store.admission.gate import Closure
from firetrail.store.settings.store_config import BrokerRole

HANDOVER_S = 60.0
"""The time for which a master that hands over refuses messages while nothing else happens."""
POLL_S = 1.0
"""Pause between two checks of the successor by a master that hands over."""
LAG_MAX = 64 << 20
"""A replica that lags by more bytes than this is not promoted as planned: producers would wait."""
MASTER_ROLES = (BrokerRole.ASYNC_MASTER.value, BrokerRole.SYNC_MASTER.value)

_log = logging.getLogger(__name__)


class Promotion:
    """Handles the requests that change the role of a broker, and those about its status.

    Attributes:
        handlers: The handlers, which serve in every role and during a change.
        step: The present step of a change; empty if there is none.
        error: The reason why the last change failed; empty if it did not.
    """

    def __init__(self, broker: ReplicatedBroker) -> None:
        self._broker = broker
        self._task: asyncio.Task[None] | None = None
        self._successor = ""  # the broker to which this one hands over
        self._reopening: asyncio.Task[None] | None = None
        self._unfinished = UnfinishedHandOver(broker, self._become_master, self._enter)
        self.group: GroupHandOver | None = None
        """Changes the master of the broker's group; None if it is in none."""
        self.step = ""
        self.error = ""
        self.handlers: dict[int, Handler] = {
            RequestCode.PROMOTE_REPLICA: self._promote,
            RequestCode.GET_REPLICA_STATUS: self._status,
            RequestCode.HAND_OVER: self._hand_over,
            RequestCode.STEP_DOWN: self._step_down,
            RequestCode.GET_BROKER_EPOCH_CACHE: self._epochs,
        }

    def start(self) -> None:
        """Settle a hand-over that was interrupted by the end of the process.

        If a change was requested during the start, its outcome settles the hand-over.
        """
        if self._task is None:
            self._unfinished.start()

    async def stop(self) -> None:
        """Give up a change that is waiting for another broker."""
        self._forget_reopening()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._unfinished.stop()

    # -- status -------------------------------------------------------------------------------

    @property
    def status(self) -> ReplicaStatus:
        """The status of the broker."""
        return replica_status(self._broker, self.step, self.error, self._unfinished.report)

    def _status(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(body=self.status.encode(standard=True))

    def _epochs(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return the epochs. A master without any begins the first one if a replica asks."""
        broker = self._broker
        is_asked = EpochHeader.decode(request.fields).replica and not self.step
        is_master = broker.replica is None and not self._is_fenced()
        if is_asked and is_master and not broker.epochs.epochs:
            broker.epochs.append(Epoch(1, broker.broker_store.log.min_offset))
        return request.answer(body=epoch_entries(broker).encode(standard=True))

    # -- on the replica -----------------------------------------------------------------------

    def _promote(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = PromoteHeader.decode(request.fields)
        role = _master_role(header.role)
        self._check_idle()
        broker = self._broker
        if self.group is not None:
            self._check_plain(header)
            if broker.replica is not None:
                _log.warning("%s has requested that this member take over", connection.peer)
                self.take_over()
            return request.answer(body=self.status.encode(standard=True))
        report = self._unfinished.report
        if report is not None and not header.force:
            raise _refused(report.remark)
        if broker.replica is None and not self._is_fenced():
            self._check_stays_master(role)
            return request.answer(body=self.status.encode(standard=True))
        if broker.replica is None and not header.force:
            raise _refused(f"{broker.address} is a former master; promote it with --force")
        self._check_no_controller()
        if not header.force:
            self._check_follows()
        elif not header.override:
            self._check_not_diverged()
        _log.warning(
            "%s has requested the promotion of this broker%s",
            connection.peer,
            " without asking its master" if header.force else "",
        )
        self._unfinished.give_up()
        if header.force:
            self._begin(self._take_over(role, override=header.override))
        else:
            self._begin(self._replace_master(role))
        return request.answer(body=self.status.encode(standard=True))

    def take_over(self) -> None:
        """Take over from the master of the group.

        Raises:
            RequestError: This member must not, or its role is being changed.
        """
        assert self.group is not None
        self._check_idle()
        self._check_follows()
        self.group.check()
        self._begin(self.group.take_over(self._enter))

    def _check_plain(self, header: PromoteHeader) -> None:
        """Raise RequestError if a group is asked for what only a fixed role has."""
        if header.force or header.role is not None:
            raise _refused(
                f"{self._broker.address} is a member of a group, whose lease decides on the master:"
                " --force and --role are not possible. If the master is lost, the group elects "
                "another one; a member has the role in its broker.conf as master"
            )

    def _check_stays_master(self, role: BrokerRole | None) -> None:
        """Raise RequestError if this master hands over, or is to have another role."""
        address, own = self._broker.address, self._broker.broker_store.config.role
        if self._successor:
            raise _busy(f"{address} is the master, and is handing over to {self._successor}")
        if role is not None and role is not own:
            raise _refused(
                f"{address} is the master already, as {own.value}; to make it {role.value}, change "
                "brokerRole in its broker.conf and restart it"
            )

    def _is_fenced(self) -> bool:
        epoch_fence = self._broker.epoch_fence
        return epoch_fence is not None and epoch_fence.is_fenced

    def _check_no_controller(self) -> None:
        """Raise RequestError if a controller elects the masters of this broker's name."""
        broker = self._broker
        if broker.replica is None:
            return
        if broker.replica.follower.has_controller or broker.slave_mark.notes.has_controller:
            raise _refused(
                f"{broker.address} is a learner of a cluster in controller mode, whose controller "
                "elects the masters; as a second master it would take the clients from the elected "
                "one. --force does not change this. Let the controller elect a master; if the "
                "cluster is lost for good, stop this broker, set brokerRole=ASYNC_MASTER and "
                "brokerId=0 in its broker.conf, and start it"
            )

    def _check_not_diverged(self) -> None:
        """Raise RequestError if the log of this replica is not that of its master."""
        replica = self._broker.replica
        if replica is not None and replica.follower.divergence:
            raise _refused(
                f"the replica has diverged ({replica.follower.divergence}); as the master it would "
                "replace the messages of the present one by others. If that is intended, use "
                "--force --override"
            )

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
        if status.missing:
            raise _refused(
                f"the replica has deleted {status.missing} bytes of messages that its master still "
                f"has: its log begins at {status.own_min}, that of the master at "
                f"{status.master_min}. Consumers could no longer read them. Wait until the master "
                "has deleted them as well, or start the replica with an empty folder; to promote "
                "it without them, stop the master and use --force"
            )

    async def _take_over(self, role: BrokerRole | None, *, override: bool) -> None:
        """Become the master if the present one is lost; with ``override``, in any case."""
        try:
            present = await self._present_master()
            if present.obstacle and not override:
                raise ReplicationError(present.obstacle)
            epoch = max(newest_epoch(self._broker), present.epoch) + 1
            await self._become_master(role or self._last_role(), epoch)
        except BaseException:
            self._unfinished.start()
            raise

    def _last_role(self) -> BrokerRole:
        """Return the role of the last master: this broker, or the one that it has followed."""
        own = self._broker.broker_store.config.role
        if own is not BrokerRole.SLAVE:
            return own
        known = self._broker.slave_mark.notes.master_role
        return BrokerRole(known) if known in MASTER_ROLES else BrokerRole.ASYNC_MASTER

    async def _present_master(self) -> LiveMaster:
        """Ask the present master whether it accepts messages."""
        replica = self._broker.replica
        if replica is None or replica.master is None:
            return LiveMaster()
        client = RemotingClient(access=self._broker.client_access)
        try:
            return await live_master(client, replica.master.broker)
        finally:
            await client.close()

    async def _replace_master(self, role: BrokerRole | None) -> None:
        """Become the master after the present one has handed over."""
        broker = self._broker
        assert broker.replica is not None and broker.replica.master is not None
        master = broker.replica.master.broker
        hand_over = HandOver(broker, master, broker.address, self._enter)
        try:
            before = await hand_over.begin()
            epoch = max(newest_epoch(broker), before.epoch) + 1
            await hand_over.catch_up(before.max_offset)
            own = role or BrokerRole(before.role)
            note = HandOverNote(master, broker.address, epoch, before.role, own.value)
            try:
                broker.roles.begin_hand_over(broker.config.broker_id, note)
                await hand_over.step_down(epoch)
                await hand_over.copy_tables()
                await self._become_master(own, epoch)
            except BaseException as error:
                _log.warning("the promotion failed: %s", str(error) or type(error).__name__)
                await self._undo(hand_over, note)
                raise
        finally:
            await hand_over.close()

    async def _undo(self, hand_over: HandOver, note: HandOverNote) -> None:
        """Make the former master the master again, now or as soon as it answers."""
        if await hand_over.restore(note):
            self._broker.roles.end_hand_over()
            _log.warning("%s is the master again", note.master)
        else:
            self._unfinished.start(undo=True)

    async def _become_master(self, role: BrokerRole, epoch: int) -> None:
        """Begin an epoch, whose number is larger than all that are known."""
        self._enter("opening the store as the master")
        await self._become(self._broker.roles.changed(role, MASTER_ID, "", epoch))

    # -- on the master ------------------------------------------------------------------------

    def _hand_over(self, connection: Connection, request: RemotingCommand) -> Answer:
        header = HandOverHeader.decode(request.fields)
        _check_address(header.successor)
        if self.group is not None:
            return self._hand_over_lease(self.group, header, request)
        store = self._broker.broker_store
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
        store.gate.shut(Closure.HANDOVER, f"{header.successor} will be the master")
        _log.warning("messages are refused from now on: %s will be the master", header.successor)
        self._forget_reopening()
        loop = asyncio.get_running_loop()
        self._reopening = loop.create_task(self._await_successor(header.successor))
        return request.answer(body=self.status.encode(standard=True))

    async def _hand_over_lease(
        self, group: GroupHandOver, header: HandOverHeader, request: RemotingCommand
    ) -> RemotingCommand:
        if header.cancel:
            group.cancel(header.successor)
        else:
            await group.freeze(header)
        return request.answer(body=self.status.encode(standard=True))

    async def _give_lease(
        self, group: GroupHandOver, header: StepDownHeader, request: RemotingCommand
    ) -> RemotingCommand:
        await group.give_lease(header)
        return request.answer(body=self.status.encode(standard=True))

    async def _await_successor(self, successor: str) -> None:
        """Accept messages again when the successor has given up or is gone, or after HANDOVER_S.

        This is safe at any moment: a request to step down is refused afterwards.
        """
        now = asyncio.get_running_loop().time
        deadline = now() + HANDOVER_S
        client = RemotingClient(access=self._broker.client_access)
        reachability, reminders = Reachability(now), Reminders(now)
        try:
            while now() < deadline and not reachability.is_gone:
                await asyncio.sleep(min(POLL_S, max(deadline - now(), 0)))
                status = await try_ask_status(
                    client, successor, reminders=reminders, reachability=reachability
                )
                if status is not None and _has_given_up(status):
                    break
        finally:
            await client.close()
        self._reopening = None
        self._reopen()

    def _reopen(self) -> None:
        """Accept messages again, because the successor has given up."""
        _log.warning("%s does not become the master; messages are accepted again", self._successor)
        self._successor = ""
        self._forget_reopening()
        self._broker.broker_store.gate.lift(Closure.HANDOVER)

    def _forget_reopening(self) -> None:
        if self._reopening is not None:
            self._reopening.cancel()
            self._reopening = None

    def _step_down(self, connection: Connection, request: RemotingCommand) -> Answer:
        header = StepDownHeader.decode(request.fields)
        _check_address(header.successor)
        if header.broker_id <= MASTER_ID:
            raise _invalid(f"brokerId = {header.broker_id}: the id of a slave is 1 or larger")
        if self.group is not None:
            return self._give_lease(self.group, header, request)
        self._check_idle()
        if not self._successor or header.successor != self._successor:
            raise _refused(f"{self._broker.address} is not handing over to {header.successor}")
        self._forget_reopening()
        _log.warning("%s replaces this broker as the master", header.successor)
        self._begin(self._become_slave(header))
        return request.answer(body=self.status.encode(standard=True))

    async def _become_slave(self, header: StepDownHeader) -> None:
        self._enter("becoming a slave")
        broker = self._broker
        named = broker.config.name_servers
        address = "" if named else header.successor  # otherwise name servers tell it
        role = broker.broker_store.config.role.value
        note = HandOverNote(broker.address, header.successor, header.epoch, role)
        saved = broker.roles.changed(
            BrokerRole.SLAVE, header.broker_id, address, header.epoch, note
        )
        try:
            await self._become(saved)
        except BaseException:
            self._reopen()
            raise
        self._successor = ""
        _log.warning("this broker is now a replica of %s", header.successor)
        self._unfinished.start()

    # -- both ---------------------------------------------------------------------------------

    async def _become(self, saved: SavedRole) -> None:
        """Save the role, so that a restart keeps it, and change it."""
        roles = self._broker.roles
        before = roles.saved
        roles.save(saved)
        role = BrokerRole(saved.role)
        begins = 0 if role is BrokerRole.SLAVE else saved.known_epoch
        try:
            await self._broker.become(
                role, saved.broker_id, epoch=begins, master_address=saved.master_address
            )
        except BaseException:
            roles.save(before)
            raise

    def _check_idle(self) -> None:
        if self.step or (self._task is not None and not self._task.done()):
            raise _busy(f"the role of {self._broker.address} is being changed: {self.step}")

    def _enter(self, step: str) -> None:
        self.step = step
        if step:
            _log.info("the role of this broker is being changed: %s", step)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        self.step, self.error = "preparing", ""
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


def _has_given_up(successor: ReplicaStatus) -> bool:
    """Whether a replica that wanted to take over is a slave, and does nothing to change that."""
    return successor.is_slave and not successor.step and successor.hand_over is None


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


def _busy(reason: str) -> RequestError:
    """Return the refusal of a request whose outcome depends on another change of the role."""
    return RequestError(ResponseCode.SYSTEM_BUSY, reason)


def _refused(reason: str) -> RequestError:
    return RequestError(ResponseCode.NO_PERMISSION, reason)
