"""``firetrail replica recover-group``: decide which log is the group's after etcd has lost data."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from firetrail.broker.replica.role_requests import ask_status
from firetrail.cli import common
from firetrail.cli.output import human_size, say, table
from firetrail.cli.replication.role_client import broker_address, broker_client
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.errors import FiretrailError, RequestError
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.replica_bodies import (
    EpochEntryCache,
    GroupReport,
    ReplicaStatus,
    SeenReport,
)
from firetrail.remoting.messages.replica_headers import RecoverGroupHeader
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.replication.group.group_check import StateConflict, most_advanced
from firetrail.replication.group.group_memory import GroupMemory
from firetrail.replication.group.group_view import MemberReport
from firetrail.replication.log.epochs import Epoch, common_point
from firetrail.system import SYSTEM

DESCRIPTION = """\
Decide which log is that of a group with automatic failover, if its members refuse the state of the
group in etcd: because etcd was restored from an older backup, was emptied while a member is lost,
or was edited by hand ('firetrail replica status' then has exit code 10).

Give the addresses of all members. The command asks them what they have seen, and chooses the most
advanced log: the longest one of the members that were in sync last. It shows what the others have
to remove to follow it, which is nothing in most cases, and asks for a confirmation. Then the chosen
member becomes the master, and the others follow it. What they remove is kept in a folder
dropped-<time> in their stores.

A member that does not answer has to be named with --without. If it has messages that the chosen one
lacks, it refuses to follow when it comes back, and keeps them; the others go on without it, and
'firetrail replica replace' gives it an empty store.

Exit code 0: the chosen member is the master, or with --dry-run, it could be; 2: nothing was
changed."""
EXAMPLES = """\
  firetrail replica recover-group 10.0.0.2:10911 10.0.0.3:10911 10.0.0.4:10911 --dry-run
  firetrail replica recover-group 10.0.0.2:10911 10.0.0.3:10911 --without 3 --yes --json"""
CHANGE_WAIT_S = 60.0
"""The time that the command waits until a lease that is not renewed has expired, and until the
chosen member is the master."""
POLL_S = 0.5
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class _AskedMember:
    """A member, and its answer."""

    status: ReplicaStatus
    group: GroupReport
    seen: SeenReport
    epochs: tuple[Epoch, ...]

    @property
    def number(self) -> int:
        return self.group.number

    @property
    def end(self) -> int:
        return self.status.max_offset

    @property
    def report(self) -> MemberReport:
        seen = self.seen
        memory = GroupMemory(seen.group, seen.version, seen.epoch, in_sync=seen.in_sync)
        return MemberReport(memory, self.end)

    def lacks(self, other: _AskedMember) -> int:
        """Return an upper limit for the bytes of another member's log that this one lacks; -1 if
        unknown.

        After different pasts, epochs with one number and start can be two: a member whose store was
        restored together with etcd begins its former epoch again.
        """
        if not (_has_same_past(self, other) or _has_same_past(other, self)):
            return UNKNOWN
        point = common_point(self.epochs, self.end, other.epochs, other.end)
        if point is None:
            return 0 if other.end == other.status.min_offset else UNKNOWN
        return other.end - point

    def lacks_confirmed(self, other: _AskedMember) -> int:
        """Return an upper limit for the confirmed ones of these bytes; -1 if unknown."""
        confirmed, missing = other.status.confirmed_offset, self.lacks(other)
        if missing == UNKNOWN or confirmed < 0:
            return missing and UNKNOWN
        return max(missing - (other.end - min(confirmed, other.end)), 0)


@dataclass(frozen=True, slots=True)
class _ChosenLog:
    """The choice of the log that becomes the group's."""

    chosen: _AskedMember
    others: list[_AskedMember]

    @property
    def lost(self) -> list[tuple[_AskedMember, int]]:
        """The members that have to remove records, with the number of bytes; -1 if it is
        unknown."""
        each = [(other, self.chosen.lacks(other)) for other in self.others]
        return [(other, size) for other, size in each if size]

    @property
    def header(self) -> RecoverGroupHeader:
        every = [self.chosen, *self.others]
        return RecoverGroupHeader(
            " ".join(sorted({each.seen.version_id for each in self.others} - {""})),
            max(each.seen.version for each in every),
            max(max(each.seen.epoch, each.status.epoch) for each in every),
            " ".join(str(each.number) for each in every),
        )


