"""``firetrail reset``: set the offsets of a consumer group."""

import argparse
import json

from firetrail.cli import running_cluster
from firetrail.cli.common import moment
from firetrail.cli.output import table
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.client import Admin

DESCRIPTION = """\
Set the offsets of a consumer group in a topic: to the first messages, to the end, or to a time.

Connected members are notified and continue from there. To reset a group that has never run, create
it first: firetrail group create."""
EXAMPLES = """\
  firetrail reset billing orders first
  firetrail reset billing orders 2026-11-15T09:30:00
  firetrail reset billing orders 1763199000000"""
_END = -1


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser."""
    parser = running_cluster.add_parser(
        subparsers, "reset", "set the offsets of a consumer group", DESCRIPTION, EXAMPLES
    )
    parser.add_argument("group", metavar="GROUP", help="name of the consumer group")
    parser.add_argument("topic", metavar="TOPIC", help="name of the topic")
    parser.add_argument(
        "to",
        metavar="WHERE",
        type=where,
        help="first, last, a local time such as 2026-11-15T09:30:00, or ms since 1970",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per queue")
    return parser


def where(text: str) -> int:
    """Parse WHERE: return a time in ms since 1970, 0 for the first message, or -1 for the end."""
    if text in ("first", "last"):
        return 0 if text == "first" else _END
    try:
        return moment(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, nor first or last") from None


def run(args: argparse.Namespace) -> ExitCode:
    """Reset the offsets, and print the new ones."""
    running_cluster.run(args, _reset(args))
    return ExitCode.OK


async def _reset(args: argparse.Namespace) -> None:
    async with Admin(args.namesrv) as admin:
        await running_cluster.check_group(admin, args.namesrv, args.group)
        offsets = await admin.reset_offsets(args.group, args.topic, args.to)
    rows = [(q.broker_name, q.queue_id, offset) for q, offset in sorted(offsets.items())]
    if args.json:
        for row in rows:
            print(json.dumps(dict(zip(("broker", "queue_id", "offset"), row, strict=True))))
    else:
        print("\n".join(table(("BROKER", "QUEUE>", "OFFSET>"), rows)))
