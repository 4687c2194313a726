"""The states of the members of a group, as ``firetrail cluster status`` shows them.

Each state has an advice: whether to act, and how. ``docs/guide/what-to-do.md`` explains all of
them; a test compares the page with this table.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from firetrail.broker.replica.role_requests import ask_status
from firetrail.cli.replication.role_client import broker_client
from firetrail.errors import FiretrailError
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.replica_bodies import FollowerReport, ReplicaStatus
from firetrail.replication.group.group_status import GroupProblem
from firetrail.replication.replica.follower_status import FollowerState
from firetrail.store.settings.config_rules import BrokerRole
from firetrail.text import counted

PAGE = "docs/guide/what-to-do.md"


class MemberState(StrEnum):
    """The state of a member of a group. Scripts rely on the values."""

    MASTER = "master"
    ASYNCHRONOUS = "asynchronous"
    IN_SYNC = "in-sync"
    FOLLOWING = "following"
    CATCHING_UP = "catching-up"
    CHECKING = "checking"
    NO_MASTER = "no-master"
    CHANGING_ROLE = "changing-role"
    UNFINISHED = "hand-over-unfinished"
    UNCONFIRMED = "unconfirmed"
    REFUSING = "refusing"
    NOT_FOLLOWING = "not-following"
    STUCK = "stuck"
    DIVERGED = "diverged"
    OLDER_MASTER = "older-master"
    OLDER_LOG = "older-log"
    INCOMPLETE = "incomplete"
    DAMAGED = "damaged"
    FULL_DISK = "full-disk"
    NO_COORDINATOR = "no-coordinator"
    FOREIGN_NUMBER = "foreign-number"
    COORDINATOR_LOST = "coordinator-lost"
    COORDINATOR_OLDER = "coordinator-older"
    COORDINATOR_OTHER_PAST = "coordinator-other-past"
    COORDINATOR_OTHER_GROUP = "coordinator-other-group"
    COORDINATOR_EDITED = "coordinator-edited"
    DECIDED_WITHOUT = "decided-without"
    DOWN = "down"
    NOT_ASKED = "not-asked"


class Advice(NamedTuple):
    """The meaning of a state for the operator."""

    is_well: bool
    """Whether the member serves its purpose."""
    what_to_do: str
    """One line; empty if there is nothing to do."""


_RECOVER = "do not delete anything: 'firetrail replica recover-group' shows what would be lost"
ADVICE: Mapping[MemberState, Advice] = {
    MemberState.MASTER: Advice(True, ""),
    MemberState.ASYNCHRONOUS: Advice(
        True, "set brokerRole=SYNC_MASTER and restart it, unless a failover may lose messages"
    ),
    MemberState.IN_SYNC: Advice(True, ""),
    MemberState.FOLLOWING: Advice(True, ""),
    MemberState.CATCHING_UP: Advice(False, "wait: it joins the in-sync set when it has caught up"),
    MemberState.CHECKING: Advice(False, "wait: it compares its log with the master's"),
    MemberState.NO_MASTER: Advice(
        False,
        "wait for the end of a lease; if it lasts, start the other members of the in-sync set",
    ),
    MemberState.CHANGING_ROLE: Advice(False, "wait: the change takes a few seconds"),
    MemberState.UNFINISHED: Advice(
        False, "start the other broker of the hand-over; it is then finished or undone"
    ),
    MemberState.UNCONFIRMED: Advice(
        False, "start the missing members; until then producers get code 11 or 12"
    ),
    MemberState.REFUSING: Advice(False, "remove the reason, for example free space on the disk"),
    MemberState.NOT_FOLLOWING: Advice(
        False, "check the network between this member and the master; it retries by itself"
    ),
    MemberState.STUCK: Advice(
        False, "replace the member: the master has deleted what it needs next"
    ),
    MemberState.DIVERGED: Advice(
        False, "wait: the group removes what was not acknowledged; if it lasts, read its log"
    ),
    MemberState.OLDER_LOG: Advice(
        False,
        "start the other members of the in-sync set; if none comes back, see 'firetrail replica "
        "recover-group'",
    ),
    MemberState.OLDER_MASTER: Advice(
        False, "replace the *master*, whose store was restored from an old copy; nothing is lost"
    ),
    MemberState.INCOMPLETE: Advice(
        False, "give all members disks of the same size; replace the member to copy everything"
    ),
    MemberState.DAMAGED: Advice(
        False, "wait: it repairs its log from another member; if it lasts, replace the member"
    ),
    MemberState.FULL_DISK: Advice(
        False, "free space on its disk: it takes no part in the group meanwhile"
    ),
    MemberState.NO_COORDINATOR: Advice(
        False, "start etcd, or check the network to it: no master can be elected"
    ),
    MemberState.FOREIGN_NUMBER: Advice(
        False, "another store has this number: give the member a new ha_member, or replace it"
    ),
    MemberState.COORDINATOR_LOST: Advice(
        False, "start all members: they create the state in etcd again; if it lasts, read its log"
    ),
    MemberState.COORDINATOR_OLDER: Advice(False, _RECOVER),
    MemberState.COORDINATOR_OTHER_PAST: Advice(False, _RECOVER),
    MemberState.COORDINATOR_OTHER_GROUP: Advice(False, _RECOVER),
    MemberState.COORDINATOR_EDITED: Advice(False, _RECOVER),
    MemberState.DECIDED_WITHOUT: Advice(
        False, "read from its folder what the group lacks, then replace the member"
    ),
    MemberState.DOWN: Advice(False, "start its broker, or check the network to it"),
    MemberState.NOT_ASKED: Advice(False, "give its address as well, or name servers (--namesrv)"),
}
_MASTERS = (MemberState.MASTER, MemberState.ASYNCHRONOUS)
_FOLLOWERS = {
    FollowerState.WAITING.value: MemberState.NO_MASTER,
    FollowerState.CHECKING.value: MemberState.CHECKING,
    FollowerState.FAILED.value: MemberState.NOT_FOLLOWING,
    FollowerState.STUCK.value: MemberState.STUCK,
    FollowerState.DIVERGED.value: MemberState.DIVERGED,
}


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member at one moment.

    Attributes:
        number: Its number in the group; 0 if it is not known.
        address: ``ip:port`` of its broker; empty if it is not known.
        status: Its answer; None if there is none.
        state: Its present activity.
        reason: The reason why it is in this state; empty if there is nothing to say.
    """

    number: int
    address: str
    status: ReplicaStatus | None
    state: MemberState
    reason: str

    @property
    def advice(self) -> Advice:
        """The advice for the operator."""
        return ADVICE[self.state]

    @property
    def is_master(self) -> bool:
        """Whether it has the role of a master."""
        return self.status is not None and not self.status.is_slave


