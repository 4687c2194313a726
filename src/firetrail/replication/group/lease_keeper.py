"""The threads that keep a member of a group in touch with the consensus engine.

One thread campaigns, renews the lease and changes the in-sync set; another one watches the group.
They are threads because opening a store blocks the event loop, and a lease must be renewed
nevertheless.
"""

import logging
import math
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from firetrail.errors import ElectionError, NotReachedError
from firetrail.replication.group.confirmed_entry import ConfirmedEntry
from firetrail.replication.group.election import Coordinator, Election, LeaseTiming
from firetrail.replication.group.failover_errors import FailoverErrors, GroupWork
from firetrail.replication.group.group_memory import NOTHING_SEEN, MemberFile, full_disk_tolerated
from firetrail.replication.group.group_status import GroupStatus
from firetrail.replication.group.group_view import (
    UNKNOWN,
    Candidate,
    GroupMember,
    GroupView,
    InSyncSet,
    MemberReport,
)
from firetrail.replication.group.in_sync_members import InSyncMembers
from firetrail.replication.group.member_number import MemberNumber
from firetrail.replication.group.precedence import LogCondition, Precedence
from firetrail.replication.group.stray_entry import StrayEntry
from firetrail.store.admission.fence import LeaseFence
from firetrail.store.broker_store import BrokerStore
from firetrail.store.settings.store_config import BrokerRole
from firetrail.system import System

STEP_S = 0.1
"""Pause between two rounds of work."""
RETRY_S = 0.5
"""Pause after a request that failed, and between two watches."""
WATCHES_PER_TTL = 2
"""The number of times that the group is read within the time of a lease if nothing changes."""

STALLED_TTLS = 3
"""A master whose event loop has not run for this many times the lease does not renew it."""
BLOCKED = "the event loop of the broker is blocked, so the lease is not renewed"

_NO_REPORT_DUE = MemberReport(NOTHING_SEEN, -1)
"""A marker instead of a report, if the other members need no new one."""

_log = logging.getLogger(__name__)


