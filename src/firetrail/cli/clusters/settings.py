"""``firetrail settings``: the settings of running brokers."""

import argparse
import json

from firetrail.cli import running_cluster
from firetrail.cli.clusters.send import name_and_value
from firetrail.cli.common import KeyValues
from firetrail.cli.output import table
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.client import Admin
from firetrail.errors import NoSuchError
from firetrail.text import did_you_mean

DESCRIPTION = """\
Show the settings of running brokers, or change those that take effect without a restart.

A change is also written to the file that a broker was started with."""
EXAMPLES = """\
  firetrail settings show
  firetrail settings show fileReservedTime log_level
  firetrail settings set log_level=debug
  firetrail settings set fileReservedTime=48 --broker 10.0.0.5:10911"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser."""
    parser = running_cluster.add_parser(
        subparsers, "settings", "show and change settings of brokers", DESCRIPTION, EXAMPLES
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = running_cluster.add_action(
        actions, "show", "show settings, by their keys in broker.conf"
    )
    show.add_argument("keys", metavar="KEY", nargs="*", help="keys to show (default: all)")
    change = running_cluster.add_action(actions, "set", "change settings that are live")
    change.add_argument(
        "values",
        metavar="KEY=VALUE",
        nargs="+",
        type=name_and_value,
        action=KeyValues,
        help="the new value",
    )
    for action in (show, change):
        action.add_argument(
            "--broker", metavar="HOST:PORT", help="only this broker (default: all masters)"
        )
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Run the action."""
    running_cluster.run(args, _run(args))
    return ExitCode.OK


async def _run(args: argparse.Namespace) -> None:
    async with Admin(args.namesrv) as admin:
        brokers = {args.broker: args.broker} if args.broker else await admin.masters()
        keys = args.keys if args.action == "show" else list(args.values)
        found: dict[str, dict[str, str]] = {}
        for name, address in brokers.items():
            if args.action == "set":
                await admin.update_broker_config(address, args.values)
            settings = await admin.broker_config(address)
            for key in keys:
                if key not in settings:
                    hint = did_you_mean(key, settings)
                    raise NoSuchError(f"{name} has no setting {key}{hint}")
            found[name] = {key: settings[key] for key in keys or sorted(settings)}
    if args.json:
        print(json.dumps(found))
        return
    rows = [(name, key, value) for name, each in found.items() for key, value in each.items()]
    print("\n".join(table(("BROKER", "KEY", "VALUE"), rows)))