@dataclass(frozen=True, slots=True)
class GroupStates:
    """All members of a group at one moment."""

    members: tuple[MemberView, ...]

    @property
    def master(self) -> MemberView | None:
        """The master that accepts and confirms messages; None if there is none."""
        return next((each for each in self.members if each.state in _MASTERS), None)

    @property
    def is_complete(self) -> bool:
        """Whether there is a master, and all members serve their purpose."""
        return self.master is not None and all(each.advice.is_well for each in self.members)

    @property
    def summary(self) -> str:
        """All members and their states, in one line."""
        return ", ".join(f"member {each.number} {each.state}" for each in self.members)


def state_of(status: ReplicaStatus) -> tuple[MemberState, str]:
    """Return the state of a broker, and the reason."""
    if status.hand_over is not None:
        return MemberState.UNFINISHED, status.hand_over.remark
    if status.step:
        return MemberState.CHANGING_ROLE, status.step
    group = status.group
    if group is not None and group.doubt:
        return MemberState(group.doubt), group.refusal
    if group is not None and not group.is_member:
        return MemberState.FOREIGN_NUMBER, group.obstacle
    if group is not None and group.error:
        return MemberState(group.problem or GroupProblem.NO_COORDINATOR), group.error
    if not status.is_slave:
        if status.refusal:
            return MemberState.REFUSING, status.refusal
        if status.unconfirmed:
            return MemberState.UNCONFIRMED, status.unconfirmed
        if group is not None and status.role == BrokerRole.ASYNC_MASTER.value:
            reason = "it is an ASYNC_MASTER, which acknowledges messages that no replica has"
            return MemberState.ASYNCHRONOUS, "; ".join(filter(None, [reason, _damage(status)]))
        return MemberState.MASTER, _damage(status)
    return _state_of_slave(status, status.follower or FollowerReport(FollowerState.WAITING.value))


