"""``firetrail group``: the consumer groups of a cluster."""

import argparse
import json
from typing import Any

from firetrail.cli import running_cluster
from firetrail.cli.common import not_negative
from firetrail.cli.output import table
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.client import Admin
from firetrail.errors import RequestError
from firetrail.remoting.messages.bodies import SubscriptionGroupConfig
from firetrail.remoting.wire.codes import ResponseCode

DESCRIPTION = """\
List the consumer groups of a cluster, show the settings and the members of a group, create or
delete a group."""
EXAMPLES = """\
  firetrail group list
  firetrail group show billing
  firetrail group create billing --retries 3
  firetrail group create kitchen --orderly
  firetrail group delete billing"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser."""
    parser = running_cluster.add_parser(
        subparsers, "group", "list, show, create and delete groups", DESCRIPTION, EXAMPLES
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    running_cluster.add_action(actions, "list", "list all consumer groups with their settings")
    running_cluster.add_action(
        actions, "show", "show the settings and the connected members of a group", "group"
    )
    create = running_cluster.add_action(
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
    running_cluster.add_action(actions, "delete", "delete a group and its offsets", "group")
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Run the action."""
    running_cluster.run(args, _run(args))
    return ExitCode.OK


async def _run(args: argparse.Namespace) -> None:
    async with Admin(args.namesrv) as admin:
        if args.action == "list":
            _list(args, await admin.groups())
        elif args.action == "show":
            members = await _members(admin, args.group)
            if not members:
                await running_cluster.check_group(admin, args.namesrv, args.group)
            _show(args, (await admin.groups()).get(args.group), members)
        elif args.action == "create":
            config = SubscriptionGroupConfig(
                args.group, retry_max_times=args.retries, consume_message_orderly=args.orderly
            )
            await admin.create_group(config)
            print(json.dumps({"group": args.group}) if args.json else f"{args.group}: created")
        else:
            await running_cluster.check_group(admin, args.namesrv, args.group)
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


def _list(args: argparse.Namespace, groups: dict[str, SubscriptionGroupConfig]) -> None:
    found = [groups[name] for name in sorted(groups)]
    if args.json:
        print(json.dumps([_settings(config) for config in found]))
    else:
        rows = [(config.group_name, *_described(config)) for config in found]
        print("\n".join(table(("", "", ""), rows)[1:]))  # no heads: scripts read a name per line


def _settings(config: SubscriptionGroupConfig) -> dict[str, Any]:
    return {
        "group": config.group_name,
        "retries": config.retry_max_times,
        "orderly": bool(config.consume_message_orderly),
        "may_consume": config.consume_enable,
        "may_broadcast": config.consume_broadcast_enable,
    }


def _described(config: SubscriptionGroupConfig) -> tuple[str, str]:
    """Return the retries, and the settings that differ from the default ones, as text."""
    notes = {
        "orderly": bool(config.consume_message_orderly),
        "consumption is disabled": not config.consume_enable,
        "broadcasting is disabled": not config.consume_broadcast_enable,
    }
    return f"retries {config.retry_max_times}", ", ".join(
        note for note, holds in notes.items() if holds
    )


def _show(
    args: argparse.Namespace,
    config: SubscriptionGroupConfig | None,
    members: dict[str, tuple[str, str, int]],
) -> None:
    """Print the settings of a group, if brokers have any, and its members."""
    rows = [(client, *rest) for client, rest in sorted(members.items())]
    if args.json:
        names = ("client_id", "address", "language", "version")
        found = {"group": args.group} if config is None else _settings(config)
        found["members"] = [dict(zip(names, row, strict=True)) for row in rows]
        print(json.dumps(found))
        return
    if config is not None:
        print(f"{args.group}: {', '.join(filter(None, _described(config)))}")
    if rows:
        print("\n".join(table(("CLIENT", "ADDRESS", "LANGUAGE", "VERSION>"), rows)))
    else:
        print(f"{args.group}: no member is connected")
