"""The part of the log that replicas have confirmed, and the puts that wait for it."""

from collections.abc import Callable, Hashable
from typing import NamedTuple

from firetrail.format.names import OFFSET_MAX
from firetrail.settings.settings_table import Live
from firetrail.store.log.commit_log import CommitLog
from firetrail.store.log.flusher import Waiter, Waiters
from firetrail.store.settings.store_config import BrokerRole, StoreConfig

NO_MEMBER = 0
"""The number of a replica that is not a member of a group."""
RETURN_S = 3.0
"""The time that the puts of a group wait for members that are not connected: since the master
began, or since one was lost. Most members connect again within this time, or leave the in-sync
set."""


def copies_needed(config: StoreConfig, connected: int, *, in_group: bool) -> int:
    """Return the number of required copies of a message, with the master's own.

    Args:
        config: The settings of the store.
        connected: The number of replicas that are connected.
        in_group: Whether the store belongs to a member of a group with failover.
    """
    if config.role is not BrokerRole.SYNC_MASTER:
        return 1
    if not config.auto_in_sync_replicas:
        return config.in_sync_replicas
    if in_group:
        return config.min_in_sync_replicas
    return max(config.min_in_sync_replicas, min(config.in_sync_replicas, 1 + connected))


def starts_unconfirmed(config: StoreConfig, *, in_group: bool) -> bool:
    """Return whether a store learns the confirmed offset from replicas or its master only after it
    was opened.

    The arguments are those of :func:`copies_needed`.
    """
    if config.role is BrokerRole.SYNC_MASTER and in_group:
        return True  # the in-sync set is not known yet
    return config.role is BrokerRole.SLAVE or copies_needed(config, 0, in_group=in_group) > 1


class SharedAddress(NamedTuple):
    """A replica that does not name its store. Others may have the same address."""

    host: str


class _Confirmation(NamedTuple):
    """The last report over a connection.

    Attributes:
        offset: The end of the replica's log.
        member: Its number in the group.
        replica: The value that identifies it.
        since: The end of the master's log at the first report.
        is_leaving: Whether the replica is about to stop.
    """

    offset: int
    member: int
    replica: Hashable
    since: int
    is_leaving: bool = False


