"""The check whether the state of a consensus engine continues what members have seen.

An engine that has lost its data, was restored from an old backup, has the state of another group,
or was edited by hand would make complete members remove messages that were acknowledged. A member
compares the engine with its own memory and with what the other members report. It *refuses* a state
that does not continue what any of them has seen: it neither campaigns, nor follows, nor cuts its
log, and it says why.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from firetrail.replication.group.group_memory import GroupMemory
from firetrail.replication.group.group_view import GroupView, InSyncSet, MemberReport
from firetrail.replication.group.lineage import HISTORY_MAX, Lineage

REMEDY = "'firetrail replica recover-group' with the addresses of all members shows what to do"
LEFT_OUT_REMEDY = (
    "Read from its folder what the group lacks, then replace its store with 'firetrail replica "
    "replace' or 'firetrail cluster replace'"
)


class StateConflict(StrEnum):
    """The reason for which a state is refused. Status and scripts rely on the values."""

    LOST = "coordinator-lost"
    """The engine has no group, but members have seen one."""
    OLDER = "coordinator-older"
    """The engine has an earlier version than a member has seen."""
    OTHER_PAST = "coordinator-other-past"
    """The engine has a later version, but not one that follows what a member has seen."""
    OTHER_GROUP = "coordinator-other-group"
    """The engine has a group that was created at another time."""
    EDITED = "coordinator-edited"
    """The entry of the engine was not written by a member."""
    DECIDED_WITHOUT = "decided-without"
    """An operator has decided without the member, which has seen more than the others."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The refusal of a state.

    Attributes:
        doubt: The reason, as a kind.
        reason: The whole sentence, with the remedy.
    """

    doubt: StateConflict
    reason: str


def find_refusal(view: GroupView, memory: GroupMemory, member: int) -> Refusal | None:
    """Return why a member refuses the state of the engine; None if it accepts it.

    Args:
        view: The state.
        memory: The state that the member has seen.
        member: Its number.
    """
    state = view.in_sync
    if state is None:
        return _lost(view, memory, member)
    if not state.lineage.group:
        return _unversioned(memory)
    if not state.lineage.is_genuine(state.members, state.offset):
        return Refusal(
            StateConflict.EDITED,
            f"the in-sync set of the group in etcd ({_numbers(state.members)}) was changed by hand,"
            f" or its value is damaged, so it does not say which members are complete; {REMEDY}",
        )
    found = _compared(state, memory, "this member", member)
    for number, report in sorted(view.reports.items()):
        counts = number != member and _counts(number, report.memory, state)
        if found is None and counts:
            found = _compared(state, report.memory, f"member {number}", number)
    return found


def _counts(number: int, memory: GroupMemory, state: InSyncSet) -> bool:
    """Return whether what another member reports is compared with a state.

    A broker of another group that was given a wrong name must not stop this one, and neither must a
    member without which an operator has decided.
    """
    lineage = state.lineage
    if memory.group != lineage.group or lineage.excludes(number, memory.decided):
        return False
    return lineage.version - memory.version < HISTORY_MAX


def _lost(view: GroupView, memory: GroupMemory, member: int) -> Refusal | None:
    known = [n for n, report in view.reports.items() if report.memory.group and n != member]
    if memory.group:
        return Refusal(
            StateConflict.LOST,
            f"etcd has lost the state of the group, of which this member has seen version "
            f"{memory.version}. {_who_is_awaited(view, memory)}",
        )
    if known:
        return Refusal(
            StateConflict.LOST,
            f"etcd has lost the state of the group, of which this member has seen nothing; members "
            f"{_numbers(known)} know it, and create it again when all members run",
        )
    return None


def _who_is_awaited(view: GroupView, memory: GroupMemory) -> str:
    missing = {*memory.members} - {*view.reports}
    if missing:
        return (
            "It is created again when all members have reported what they have seen; missing: "
            f"{_numbers(missing)}. If they do not come back, {REMEDY}"
        )
    return f"All members have reported what they have seen. If no master is elected, {REMEDY}"


def _unversioned(memory: GroupMemory) -> Refusal | None:
    if not memory.group:
        return None
    return Refusal(
        StateConflict.EDITED,
        "the in-sync set of the group in etcd has no past: it was written by hand, or by a release "
        f"of Firetrail that does not keep one; run the same release on all members. {REMEDY}",
    )


def _compared(state: InSyncSet, memory: GroupMemory, who: str, number: int) -> Refusal | None:
    """Return why a state does not continue what a member has seen; None if it does."""
    lineage = state.lineage
    if not memory.group or lineage.continues(memory.last_id):
        return None
    if memory.group != lineage.group:
        return Refusal(
            StateConflict.OTHER_GROUP,
            f"etcd has the state of another group: {who} belongs to the group {memory.group}, and "
            f"etcd has the group {lineage.group} under the same name. The group was created again, "
            f"or the data of another etcd was restored; {REMEDY}",
        )
    if lineage.excludes(number, memory.decided):
        return Refusal(StateConflict.DECIDED_WITHOUT, _left_out(lineage, memory))
    if lineage.version < memory.version:
        return Refusal(
            StateConflict.OLDER,
            f"the state of the group in etcd is older than what {who} has seen: etcd has version "
            f"{lineage.version} with epoch {lineage.epoch}, {who} has seen version "
            f"{memory.version} with epoch {memory.epoch}. etcd was restored from an older backup; "
            f"{REMEDY}",
        )
    if lineage.version - memory.version >= HISTORY_MAX and number not in state.members:
        return None  # it was away for so long that only a comparison of the logs can tell
    return Refusal(
        StateConflict.OTHER_PAST,
        f"the state of the group in etcd does not continue what {who} has seen: etcd has version "
        f"{lineage.version}, but not the version {memory.version} that {who} has seen. etcd was "
        f"restored from an older backup and used since; {REMEDY}",
    )


def _left_out(lineage: Lineage, memory: GroupMemory) -> str:
    return (
        f"an operator has decided without this member which log is the group's (version "
        f"{lineage.decided}), and this member has seen the version {memory.version}, which the "
        "others lack or no longer know. It does not follow, and keeps all its messages. "
        f"{LEFT_OUT_REMEDY}"
    )


def restored_set(reports: Mapping[int, MemberReport]) -> tuple[int, InSyncSet] | None:
    """Return the member that may create a lost group again, and its in-sync set; None if none may.

    All members of the group must have reported. Then no member knows a later version than the
    newest one among them, and all members of its in-sync set have everything that was acknowledged.
    The one with the longest log creates the group. Its offset is what all of them know to be
    confirmed: the set can be older, and the newer offset was lost with the engine.

    Args:
        reports: The state that each member has seen.
    """
    known = {n: report for n, report in reports.items() if report.memory.group}
    if not known:
        return None
    newest = known[_newest(known)].memory
    awaited = {member for report in known.values() for member in report.memory.members}
    past = newest.lineage
    if not awaited <= known.keys():
        return None
    if not all(past.continues(report.memory.last_id) for report in known.values()):
        return None
    if any(report.memory.group != newest.group for report in known.values()):
        return None
    if any(known[number].end < newest.offset for number in newest.in_sync):
        return None  # a disk was replaced or restored
    confirmed = min((known[number].confirmed for number in newest.in_sync), default=0)
    offset = max(newest.offset, confirmed)
    return most_advanced(known), InSyncSet(frozenset(newest.in_sync), offset, 0, newest.lineage)


def most_advanced(reports: Mapping[int, MemberReport]) -> int:
    """Return the member with the longest log among those that were in sync last.

    Args:
        reports: The state that each member has seen; at least one.
    """
    complete = [n for n in reports[_newest(reports)].memory.in_sync if n in reports]
    return max(complete or reports, key=lambda number: (reports[number].end, -number))


def _newest(reports: Mapping[int, MemberReport]) -> int:
    """Return the member that has seen the latest version."""
    return max(reports, key=lambda number: (reports[number].memory.version, reports[number].end))


def store_obstacle(identities: Mapping[int, str], member: int, identity: str) -> str:
    """Return why a store cannot be that of a member; empty if it can.

    Args:
        identities: The identities of the members' stores, by number.
        member: The number of the member.
        identity: The identity of its store.
    """
    if identities.get(member, identity) != identity:
        return (
            f"another store is member {member} of the group; give this broker another ha_member, "
            "or, if it replaces that store, stop it and run 'firetrail replica replace'"
        )
    copies = [n for n, one in sorted(identities.items()) if one == identity and n != member]
    if copies and member not in identities:
        return (
            f"the folder of this broker is a copy of that of member {copies[0]}: both have the "
            "identity of one store, so one of them lacks messages that it has confirmed; start "
            "this broker with an empty folder. If it is the same store with another number, delete "
            f"the key members/{copies[0]} of the group in etcd"
        )
    return ""


def _numbers(members: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(members)))