def _state_of_slave(status: ReplicaStatus, follower: FollowerReport) -> tuple[MemberState, str]:
    group = status.group
    if follower.state != FollowerState.FOLLOWING.value:
        if group is not None and group.older_master:
            return MemberState.OLDER_MASTER, group.older_master
        if group is not None and group.older_log and not group.member:
            return MemberState.OLDER_LOG, group.older_log
        if follower.state == FollowerState.DIVERGED.value and status.damaged_records:
            return MemberState.DAMAGED, f"{_damage(status)}; {follower.error}"
        obstacle = group.obstacle if group is not None and not group.member else ""
        return _FOLLOWERS[follower.state], obstacle or follower.error
    if status.damaged_records:
        return MemberState.DAMAGED, _damage(status)
    if follower.missing:
        return MemberState.INCOMPLETE, "it has deleted old messages that the master still has"
    if group is None:
        return MemberState.FOLLOWING, ""
    if group.number not in group.in_sync:
        return MemberState.CATCHING_UP, ""
    return MemberState.IN_SYNC, ""


def _damage(status: ReplicaStatus) -> str:
    """Describe how much of a log is damaged; empty if it has no damage."""
    if not status.damaged_records:
        return ""
    return f"{counted(status.damaged_records, 'damaged place')} in its log, not repaired yet"


async def ask_members(addresses: Mapping[int, str]) -> GroupStates:
    """Ask the members of a group at the same time.

    Args:
        addresses: ``ip:port`` of each broker by its number; a number that is not known is
            negative.
    """
    async with broker_client() as client:
        views = await _ask_all(client, addresses)
        known = {view.number for view in views}
        found = {n: at for view in views for n, at in _told_by(view.status) if n not in known}
        views += await _ask_all(client, found)
    known = {view.number for view in views}
    seen = {number for view in views for number in _members_of(view.status)}
    unseen = [
        MemberView(number, "", None, MemberState.NOT_ASKED, "its address is not known")
        for number in sorted(seen - known)
    ]
    return GroupStates(tuple(sorted([*views, *unseen], key=lambda view: view.number)))


async def _ask_all(client: RemotingClient, addresses: Mapping[int, str]) -> list[MemberView]:
    return await asyncio.gather(*(_ask(client, *each) for each in addresses.items()))


async def _ask(client: RemotingClient, number: int, address: str) -> MemberView:
    try:
        status = await ask_status(client, address)
    except (OSError, FiretrailError) as error:
        return MemberView(max(number, 0), address, None, MemberState.DOWN, str(error))
    state, reason = state_of(status)
    known = status.group.number if status.group is not None else max(number, 0)
    return MemberView(known, address, status, state, reason)


def _told_by(status: ReplicaStatus | None) -> Iterator[tuple[int, str]]:
    """Yield the numbers and addresses of the other members that a member knows."""
    if status is not None and status.group is not None:
        yield from status.group.addresses.items()


def _members_of(status: ReplicaStatus | None) -> set[int]:
    """Return the members of the group that a member knows."""
    if status is None or status.group is None:
        return set()
    seen = status.group.seen.members if status.group.seen is not None else []
    return {*status.group.in_sync, *seen}
