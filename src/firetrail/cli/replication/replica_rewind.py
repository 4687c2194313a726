"""``firetrail replica rewind``: remove from a store what its new master does not have."""

import argparse
import asyncio
import json

from firetrail.broker.replica.rewound_files import settle_rewound
from firetrail.cli import common
from firetrail.cli.output import human_size
from firetrail.cli.replication.role_client import broker_address
from firetrail.cli.stores.discarded_messages import confirm, loss_lines
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.replication.replica.master_check import (
    REQUEST_MAX_S,
    Master,
    MasterAddress,
)
from firetrail.replication.replica.rewind import RewindPlan, RewindResult, plan_rewind, rewind
from firetrail.system import SYSTEM, allow_many_files

DESCRIPTION = """\
Make a store follow another master: find the last record that both have, and remove everything after
it from the store. A former master needs this if it has messages that its successor lacks. When it
is started as a replica of the successor, its state is then "diverged".

The store must not be in use, and the master must be running. The removed records are kept in a
folder dropped-<time> in the store: 'firetrail dump' prints them, and 'firetrail salvage' creates a
store from them. Queues and index are cut when the store is next opened. A role as master that the
store was given by 'firetrail replica promote' is removed. An interrupted rewind can be repeated.

Exit code 0: the store can follow the master; 2: nothing was changed."""
EXAMPLES = """\
  firetrail replica rewind data --of 10.0.0.2:10911 --dry-run
  firetrail replica rewind data --of 10.0.0.2:10911 --yes --json"""


def add(actions: Subparsers) -> None:
    """Add the parser."""
    parser = common.add_parser(
        actions, "rewind", "remove what the new master does not have", DESCRIPTION, EXAMPLES
    )
    parser.add_argument(
        "--of",
        metavar="HOST:PORT",
        type=broker_address,
        required=True,
        help="address of the master's broker",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="change nothing, only report what would be removed"
    )
    parser.add_argument(
        "--yes",
        action="store_true",
        help="do not ask before removing messages; without a terminal there is no question",
    )
    common.add_json(parser, "print a JSON object: the common point and what was removed")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> ExitCode:
    """Rewind the store, and print the removed messages."""
    allow_many_files()
    rewound, role = asyncio.run(_rewind(args))
    if args.json:
        print(json.dumps(_as_json(args, rewound) | {"removed_role": role or None}))
        return ExitCode.OK
    print("\n".join(_lines(args, rewound)))
    if role:
        print(f"its role {role}, which it was given by command, is removed")
    return ExitCode.OK


async def _rewind(args: argparse.Namespace) -> tuple[RewindResult, str]:
    """Return a report, and the role of a master that the rewind has removed."""
    client = RemotingClient()
    try:
        master = Master(client, MasterAddress(args.of), REQUEST_MAX_S)
        if args.dry_run:
            return RewindResult(await plan_rewind(SYSTEM, args.store, master), None), ""
        rewound = await rewind(SYSTEM, args.store, master, lambda plan: _confirm(args, plan))
        return rewound, settle_rewound(SYSTEM, args.store)
    finally:
        await client.close()


def _confirm(args: argparse.Namespace, plan: RewindPlan) -> None:
    if plan.removed is not None:
        advice = "A copy is kept in a folder dropped-<time> of the store."
        confirm(args, plan.removed.loss, advice)


def _lines(args: argparse.Namespace, rewound: RewindResult) -> list[str]:
    plan, kept = rewound
    if plan.cut.last_record < 0:
        return [f"{args.store}: the store has no messages; there is nothing to remove"]
    if plan.own_end <= plan.cut.end:
        return [
            f"{args.store}: the master has all records up to the end at {plan.own_end}; there is "
            "nothing to remove"
        ]
    size = human_size(plan.own_end - plan.cut.end)
    verb = "would remove" if args.dry_run else "removed"
    lines = [
        f"{args.store}: the last record in common with {args.of} is at offset "
        f"{plan.cut.last_record}",
        f"{verb} {size} of the log, from {plan.cut.end} to {plan.own_end}",
    ]
    if plan.removed is not None:
        lines += loss_lines(plan.removed.loss, verb)
    if kept is not None:
        lines.append(f"a copy of the removed records is in {kept}")
    return lines


def _as_json(args: argparse.Namespace, rewound: RewindResult) -> dict[str, object]:
    plan, kept = rewound
    return {
        "store": str(args.store),
        "master": args.of,
        "master_range": list(plan.master),
        "last_common_record": plan.cut.last_record if plan.cut.last_record >= 0 else None,
        "end": plan.cut.end,
        "previous_end": plan.own_end,
        "removed_bytes": max(plan.own_end - plan.cut.end, 0),
        "removed": plan.removed.loss.as_json() if plan.removed is not None else None,
        "kept_in": str(kept) if kept is not None else None,
        "dry_run": args.dry_run,
    }