class ReplicaAcks:
    """The confirmed ends of the replicas' logs, by connection.

    Only live connections count: the confirmation of a replica that has disconnected is forgotten,
    because its log may end earlier when it connects again.

    A replica counts once, however many connections it has: one that was restarted, or cut off, has
    left a connection whose end the master has not noticed yet. Of the connections of one replica
    the latest counts. An earlier one counts as well if it has confirmed something that was stored
    after the latest was opened: then another process reads it, so these are two replicas that look
    like one (slaves of RocketMQ on one machine, or brokers on copies of one folder). If only their
    address is known, a put waits for that: the first message after both have connected shows it.

    In a group with failover, a message is confirmed when all required members have it: those that
    may become the master.
    """

    def __init__(
        self,
        log: CommitLog,
        config: Live[StoreConfig],
        on_progress: Callable[[], None],
        *,
        in_group: bool = False,
    ) -> None:
        """Start without replicas.

        Args:
            log: The log, whose ``confirmed_offset`` is kept up to date.
            config: The settings in force.
            on_progress: Called when the confirmed offset has grown.
            in_group: Whether the store belongs to a member of a group with failover. Then a master
                confirms nothing before :meth:`require` is called. Default: False.
        """
        self._log = log
        self._in_group = in_group
        self._live = config
        self.on_progress = on_progress
        """Called when the confirmed offset has grown, in the thread in which it has."""
        self._acks: dict[Hashable, _Confirmation] = {}  # the latest connection is the last one
        self._connected = 0  # how many replicas that is
        self._required: frozenset[int] | None = None
        self._clock = log.queue.system.clock
        self._return_by = self._clock.monotonic() + RETURN_S  # when absent members count as gone
        self._guard = log.queue.system.threads.lock()
        self._waiters = Waiters()
        self._final: int | None = None  # what was confirmed when the store was closed
        self._enough_before = 0  # messages that end before this offset can be confirmed
        self.are_needed = False
        """Whether the master's own copy is not enough."""
        if starts_unconfirmed(config.current, in_group=in_group):
            log.confirmed_offset = log.once_confirmed
        self._update()

    def note(
        self, connection: Hashable, offset: int, member: int = NO_MEMBER, replica: Hashable = None
    ) -> None:
        """Note that a connected replica has the log up to ``offset``.

        Args:
            connection: Its connection.
            offset: The end of its log.
            member: Its number in the group. Default: NO_MEMBER.
            replica: The value that identifies it. Default: None, which means its connection.
        """
        with self._guard:
            known = self._acks.get(connection)
            since = known.since if known is not None else self._log.max_offset
            identity = connection if replica is None else replica
            is_leaving = known is not None and known.is_leaving
            self._acks[connection] = _Confirmation(offset, member, identity, since, is_leaving)
            grown = self._update()
        if grown:
            self.on_progress()

    def leave(self, connection: Hashable) -> None:
        """Note that the replica of a connection is about to stop. It counts until it has."""
        with self._guard:
            if (known := self._acks.get(connection)) is not None:
                self._acks[connection] = known._replace(is_leaving=True)

    def drop(self, connection: Hashable) -> None:
        """Forget a connection that has ended."""
        with self._guard:
            if self._acks.pop(connection, None) is not None:
                self._return_by = self._clock.monotonic() + RETURN_S
            grown = self._update()  # fewer copies may be needed now
        if grown:
            self.on_progress()

    def require(self, members: frozenset[int]) -> None:
        """Confirm messages only if these members of the group have them, from now on.

        Messages that were confirmed before the call may be missing on them.
        """
        with self._guard:
            self._required = members
            grown = self._update()
        if grown:
            self.on_progress()

    def by_member(self) -> dict[int, int]:
        """Return the ends of the connected members' logs, by number."""
        with self._guard:
            return self._by_member()

    def _by_member(self) -> dict[int, int]:
        # Two processes with one number, such as brokers on copies of one folder: a message is
        # on the member if both have it, because either may be elected.
        ends: dict[int, int] = {}
        for ack in self._counted():
            if ack.member != NO_MEMBER:
                ends[ack.member] = min(ack.offset, ends.get(ack.member, OFFSET_MAX))
        return ends

    @property
    def leaving(self) -> frozenset[int]:
        """The connected members that are about to stop; their latest connections say so."""
        with self._guard:
            latest = {ack.member: ack.is_leaving for ack in self._acks.values()}
            return frozenset(number for number, is_leaving in latest.items() if is_leaving)

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
        self.on_progress()

    def counts(self, connection: Hashable) -> bool:
        """Return whether a connection is not the earlier one of a replica that has a later one."""
        with self._guard:
            known = self._acks.get(connection)
            return known is None or any(known is ack for ack in self._counted())

    def _counted(self) -> list[_Confirmation]:
        """Return the reports of different replicas; see the class."""
        latest = {ack.replica: ack for ack in self._acks.values()}
        if len(latest) == len(self._acks):
            return [*latest.values()]
        return [
            ack
            for ack in self._acks.values()
            if ack is latest[ack.replica] or ack.offset > latest[ack.replica].since
        ]

    def in_sync(self, end: int) -> int:
        """Return the number of connected replicas that are not too far behind ``end``."""
        with self._guard:
            return sum(self.is_in_sync(ack.offset, end) for ack in self._counted())

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

    def may_confirm(self, end: int) -> bool:
        """Return whether the log up to ``end`` may be confirmed without any further replica.

        It is False only for a master with too few replicas.
        """
        is_master = self._live.current.role is not BrokerRole.SLAVE
        return not (is_master and self.are_needed) or self.are_enough(end)

    def are_enough(self, end: int) -> bool:
        """Return whether a message that ends at ``end`` can be confirmed by enough replicas.

        Every put asks, so this is computed when a replica reports.
        """
        return end < self._enough_before

    def have_confirmed(self, end: int) -> bool:
        """Return whether enough replicas have the log up to ``end``."""
        return end <= self._log.confirmed_offset

    def add(self, waiter: Waiter) -> None:
        """Notify ``waiter`` when enough replicas have the log up to its offset."""
        with self._guard:
            self._waiters.drop_timed_out()
            self._waiters.add(waiter)
            if self._final is not None or self.have_confirmed(waiter.offset):
                self._tell_waiters()

    def give_up(self) -> None:
        """Notify current and later waiters that no more messages are confirmed, because the store
        is closed."""
        with self._guard:
            self._final = self._log.confirmed_offset
            self._tell_waiters()

    def _tell_waiters(self) -> None:
        """Notify the waiters whose wait is over. Two threads at the same time could miss one."""
        if self._final is None:
            self._waiters.tell(self._log.confirmed_offset)
        else:
            self._waiters.tell(self._final, ended=True)

    @property
    def needed(self) -> int:
        """The number of copies that a message must have now, the master's own included."""
        in_group = self._in_group or self._required is not None
        return copies_needed(self._live.current, self._connected, in_group=in_group)

    def _update(self) -> bool:
        """Compute the confirmed offset again, and notify waiters; return whether it has grown."""
        if self._live.current.role is BrokerRole.SLAVE:  # its master says what is confirmed
            return False
        if self._final is not None:
            return False
        before = self._log.confirmed_offset
        offsets = sorted((ack.offset for ack in self._counted()), reverse=True)
        self._connected = len(offsets)
        possible = self._possible()
        others = self.needed - 1
        confirmed = enough_before = OFFSET_MAX
        if others > 0:
            confirmed = offsets[others - 1] if others <= len(offsets) else 0
            gap = self._live.current.max_gap_not_in_sync
            enough_before = possible[others - 1] + gap if others <= len(possible) else 0
        if self._live.current.role is BrokerRole.SYNC_MASTER:
            confirmed = min(confirmed, self._confirmed_by_required())
            if not (self._required or frozenset()) <= self._by_member().keys():
                enough_before = 0
            if self._in_group and self._clock.monotonic() < self._return_by:
                enough_before = OFFSET_MAX
        self._enough_before = enough_before
        were_needed, self.are_needed = self.are_needed, confirmed < OFFSET_MAX
        self._log.confirmed_offset = confirmed
        self._keep_confirmed(begins=self.are_needed and not were_needed and before == OFFSET_MAX)
        if self._log.confirmed_offset <= before:
            return False
        self._tell_waiters()
        return True

    def _keep_confirmed(self, *, begins: bool) -> None:
        """Keep what is confirmed; what was stored before replicas ``begin`` to be needed, is."""
        log = self._log
        if self.are_needed:
            once = log.max_offset if begins else min(log.confirmed_offset, log.max_offset)
            log.once_confirmed = max(once, log.once_confirmed)
        if self._live.current.role is BrokerRole.SYNC_MASTER:
            log.keep_confirmed(log.once_confirmed if self.are_needed else OFFSET_MAX)
            log.is_confirmed_end_known |= log.confirmed_offset > 0

    def _possible(self) -> list[int]:
        """Return the ends of the logs of all replicas that may differ, longest first."""
        counted = self._counted()
        may_differ = (ack for ack in self._acks.values() if isinstance(ack.replica, SharedAddress))
        others = [ack for ack in may_differ if not any(ack is each for each in counted)]
        return sorted((ack.offset for ack in (*counted, *others)), reverse=True)

    def _confirmed_by_required(self) -> int:
        """Return the end of the shortest log of the required members; 0 if they are not known."""
        if self._required is None:
            return 0 if self._in_group else OFFSET_MAX
        ends = self._by_member()
        return min((ends.get(member, 0) for member in self._required), default=OFFSET_MAX)