def add(actions: Subparsers) -> None:
    """Add the parser."""
    parser = common.add_plain_parser(
        actions,
        "recover-group",
        "decide which log is the group's after etcd has lost data",
        DESCRIPTION,
        EXAMPLES,
    )
    parser.add_argument(
        "addresses",
        metavar="ADDRESS",
        nargs="+",
        type=broker_address,
        help="HOST:PORT of the broker of each member",
    )
    parser.add_argument(
        "--choose",
        metavar="NUMBER",
        type=int,
        help="the member whose log is the group's (default: the most advanced one)",
    )
    parser.add_argument(
        "--without",
        metavar="NUMBER",
        type=int,
        action="append",
        default=[],
        help="a member that does not answer, and is not waited for; may be repeated",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="change nothing, only report what would be done"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask for a confirmation")
    common.add_json(parser, "print a JSON object: the members, the chosen one and what is removed")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> ExitCode:
    """Decide, and print the decision."""
    decision = asyncio.run(_recover(args))
    if args.json:
        print(json.dumps(_as_json(decision, args.dry_run)))
    elif not args.dry_run:
        chosen = decision.chosen
        print(f"member {chosen.number} at {chosen.status.address} is the master of the group")
    return ExitCode.OK


async def _recover(args: argparse.Namespace) -> _ChosenLog:
    async with broker_client() as client:
        members = [await _ask(client, address) for address in args.addresses]
        _check_needed(members)
        decision = _decide(members, args.choose)
        if not args.json:
            print("\n".join(_lines(decision)))
        _check_asked(members, args.without)
        if args.dry_run:
            return decision
        _confirm(args)
        await _send(client, decision)
        await _wait(client, decision.chosen.status.address)
    return decision


async def _ask(client: RemotingClient, address: str) -> _AskedMember:
    status = await ask_status(client, address)
    command = RemotingCommand(RequestCode.GET_BROKER_EPOCH_CACHE)
    found = EpochEntryCache.decode((await client.ask(address, command)).content)
    group = status.group
    if group is None or group.seen is None:
        raise FiretrailError(f"{address} is not a member of a group with automatic failover")
    epochs = tuple(Epoch(each.epoch, each.start_offset) for each in found.epoch_list)
    return _AskedMember(status, group, group.seen, epochs)


def _decide(members: Sequence[_AskedMember], choice: int | None) -> _ChosenLog:
    """Choose the most advanced log, or the one that the operator wants."""
    by_number = {member.number: member for member in members}
    if len(by_number) < len(members):
        raise FiretrailError(
            "two of the addresses are those of the same member, or of two brokers "
            "with one ha_member; give the address of each member once"
        )
    chosen = by_number[most_advanced({n: member.report for n, member in by_number.items()})]
    if choice is not None:
        if choice not in by_number:
            raise FiretrailError(f"member {choice} is none of those that were asked")
        chosen = by_number[choice]
    elif strangers := [each for each in members if not _has_same_past(chosen, each)]:
        print("\n".join(_member_lines(members)), file=sys.stderr)
        numbers = ", ".join(str(each.number) for each in strangers)
        raise FiretrailError(
            f"members {chosen.number} and {numbers} have seen different pasts of the group, so "
            "none of them is more advanced; choose one of them with --choose, and compare first "
            "with --dry-run what would be lost"
        )
    return _ChosenLog(chosen, [member for member in members if member is not chosen])


def _has_same_past(chosen: _AskedMember, other: _AskedMember) -> bool:
    """Return whether the past of one member contains what another one has seen."""
    seen, own = other.seen, chosen.seen
    return seen.version_id in ("", own.version_id, *own.history, *own.overruled)


def _check_needed(every: Sequence[_AskedMember]) -> None:
    """Raise FiretrailError if no decision is needed."""
    if not any(member.group.in_sync for member in every):
        return
    doubting = [member for member in every if member.group.doubt]
    if not doubting:
        if any(member.group.older_log for member in every) and not any(
            member.group.holder for member in every
        ):
            return  # no member that runs is complete
        raise FiretrailError("no member refuses the state of the group in etcd: nothing to recover")
    if len(doubting) < len(every) and all(
        member.group.doubt == StateConflict.DECIDED_WITHOUT for member in doubting
    ):
        reasons = "; ".join(f"member {each.number}: {each.group.refusal}" for each in doubting)
        raise FiretrailError(f"the group goes on without a further decision. {reasons}")


def _check_asked(every: Sequence[_AskedMember], without: Sequence[int]) -> None:
    """Raise FiretrailError if a member was not asked."""
    known = {number for member in every for number in member.seen.members}
    missing = sorted(known - {member.number for member in every} - {*without})
    if missing:
        numbers = ", ".join(map(str, missing))
        raise FiretrailError(
            f"member {numbers} was not asked, and may have a more advanced log; add its address, or"
            f" --without {missing[0]} if it does not come back"
        )


def _confirm(args: argparse.Namespace) -> None:
    if args.yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise FiretrailError("nothing was changed: add --yes to confirm")
    print("Recover the group? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise FiretrailError("nothing was changed")


async def _send(client: RemotingClient, decision: _ChosenLog) -> None:
    """Send the decision. A lease that is not renewed has to expire first."""
    command = RemotingCommand(RequestCode.RECOVER_GROUP, decision.header.encode())
    address = decision.chosen.status.address
    deadline = SYSTEM.clock.monotonic() + CHANGE_WAIT_S
    while True:
        try:
            await client.ask(address, command)
            return
        except RequestError as error:
            is_over = SYSTEM.clock.monotonic() > deadline
            if error.code != ResponseCode.SYSTEM_BUSY or is_over:
                raise
            say(f"waiting: {error}")
        await asyncio.sleep(POLL_S)


async def _wait(client: RemotingClient, address: str) -> None:
    """Wait until the chosen member is the master."""
    deadline = SYSTEM.clock.monotonic() + CHANGE_WAIT_S
    while SYSTEM.clock.monotonic() < deadline:
        status = await ask_status(client, address)
        if status.group is not None and status.group.holder == status.address:
            return
        await asyncio.sleep(POLL_S)
    raise FiretrailError(
        f"the decision is in etcd, but {address} has not become the master within"
        f" {CHANGE_WAIT_S:g} s; see 'firetrail replica status {address}'"
    )


def _lines(decision: _ChosenLog) -> list[str]:
    chosen = decision.chosen
    lines = [
        *_member_lines(sorted([chosen, *decision.others], key=lambda member: member.number)),
        f"the log of member {chosen.number} will be the group's",
    ]
    for other, size in decision.lost:
        what = "an unknown part" if size == UNKNOWN else f"at most {human_size(size)}"
        lines.append(
            f"member {other.number} removes {what} of its log, which member {chosen.number} lacks, "
            "and keeps a copy"
        )
        lines.append(f"  {_acknowledged(size, chosen.lacks_confirmed(other))}")
    if not decision.lost:
        lines.append("no member has anything that it lacks: nothing is lost")
    return lines


def _acknowledged(removed: int, size: int) -> str:
    """Describe the part of a removed log that producers may count on."""
    if removed == UNKNOWN:
        return "it may have acknowledged messages: the two logs cannot be compared by their epochs"
    if size == UNKNOWN:
        return "it may have acknowledged messages: the member does not tell what was confirmed"
    if size:
        return f"ACKNOWLEDGED MESSAGES ARE LOST: {human_size(size)} of that were confirmed"
    return "nothing of that was confirmed"


def _member_lines(members: Sequence[_AskedMember]) -> list[str]:
    head = ["member>", "address", "log up to>", "confirmed up to>", "epoch>", "version>"]
    head += ["in sync", "state"]
    rows = [
        [
            member.number,
            member.status.address,
            member.end,
            member.status.confirmed_offset if member.status.confirmed_offset >= 0 else "unknown",
            member.seen.epoch,
            member.seen.version,
            "yes" if member.number in member.seen.in_sync else "no",
            member.group.doubt or "accepts the state in etcd",
        ]
        for member in members
    ]
    return table(head, rows)


def _as_json(decision: _ChosenLog, dry_run: bool) -> dict[str, object]:
    lost = {other.number: size for other, size in decision.lost}
    every = [decision.chosen, *decision.others]
    return {
        "chosen": decision.chosen.number,
        "address": decision.chosen.status.address,
        "dry_run": dry_run,
        "members": [
            {
                "member": member.number,
                "address": member.status.address,
                "end": member.end,
                "epoch": member.seen.epoch,
                "version": member.seen.version,
                "doubt": member.group.doubt,
                "confirmed": member.status.confirmed_offset,
                "removed_bytes": lost.get(member.number, 0),
                "removed_confirmed_bytes": (
                    decision.chosen.lacks_confirmed(member) if member.number in lost else 0
                ),
            }
            for member in sorted(every, key=lambda member: member.number)
        ],
    }
