"""The follower of a master: it checks, connects, checks again, copies, and retries after a failure.

The checks (:mod:`firetrail.replication.replica.master_check`) are repeated after the connection to
the HA port is open. If the master restarts afterwards, the connection ends. So no byte is copied
from a master whose log was not compared with the replica's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from firetrail.errors import (
    DivergedError,
    FiretrailError,
    NotReachedError,
    ReplicationError,
    StuckError,
)
from firetrail.remoting.connections.access import Access
from firetrail.remoting.connections.remoting_client import REQUEST_S, RemotingClient
from firetrail.replication.ha.ha_client import HAClient, HAClientStatus
from firetrail.replication.ha.ha_frames import identity_number
from firetrail.replication.learner.learner_client import EpochLog, LearnerClient
from firetrail.replication.log.epochs import EpochFile
from firetrail.replication.replica.follower_journal import FollowerJournal
from firetrail.replication.replica.follower_status import FollowerState, FollowerStatus
from firetrail.replication.replica.master_check import (
    REQUEST_MAX_S,
    Continuation,
    LogRange,
    Master,
    MasterAddress,
    MasterConfig,
    NotMasterError,
    check_file_size,
    check_history,
    check_names,
    check_range,
)
from firetrail.replication.replica.missing_messages import MissingMessages
from firetrail.store.log.replica_acks import NO_MEMBER
from firetrail.store.log_copy import LogCopy
from firetrail.system import System, Threads
from firetrail.text import human_time

SOON_S = 0.1
"""Pause before a broker is asked again that is not the master yet, and probably becomes it soon."""

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FollowerSettings:
    """The settings of a replica that follows its master.

    Attributes:
        heartbeat_s: The most seconds between two reports to the master.
        silence_s: The time for which the master may send nothing before the connection is given up.
        unheard_s: How long the master may send nothing, not even a heartbeat, before the replica
            says that it does not follow.
        check_s: Pause between two questions for the end of the master's log.
        retry_s: Pause before the next attempt; doubled after each attempt that fails.
        retry_max_s: The longest such pause.
        names: Cluster and broker name that the master must have; None for any.
        member: The number of the replica in its group; 0 if it is in none.
        identity: The text that stays with the replica's store; empty for none.
        copy_of: The broker of another name whose log the replica is known to have; empty for none.
        access: Credentials and TLS for the HA port of a Firetrail master; None for neither.
    """

    heartbeat_s: float = 5.0
    silence_s: float = 20.0
    check_s: float = 5.0
    retry_s: float = 0.5
    retry_max_s: float = 10.0
    names: tuple[str, str] | None = None
    member: int = 0
    identity: str = ""
    copy_of: str = ""
    access: Access | None = None
    unheard_s: float = 7.5


class _MasterChanged(Exception):
    """The master has changed; begin again with the new one."""


class Follower:
    """Keeps the log of a replica equal to its master's, as a service of an event loop.

    Attributes:
        master_role: ``brokerRole`` in the last answer of the master; empty if it is not known.
        has_controller: Whether the master was in controller mode when it was last asked.
        divergence: Why the replica's log is not its master's; empty if it is not known to differ.
            It stays while the master cannot be asked, until a comparison finds the logs equal.
        is_different: Whether the last attempt has found that the logs differ.
        on_compared: Called after each comparison, with why the logs differ, or with an empty text.
            The follower waits for it before it connects to the HA port.
    """

    def __init__(
        self,
        log: LogCopy,
        epochs: EpochFile,
        client: RemotingClient,
        system: System,
        settings: FollowerSettings | None = None,
        divergence: str = "",
    ) -> None:
        """Prepare to follow; nothing happens before :meth:`start` and :meth:`follow`.

        Args:
            log: The log of the replica.
            epochs: The epochs of the log, which a master in controller mode sends.
            client: Sends requests to the master's broker port.
            system: The clock, and the threads.
            settings: Intervals. Default: ``FollowerSettings()``.
            divergence: The reason why the log is known to differ from the master's. Default: empty.
        """
        self._log = log
        self._epochs = epochs
        self._client = client
        self._clock, self._threads = system.clock, system.threads
        self._settings = settings or FollowerSettings()
        self._master: MasterAddress | None = None
        self._changed = asyncio.Event()  # another master is to be followed
        self._connection: HAClient | None = None
        self._task: asyncio.Task[None] | None = None
        self.master_role = ""
        self.has_controller = False
        self.divergence = divergence
        self.is_different = False
        self._is_leaving = False
        self.on_compared: Callable[[str], Awaitable[None]] = _ignore
        self._master_min = self._master_max = -1
        self._pause_s = self._settings.retry_s
        self._request_s = REQUEST_S
        self._is_silent = False  # nothing arrives over the connection, or arrived over the last one
        self._missing = MissingMessages(system.clock.monotonic)
        state = FollowerState.DIVERGED if divergence else FollowerState.WAITING
        self._journal = FollowerJournal(system.clock, state, divergence)

    # -- for the owner ------------------------------------------------------------------------

    def start(self) -> None:
        """Start the service."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Leave the master, and wait until the last append has ended."""
        if self._task is None:
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self._task = None

    def leave(self) -> None:
        """Tell the master, and the next ones, that this replica is about to stop."""
        self._is_leaving = True
        if self._connection is not None:
            self._connection.is_leaving = True

    def follow(self, master: MasterAddress | None) -> None:
        """Follow this master from now on; the connection to another one is cut at once.

        Args:
            master: The master, or None to follow no broker.
        """
        if master == self._master:
            return
        self._master = master
        self._changed.set()
        if self._connection is not None:
            self._connection.stop()

    @property
    def status(self) -> FollowerStatus:
        """The status now."""
        journal = self._journal
        status = FollowerStatus(
            FollowerState.CHECKING if self._changed.is_set() else journal.state,
            self._master,
            self._log.max_offset,
            self._master_max,
            journal.error,
            journal.since_ms,
            own_min=self._log.min_offset,
            master_min=self._master_min,
        )
        if self._connection is None:
            return status
        seen = self._connection.status
        if status.state is FollowerState.FOLLOWING and (silence := self._silence(seen)):
            state, since_ms = FollowerState.FAILED, seen.heard_at_ms
            status = replace(status, state=state, error=silence, since_ms=since_ms)
        return replace(
            status,
            master_max=max(self._master_max, seen.master_offset),
            read_at_ms=seen.read_at_ms,
            wrote_at_ms=seen.wrote_at_ms,
            received=seen.received,
        )

    # -- the loop -----------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            master = self._master
            if self._changed.is_set():
                self._reset()
            self.is_different = False
            try:
                if master is None:
                    self._enter(FollowerState.WAITING, "no master is known")
                    await self._changed.wait()
                else:
                    await self._attempt(Master(self._client, master, self._request_s))
            except _MasterChanged:
                pass
            except DivergedError as error:
                self.is_different = True
                await self._compared(str(error))
                await self._fail(FollowerState.DIVERGED, error)
            except StuckError as error:
                await self._fail(FollowerState.STUCK, error)
            except (FiretrailError, OSError) as error:
                await self._fail(FollowerState.FAILED, error)
            except Exception as error:
                _log.exception("following %s failed; will retry", master)
                await self._fail(FollowerState.FAILED, error)

    def _reset(self) -> None:
        """Forget everything about the former master."""
        self._changed.clear()
        self._pause_s = self._settings.retry_s
        self._request_s = REQUEST_S
        self._master_min = self._master_max = -1
        self._is_silent = False
        self._journal.forget()
        self._enter(FollowerState.CHECKING)

    def _enter(
        self, state: FollowerState, error: str = "", *, may_be_expected: bool = False
    ) -> None:
        """Note the state: see :meth:`FollowerJournal.enter`."""
        if self.divergence and state is not FollowerState.CHECKING:  # it does not end by itself
            state, error = FollowerState.DIVERGED, self.divergence
        broker = self._master.broker if self._master is not None else "none"
        self._journal.enter(
            state, error, broker, self._log.max_offset, may_be_expected=may_be_expected
        )

    async def _fail(self, state: FollowerState, error: Exception) -> None:
        """Note why the master is not followed, and pause."""
        if isinstance(error.__cause__, TimeoutError):
            self._request_s = min(self._request_s * 2, REQUEST_MAX_S)
        if isinstance(error, NotMasterError):
            self._pause_s = min(self._settings.retry_s, SOON_S)
        if not self._changed.is_set():
            is_cut = state is FollowerState.DIVERGED and self._is_cut_by_group
            self._enter(
                state,
                str(error) or type(error).__name__,
                may_be_expected=is_cut or isinstance(error, NotMasterError),
            )
            await self._pause()

    @property
    def _is_cut_by_group(self) -> bool:
        """Whether the group removes records that its master lacks, without an operator."""
        return self._settings.member != NO_MEMBER

    async def _pause(self) -> None:
        pause_s, self._pause_s = (self._pause_s, min(self._pause_s * 2, self._settings.retry_max_s))
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._changed.wait()

    async def _attempt(self, master: Master) -> None:
        """Follow a master until the connection fails or another master is to be followed."""
        config = await self._answer(master.config())
        self.master_role, self.has_controller = config.role, config.has_controller
        if self._settings.names is not None:
            check_names(config, *self._settings.names)
        check_file_size(self._log, config)
        if not config.ha:
            raise ReplicationError(
                f"the broker at {master.address.broker} does not report its HA port; set "
                "haMasterAddress on the replica"
            )
        begin, there = await self._answer(self._check_history(master))
        await self._compared("")
        self._leave_if_changed()
        self._note_range(there)
        if there.end == 0 and not config.is_firetrail:  # it would be asked for more than it has
            self._enter(FollowerState.WAITING, "the master has no messages yet")
            self._pause_s = self._settings.retry_s  # its first message waits for this replica
            await self._pause()
            return
        connection = self._client_for(config, begin)
        try:
            await self._connect(connection, master)
            if (await self._answer(self._check_history(master))).begin != begin:
                return  # the replica is empty, and the master has just deleted its first file
            self._connection = connection
            await self._copy(connection, master)
        finally:
            self._connection = None
            connection.close()

    async def _check_history(self, master: Master) -> Continuation:
        settings = self._settings
        return await check_history(
            self._log, master, settings.copy_of, is_cut_by_group=self._is_cut_by_group
        )

    async def _compared(self, divergence: str) -> None:
        self.divergence = divergence
        await self.on_compared(divergence)

    def _client_for(self, config: MasterConfig, begin: int) -> HAClient:
        """Return a client that speaks the master's protocol."""
        settings = self._settings
        times = {"heartbeat_s": settings.heartbeat_s, "silence_s": settings.silence_s}
        if config.has_controller:
            log = EpochLog(self._log, self._epochs)
            return LearnerClient(log, config.ha, begin, self._clock, **times)
        client = HAClient(self._log, config.ha, begin, self._clock, **times)
        client.member, client.identity = settings.member, identity_number(settings.identity)
        client.is_confirmed, client.is_leaving = config.is_firetrail, self._is_leaving
        client.access = settings.access if config.is_firetrail else None
        return client

    async def _connect(self, connection: HAClient, master: Master) -> None:
        try:
            await asyncio.to_thread(connection.connect)
        except NotReachedError as error:
            if master.address.ha:
                raise
            raise NotReachedError(
                f"{error}. The address comes from brokerIP2 and haListenPort of the master; correct"
                " them, or set haMasterAddress on the replica"
            ) from error

    async def _answer(self, question: Coroutine[None, None, _T]) -> _T:
        """Return the answer to a question; do not wait for it if the master is changed."""
        asking = asyncio.ensure_future(question)
        changing = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait([asking, changing], return_when=asyncio.FIRST_COMPLETED)
            self._leave_if_changed()
            return asking.result()
        finally:
            asking.cancel()
            changing.cancel()
            await asyncio.gather(asking, changing, return_exceptions=True)

    def _leave_if_changed(self) -> None:
        if self._changed.is_set():
            raise _MasterChanged

    # -- the connection -----------------------------------------------------------------------

    async def _copy(self, connection: HAClient, master: Master) -> None:
        """Copy in a thread until the connection ends, and check meanwhile that the log grows."""
        began = self._clock.monotonic()
        copying = asyncio.ensure_future(_in_thread(self._threads, connection))
        watching = asyncio.ensure_future(self._watch(connection, master))
        try:
            await asyncio.wait([copying, watching], return_when=asyncio.FIRST_COMPLETED)
        finally:
            watching.cancel()
            connection.stop()
            await asyncio.wait([copying, watching])
            if connection.status.received:
                self._pause_s = self._settings.retry_s
            lasted_s = self._clock.monotonic() - began
            if connection.status.received or lasted_s > self._settings.silence_s:
                self._journal.forget()
            if connection.status.silent_s(self._clock.now_ms()) >= self._settings.silence_s:
                self._is_silent = True
        self._leave_if_changed()
        copying.result()
        if not watching.cancelled():
            watching.result()

    async def _watch(self, connection: HAClient, master: Master) -> None:
        """Ask for the end of the master's log regularly, and report if it does not send the log up
        to there.

        After a silent connection, the next one counts only once it has delivered data.
        """
        while self._is_silent and not connection.status.read_at_ms:
            await asyncio.sleep(self._settings.retry_s)
        self._is_silent = False
        self._enter(FollowerState.FOLLOWING)
        received, read_at_ms, missing = -1, -1, False
        while True:
            await asyncio.sleep(self._settings.check_s)
            there = await self._range_of(master)
            if there is not None:
                self._note_range(there)
            seen = connection.status
            if silence := self._silence(seen):
                self._is_silent = True
                self._enter(FollowerState.FAILED, silence)
                continue
            if there is None:
                continue
            is_stalled, is_heard = seen.received == received, seen.read_at_ms != read_at_ms
            received, read_at_ms = seen.received, seen.read_at_ms
            if not (is_stalled and missing):
                self._is_silent = False
                self._enter(FollowerState.FOLLOWING)
            elif is_heard:
                self._enter(FollowerState.STUCK, self._why_stuck(there))
            missing = there.end > self._log.max_offset

    def _silence(self, seen: HAClientStatus) -> str:
        """Return the error about a connection over which no data arrives; empty while this may be
        chance."""
        silent_s = seen.silent_s(self._clock.now_ms())
        if silent_s <= self._settings.unheard_s:
            return ""
        lacks = ""
        if self._master_max > self._log.max_offset:
            lacks = (
                f", although the master has the log up to {self._master_max} and the replica up to "
                f"{self._log.max_offset}"
            )
        return (
            f"nothing has arrived from the HA port {seen.master} for {silent_s:.0f} seconds, since "
            f"{human_time(seen.heard_at_ms)}{lacks}; check the network to that port. The "
            f"connection is given up after {self._settings.silence_s:g} seconds"
        )

    async def _range_of(self, master: Master) -> LogRange | None:
        """Return the range of the master's log; None if it does not answer at the moment."""
        try:
            return await master.log_range()
        except (ReplicationError, OSError) as error:
            self._journal.note_unknown_end(str(error))
            return None

    def _note_range(self, there: LogRange) -> None:
        self._master_min, self._master_max = there
        self._missing.note(self.status)

    def _why_stuck(self, there: LogRange) -> str:
        try:
            check_range(self._log, there)
        except StuckError as error:
            return str(error)
        return (
            f"the replica has the log up to {self._log.max_offset}, the master up to {there.end}, "
            f"but for {self._settings.check_s:g} seconds the master has sent nothing but heartbeats"
        )


async def _ignore(divergence: str) -> None:
    """Do nothing with the outcome of a comparison."""


async def _in_thread(threads: Threads, connection: HAClient) -> None:
    """Run ``connection.follow`` in a thread of its own, because it may take for ever."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[BaseException | None] = loop.create_future()

    def follow() -> None:
        failure: BaseException | None = None
        try:
            connection.follow()
        except BaseException as error:
            failure = error
        with suppress(RuntimeError):  # the loop was closed without waiting for the follower
            loop.call_soon_threadsafe(ended.set_result, failure)

    threads.thread("firetrail-ha-client", follow).start()
    failure = await ended
    if failure is not None:
        raise failure