class LeaseKeeper:
    """Campaigns for a member, and keeps its lease.

    Attributes:
        fence: Allows the member's store to acknowledge messages while the lease lasts.
    """

    def __init__(
        self, coordinator: Coordinator, member: GroupMember, timing: LeaseTiming, system: System
    ) -> None:
        """Prepare; :meth:`start` begins.

        Args:
            coordinator: The consensus engine.
            member: This member.
            timing: The times of the lease.
            system: Clock and threads.
        """
        self.log_epoch: Callable[[], int] = lambda: 0
        """Returns the number of the newest epoch in the member's log."""
        self._coordinator = coordinator
        self._member = member
        self._timing = timing
        self._clock = system.clock
        self._election = Election(member.number, timing, may_found=member.may_found)
        self._members: InSyncMembers | None = None
        self._store: BrokerStore | None = None
        self._retry_at = -math.inf  # no campaign before
        self._unnamed_at = -math.inf  # no campaign before, unless the holder names this member
        self._is_retired = False
        self._hands_over = False  # then this member does not join the in-sync set again
        self._precedence = Precedence(member.number)
        self._confirmed = ConfirmedEntry(coordinator)
        self._beat_at = -math.inf
        self._is_started = False
        self._own_number = MemberNumber(coordinator, member.number, member.address)
        self._stray = StrayEntry(coordinator, timing.ttl_s)
        self._errors = FailoverErrors(system)
        self._notified: tuple[object, ...] = ()
        threads = system.threads
        self._guard = threads.lock()
        self._stopping = threads.event()
        self._wake = threads.event()  # there may be something to do at once
        self._threads = [
            threads.thread("firetrail-lease", self._run),
            threads.thread("firetrail-watch", self._watch),
        ]
        self.fence = LeaseFence(system.clock)
        self.on_change: Callable[[], None] = lambda: None
        """Called in a thread when another member holds the lease, or this one does or ceases to,
        or when the holder names a successor."""

    # -- for the owner ------------------------------------------------------------------------

    def start(self, file: MemberFile) -> None:
        """Begin to watch the group; a member with a store also campaigns.

        Args:
            file: The file of the store about the member. The caller must have the store open.
        """
        member = self._member
        self._own_number.identity = file.identity
        self._election = Election(
            member.number,
            self._timing,
            may_found=member.may_found,
            memory=file.memory,
            remember=file.remember,
        )
        self._is_started = True
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the lease, if the member holds it, and all threads. Call it without a store."""
        self._stopping.set()
        self._errors.silence()
        self._wake.set()
        self._coordinator.close()
        if not self._is_started:
            return
        for thread in self._threads:
            thread.join()
        if self._election.epoch:
            self.resign()

    def beat(self) -> None:
        """Note that the event loop of the broker runs; call it more often than leases last."""
        self._beat_at = self._clock.since_boot()

    def attach(self, store: BrokerStore) -> None:
        """Campaign for this store from now on; if it is a master's, fence it.

        The store must not have acknowledged anything yet.
        """
        self.beat()
        with self._guard:
            self._store = store
            if store.config.role is not BrokerRole.SLAVE:
                store.gate.fence = self.fence
            self._apply()

    def detach(self) -> None:
        """Stop using the store: it is being closed. The lease is kept."""
        with self._guard:
            self._store = None
            self._apply()

    def resign(self, pause_s: float = 0.0) -> None:
        """Give the lease back, so that another member can win, and do not campaign for a while."""
        with self._guard:
            self._retry_at = self._clock.since_boot() + pause_s
            self._election.expired()
            self._apply()
        with suppress(NotReachedError, ElectionError):  # it expires by itself
            self._coordinator.resign()

    def retire(self) -> None:
        """Stop campaigning, because the broker is about to stop."""
        self._is_retired = True

    def nominate(self, member: int) -> None:
        """Ask another member to take over, which is free to do so for the time of a lease.

        Raises:
            NotReachedError: The engine cannot be reached.
            ElectionError: It refuses the request.
        """
        epoch = self._election.epoch
        if epoch:
            self._apply_answer_of(
                partial(self._coordinator.name_successor, epoch, member, leave=False)
            )

    def hand_over(self, member: int) -> None:
        """Give the lease to a member of the in-sync set that has the whole log.

        Nothing is acknowledged from then on. This member leaves the set if enough others remain, so
        that its successor does not wait for it.

        Raises:
            NotReachedError: The engine cannot be reached. Either this member still holds the lease,
                or the lease ends by itself.
            ElectionError: The engine refuses the request.
        """
        self._hands_over = True
        try:
            epoch = self._election.epoch
            self._leave_set()
            with self._guard:
                self._unnamed_at = self._clock.since_boot() + self._timing.ttl_s
                self._election.expired()
                self._apply()
                known = self._election.view.revision
            view = self._coordinator.name_successor(epoch, member, leave=True)
            with full_disk_tolerated():
                self._observe(view, known)
        finally:
            self._hands_over = False

    def _leave_set(self) -> None:
        for _ in range(2):  # another change may be in progress
            with self._guard:
                store, members = self._store, self._members
                if store is None or members is None:
                    return
                acks, leaving = store.replica_acks, store.replica_acks.leaving
                staying = {n: end for n, end in acks.by_member().items() if n not in leaving}
                change = members.leave(staying, acks.needed)
            if change is None:
                return
            with full_disk_tolerated():
                self._apply_answer_of(partial(self._coordinator.change_in_sync, change))

    def refresh(self) -> None:
        """Read the group, instead of waiting until the engine reports a change.

        Raises:
            NotReachedError: The engine cannot be reached.
            ElectionError: It refuses the request.
        """
        self._apply_answer_of(partial(self._coordinator.watch, self._election.view.revision, 0.0))

    @property
    def status(self) -> GroupStatus:
        """The status now."""
        with self._guard:
            election = self._election
            view, now = election.view, self._clock.since_boot()
            store, refusal, memory = self._store, election.refusal, election.memory
            error, problem = self._errors.current
            return GroupStatus(
                holder=view.holder if refusal is None else None,
                successor=view.successor if refusal is None else 0,
                in_sync=view.in_sync.members if view.in_sync is not None else frozenset(),
                epoch=election.epoch,
                log_epoch=memory.epoch,
                fenced_s=max(now - election.until, 0.0) if election.epoch else 0.0,
                is_member=self._own_number.is_own,
                is_foreign=self._own_number.is_foreign,
                obstacle=self._campaign_obstacle(store.log.max_offset) if store is not None else "",
                error=error,
                problem=problem,
                refusal=refusal,
                memory=memory,
                addresses=view.addresses,
                older_log=election.older_log(store.log.max_offset) if store is not None else "",
            )

    @property
    def number(self) -> int:
        """The number of the member."""
        return self._member.number

    def followed(self) -> None:
        """Note that the log is known to be that of the elected master.

        Raises:
            OSError: The file of the member cannot be written.
        """
        with self._guard:
            self._election.followed()

    def recover(self, decided: InSyncSet) -> str:
        """Replace what the engine has, as an operator has decided.

        Args:
            decided: The in-sync set from now on.

        Returns:
            Why the engine has not done so; empty if it has.

        Raises:
            NotReachedError: The engine cannot be reached.
            ElectionError: It refuses the request.
            OSError: The file of the member cannot be written.
        """
        with self._guard:
            known, expected = self._election.view.revision, self._election.view.in_sync
        view = self._coordinator.recover(expected, decided)
        self._observe(view, known)
        if view.in_sync is not None and view.in_sync.lineage == decided.lineage:
            return ""
        if view.holder is not None:
            return f"member {view.holder.member} at {view.holder.address} holds the lease"
        return "the state of the group has changed meanwhile"

    def _campaign_obstacle(self, log_end: int) -> str:
        """Return why this member may not campaign now; empty if it may."""
        election = self._election
        return self._own_number.store_obstacle(election.view) or election.campaign_obstacle(log_end)

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._step():
                self._wake.wait(STEP_S)
                self._wake.clear()
            else:
                self._stopping.wait(RETRY_S)

    def _watch(self) -> None:
        while not self._stopping.is_set():
            works = self._attempt(GroupWork.WATCH, lambda: self._watch_once)
            self._stopping.wait(STEP_S if works else RETRY_S)

    def _watch_once(self) -> None:
        view = self._election.view
        timeout_s = 0.0 if view is UNKNOWN else self._timing.ttl_s / WATCHES_PER_TTL
        self._observe(self._coordinator.watch(view.revision, timeout_s), view.revision)

    def _attempt(self, kind: GroupWork, due: Callable[[], Callable[[], None] | None]) -> bool:
        """Do the work that ``due`` returns, if any; return whether the engine did its part."""
        try:
            work = due()
            if work is not None:
                work()
        except Exception as error:
            self._errors.note(kind, error)
            return False
        if work is not None:
            self._errors.done(kind)
        return True

    def _step(self) -> bool:
        """Send the requests that are due, if there are any; return False if one fails."""
        return self._attempt(GroupWork.LEASE, self._lease_work) and self._attempt(
            GroupWork.CHANGES, self._next_work
        )

    def _lease_work(self) -> Callable[[], None] | None:
        """Return what is to be done about the lease now."""
        with self._guard:
            now, election = self._clock.since_boot(), self._election
            if election.epoch and self._store is not None and self._store.has_failed:
                _log.error("the store has failed; another member of the group may be the master")
                return self.resign
            if not election.is_renewal_due(now):
                self._errors.done(GroupWork.LEASE)
            elif self._is_stalled(now):
                self._errors.note(GroupWork.LEASE, ElectionError(BLOCKED))
            else:
                return self._renew
        return None

    def _next_work(self) -> Callable[[], None] | None:
        """Return the change of the group that is due."""
        with self._guard:
            now, view = self._clock.since_boot(), self._election.view
            if self._own_number.may_claim(view):
                return self._claim
            if (report := self._report_due()) is not _NO_REPORT_DUE:
                return partial(self._coordinator.report, self._member.number, report)
            if (announcement := self._own_number.pending_announcement(view)) is not None:
                return announcement
            request = (
                self._stray.removal(now, view) or self._next_change(now) or self._next_note(now)
            )
            if request is not None:
                return partial(self._apply_answer_of, request)
            if self._may_campaign(now):
                return self._campaign
        self._errors.idle(GroupWork.CHANGES)
        return None

    def _report_due(self) -> MemberReport | None:
        """Return the report for the other members, None, or ``_NO_REPORT_DUE``."""
        election, store, number = self._election, self._store, self._member.number
        if store is None or not self._own_number.is_own:
            return _NO_REPORT_DUE
        ends = store.log.max_offset, store.kept_confirmed_end
        report = election.report(*ends, is_short=bool(store.shortfall))
        return _NO_REPORT_DUE if election.view.reports.get(number) == report else report

    def _apply_answer_of(self, request: Callable[[], GroupView]) -> None:
        known = self._election.view.revision
        self._observe(request(), known)

    def _claim(self) -> None:
        self._own_number.claim(self._election.view)
        with self._guard:
            self.on_change()

    def _renew(self) -> None:
        sent_at = self._clock.since_boot()
        is_alive = self._coordinator.renew()
        with self._guard:
            if is_alive:
                self._election.renewed(sent_at)
            else:
                _log.warning("the lease of the group has expired")
                self._election.expired()
            self._apply()

    def _next_change(self, now: float) -> Callable[[], GroupView] | None:
        """Return the request that changes the in-sync set, if it is due."""
        members, store = self._members, self._store
        if members is None or store is None or self._hands_over:
            return None
        acks = store.replica_acks
        # Without replicas that must confirm, nothing waits for those that are about to stop.
        leaving = acks.leaving if acks.are_needed else frozenset[int]()
        change = members.step(now, store.log.max_offset, acks.by_member(), acks.needed, leaving)
        acks.require(members.required)
        return partial(self._coordinator.change_in_sync, change) if change is not None else None

    def _next_note(self, now: float) -> Callable[[], GroupView] | None:
        """Return the request that writes down what is confirmed, if it is due."""
        store, election = self._store, self._election
        if store is None or store.config.role is not BrokerRole.SYNC_MASTER:
            return None
        end = store.log.confirmed_end
        return self._confirmed.request(now, election.epoch, election.view, end)

    def _is_stalled(self, now: float) -> bool:
        """Whether the broker of a master no longer answers requests."""
        stalled_s = STALLED_TTLS * self._timing.ttl_s
        return self._members is not None and now - self._beat_at >= stalled_s

    def _may_campaign(self, now: float) -> bool:
        store, election = self._store, self._election
        if store is None or store.has_failed or election.epoch or self._is_retired:
            return False
        is_named = election.view.successor == self._member.number
        if now < self._retry_at or (now < self._unnamed_at and not is_named):
            return False
        if not self._own_number.is_own or self._campaign_obstacle(store.log.max_offset):
            self._precedence.forget()
            return False
        log = LogCondition(store.log.max_offset, len(store.damage), store.shortfall)
        return not self._precedence.is_left_to_others(now, log, election.view)

    def _campaign(self) -> None:
        member, token = self._member, secrets.token_hex(8)
        log_epoch = self.log_epoch()
        with self._guard:
            known = self._election.view.revision
            asked = self._election.campaign(token, self._clock.since_boot(), log_epoch)
        candidate = Candidate(member.number, member.address, member.ha_address, token)
        self._observe(self._coordinator.campaign(candidate, *asked), known)

    def _observe(self, view: GroupView, known: int) -> None:
        """Take a state of the group; ``known`` was the newest revision when it was asked for."""
        with self._guard:
            election = self._election
            before = election.refusal
            try:
                election.observe(view, known)
            finally:  # if it could not be kept on disk, nothing has changed
                self._apply()
            refusal = election.refusal
            if refusal is not None and self._member.number not in view.identities:
                self._own_number.forget()
        if refusal is not None and (before is None or before.doubt is not refusal.doubt):
            _log.error("this member does not take part in elections: %s", refusal.reason)
        elif refusal is None and before is not None:
            _log.warning("the state of the group continues what this member has seen again")

    def _apply(self) -> None:
        """Act on what is known: whom the store waits for, and how long it may acknowledge."""
        election, store = self._election, self._store
        in_sync = election.view.in_sync
        leads = election.epoch and store is not None and store.config.role is not BrokerRole.SLAVE
        if not leads or in_sync is None:
            self.fence.until = -math.inf
            self._members = None
        else:
            assert store is not None
            if self._members is None or self._members.epoch != election.epoch:
                self.fence.until = -math.inf
                self._members = InSyncMembers(
                    self._member.number,
                    election.epoch,
                    in_sync,
                    self._member.lag_s,
                    self._clock.since_boot(),
                )
            self._members.observe(in_sync)
            store.replica_acks.require(self._members.required)
            self.fence.until = election.until
        view = election.view
        state = election.epoch, view.holder, view.successor, election.refusal
        if state != self._notified:
            self._notified = state
            self._wake.set()
            self.on_change()
