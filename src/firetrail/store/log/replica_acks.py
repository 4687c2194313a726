"""Which part of the log replicas have confirmed, and the puts that wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import NamedTuple

from firetrail.format.names import OFFSET_MAX
from firetrail.settings.table import Live
from firetrail.store.config import BrokerRole, StoreConfig
from firetrail.store.log.commit_log import CommitLog
from firetrail.store.log.flusher import Waiter, Waiters

NO_MEMBER = 0
"""In the place of its number, for a replica that is not a member of a group."""


class _Confirmation(NamedTuple):
    offset: int
    member: int


class ReplicaAcks:
    """The confirmed ends of the replicas' logs, by connection.

    Only live connections count: the confirmation of a replica that has disconnected is forgotten,
    because nobody knows what becomes of its log.

    In a group with failover, a message is confirmed when all required members have it: those that
    may become the master.
    """

    def __init__(
        self, log: CommitLog, config: Live[StoreConfig], on_progress: Callable[[], None]
    ) -> None:
        """Start without replicas.

        Args:
            log: The log, whose ``confirmed_offset`` is kept up to date.
            config: The settings in force.
            on_progress: Called when the confirmed offset has grown.
        """
        self._log = log
        self._live = config
        self._on_progress = on_progress
        self._acks: dict[
            Hashable, _Confirmation
        ] = {}  # the latest connection of a member is the last one
        self._required: frozenset[int] | None = None
        self._guard = threading.Lock()
        self._waiters = Waiters()
        self._final: int | None = None  # what was confirmed when the store was closed
        self._enough_before = 0  # messages that end before this offset can be confirmed
        self.are_needed = False
        """Whether the master's own copy is not enough."""
        self._update()

    def note(self, replica: Hashable, offset: int, member: int = NO_MEMBER) -> None:
        """Note that a connected replica has the log up to ``offset``.

        Args:
            replica: Its connection.
            offset: The end of its log.
            member: Its number in the group. Default: it is not a member.
        """
        with self._guard:
            self._acks[replica] = _Confirmation(offset, member)
            grown = self._update()
        if grown:
            self._on_progress()

    def drop(self, replica: Hashable) -> None:
        """Forget a replica whose connection has ended."""
        with self._guard:
            self._acks.pop(replica, None)
            grown = self._update()  # fewer copies may be needed now
        if grown:
            self._on_progress()

    def require(self, members: frozenset[int]) -> None:
        """Confirm messages only if these members of the group have them, from now on.

        Whatever was confirmed before the call may lack them.
        """
        with self._guard:
            self._required = members
            grown = self._update()
        if grown:
            self._on_progress()

    def by_member(self) -> dict[int, int]:
        """Return where the logs of the connected members end, by number."""
        with self._guard:
            return self._by_member()

    def _by_member(self) -> dict[int, int]:
        # A member that has connected again counts with its latest connection.
        return {ack.member: ack.offset for ack in self._acks.values() if ack.member != NO_MEMBER}

    @property
    def missing(self) -> str:
        """The required members that are not connected, as text."""
        with self._guard:
            return ", ".join(
                map(str, sorted((self._required or frozenset()) - {*self._by_member()}))
            )

    def settings_changed(self) -> None:
        """Apply a changed role or number of copies."""
        with self._guard:
            self._update()
        self._on_progress()

    def in_sync(self, end: int) -> int:
        """Return how many replicas are connected and not too far behind ``end``."""
        with self._guard:
            return sum(self.is_in_sync(ack.offset, end) for ack in self._acks.values())

    def is_in_sync(self, acked: int, end: int) -> bool:
        """Return whether a replica that has the log up to ``acked`` is close enough to ``end``."""
        return end - acked < self._live.current.max_gap_not_in_sync

    def retained_from(self) -> int:
        """Return the offset from which a connected replica still needs the log.

        A replica that is further behind than ``replica_retention_bytes`` holds back only that much.
        """
        with self._guard:
            acked = min((ack.offset for ack in self._acks.values()), default=OFFSET_MAX)
        return max(acked, self._log.max_offset - self._live.current.replica_retention_bytes)

    def are_enough(self, end: int) -> bool:
        """Return whether a message that ends at ``end`` can be confirmed by enough replicas.

        Every put asks, so this is computed when a replica reports.
        """
        return end < self._enough_before

    def add(self, waiter: Waiter) -> None:
        """Notify ``waiter`` when enough replicas have the log up to its offset."""
        with self._guard:
            self._waiters.drop_timed_out()
            self._waiters.add(waiter)
            if self._final is not None or waiter.offset <= self._log.confirmed_offset:
                self._tell_waiters()

    def give_up(self) -> None:
        """Notify current and later waiters: nothing will be confirmed any more.

        The store is being closed. The rest of the log may be dispatched, as the next opening would
        do, so that a master without replicas can stop cleanly.
        """
        with self._guard:
            self._final = self._log.confirmed_offset
            self._tell_waiters()
            self._log.confirmed_offset = OFFSET_MAX

    def _tell_waiters(self) -> None:
        """Notify those that wait no longer. Two threads at a time could miss one."""
        if self._final is None:
            self._waiters.tell(self._log.confirmed_offset)
        else:
            self._waiters.tell(self._final, ended=True)

    @property
    def needed(self) -> int:
        """How many copies of a message there must be now, the master's own included."""
        config = self._live.current
        if config.role is not BrokerRole.SYNC_MASTER:
            return 1
        if not config.auto_in_sync_replicas:
            return config.in_sync_replicas
        if self._required is not None:
            return config.min_in_sync_replicas
        return max(config.min_in_sync_replicas, min(config.in_sync_replicas, 1 + len(self._acks)))

    def _update(self) -> bool:
        """Compute the confirmed offset again, and notify waiters; return whether it has grown."""
        if self._live.current.role is BrokerRole.SLAVE:  # its master says what is confirmed
            return False
        if self._final is not None:
            return False
        before = self._log.confirmed_offset
        others = self.needed - 1
        offsets = sorted((ack.offset for ack in self._acks.values()), reverse=True)
        confirmed = enough_before = OFFSET_MAX
        if others > len(offsets):
            confirmed = enough_before = 0
        elif others > 0:
            confirmed = offsets[others - 1]
            enough_before = confirmed + self._live.current.max_gap_not_in_sync
        required = self._required or frozenset()
        if required and self._live.current.role is BrokerRole.SYNC_MASTER:
            ends = self._by_member()
            confirmed = min(confirmed, *(ends.get(member, 0) for member in required))
            if not required <= ends.keys():
                enough_before = 0
        self._enough_before = enough_before
        self.are_needed = confirmed < OFFSET_MAX
        self._log.confirmed_offset = confirmed
        if self.are_needed:
            once = min(confirmed, self._log.max_offset)
            self._log.once_confirmed = max(once, self._log.once_confirmed)
        if self._log.confirmed_offset <= before:
            return False
        self._tell_waiters()
        return True
