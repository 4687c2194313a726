"""``firetrail reset``: let a group go on elsewhere."""

from __future__ import annotations

import argparse
import json
from datetime import datetime

from firetrail.cli import cluster
from firetrail.cli.command import ExitCode, Subparsers
from firetrail.cli.output import table
from firetrail.client import Admin

DESCRIPTION = """\
Set the offsets of a group in a topic: to its first messages, to its end, or to a time.

Members that are connected are told so, and go on from there. A group that is yet to run for the
first time can be made before: firetrail group create."""
EXAMPLES = """\
  firetrail reset billing orders first
  firetrail reset billing orders 2026-11-15T09:30:00
  firetrail reset billing orders 1763199000000"""
_END = -1


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Name, help and arguments."""
    parser = cluster.add_parser(
        subparsers, "reset", "let a group go on elsewhere", DESCRIPTION, EXAMPLES
    )
    parser.add_argument("group", metavar="GROUP")
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "to",
        metavar="WHERE",
        type=where,
        help="first, last, a local time such as 2026-11-15T09:30:00, or ms since 1970",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object for each queue")
    return parser


def where(text: str) -> int:
    """The time in ms that an argument stands for, or -1 for the end."""
    if text in ("first", "last"):
        return 0 if text == "first" else _END
    if text.isdecimal():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        allowed = "first, last, a time such as 2026-11-15T09:30:00, or ms since 1970"
        raise argparse.ArgumentTypeError(f"{text!r} is none of {allowed}") from None


def run(args: argparse.Namespace) -> ExitCode:
    """Reset, and print the new offsets."""
    cluster.run(args, _reset(args))
    return ExitCode.OK


async def _reset(args: argparse.Namespace) -> None:
    async with Admin(args.namesrv) as admin:
        await cluster.check_group(admin, args.namesrv, args.group)
        offsets = await admin.reset_offsets(args.group, args.topic, args.to)
    rows = [(q.broker_name, q.queue_id, offset) for q, offset in sorted(offsets.items())]
    if args.json:
        for row in rows:
            print(json.dumps(dict(zip(("broker", "queue_id", "offset"), row, strict=True))))
    else:
        print("\n".join(table(("BROKER", "QUEUE>", "OFFSET>"), rows)))
