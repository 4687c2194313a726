"""``firetrail group``: the consumer groups of a cluster."""

from __future__ import annotations

import argparse
import json

from firetrail.cli import cluster
from firetrail.cli.command import ExitCode, Subparsers
from firetrail.cli.common import not_negative
from firetrail.cli.output import table
from firetrail.client import Admin
from firetrail.errors import RequestError
from firetrail.remoting.bodies import SubscriptionGroupConfig
from firetrail.remoting.codes import ResponseCode

DESCRIPTION = """\
List the consumer groups of a cluster, show the members of a group, create or delete a group."""
EXAMPLES = """\
  firetrail group list
  firetrail group show billing
  firetrail group create billing --retries 3
  firetrail group create kitchen --orderly
  firetrail group delete billing"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser."""
    parser = cluster.add_parser(
        subparsers, "group", "list, show, create and delete groups", DESCRIPTION, EXAMPLES
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    cluster.add_action(actions, "list", "list the names of all consumer groups")
    cluster.add_action(actions, "show", "show the connected members of a group", "group")
    create = cluster.add_action(
        actions, "create", "create or change a group on every master", "group"
    )
    create.add_argument(
        "--retries",
        metavar="N",
        type=not_negative,
        default=16,
        help="retries of a message before it becomes a dead letter (default: %(default)s)",
    )
    create.add_argument(
        "--orderly",
        action="store_true",
        help="deliver messages to gRPC clients in order; clients of the remoting protocol decide "
        "that themselves",
    )
    cluster.add_action(actions, "delete", "delete a group and its offsets", "group")
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Run the action."""
    cluster.run(args, _run(args))
    return ExitCode.OK


async def _run(args: argparse.Namespace) -> None:
    async with Admin(args.namesrv) as admin:
        if args.action == "list":
            names = sorted(await admin.groups())
            print(json.dumps(names) if args.json else "\n".join(names))
        elif args.action == "show":
            members = await _members(admin, args.group)
            if not members:
                await cluster.check_group(admin, args.namesrv, args.group)
            _show(args, members)
        elif args.action == "create":
            config = SubscriptionGroupConfig(
                args.group, retry_max_times=args.retries, consume_message_orderly=args.orderly
            )
            await admin.create_group(config)
            print(json.dumps({"group": args.group}) if args.json else f"{args.group}: created")
        else:
            await cluster.check_group(admin, args.namesrv, args.group)
            await admin.delete_group(args.group)
            print(json.dumps({"group": args.group}) if args.json else f"{args.group}: deleted")


async def _members(admin: Admin, group: str) -> dict[str, tuple[str, str, int]]:
    """Return address, language and version of the members on all brokers, by client id."""
    found: dict[str, tuple[str, str, int]] = {}
    for address in (await admin.masters()).values():
        try:
            members = (await admin.consumers(group, address)).connection_set
        except RequestError as error:
            if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise
            continue
        found |= {m.client_id: (m.client_addr, m.language, m.version) for m in members}
    return found


def _show(args: argparse.Namespace, members: dict[str, tuple[str, str, int]]) -> None:
    rows = [(client, *rest) for client, rest in sorted(members.items())]
    if args.json:
        names = ("client_id", "address", "language", "version")
        for row in rows:
            print(json.dumps(dict(zip(names, row, strict=True))))
    elif rows:
        print("\n".join(table(("CLIENT", "ADDRESS", "LANGUAGE", "VERSION>"), rows)))
    else:
        print(f"{args.group}: no member is connected")
