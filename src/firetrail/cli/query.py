"""``firetrail query``: messages by key."""

from __future__ import annotations

import argparse

from firetrail.cli import common
from firetrail.cli.command import ExitCode, Subparsers
from firetrail.cli.common import not_negative, open_view, queues_of
from firetrail.cli.output import colour, say
from firetrail.cli.records import HEADING, Shower, row_of
from firetrail.format.columns import Columns
from firetrail.store.config import StoreConfig
from firetrail.store.inspect.gaps import key_gaps
from firetrail.store.log.records import record_offset
from firetrail.store.reader import TIME_MAX

DESCRIPTION = """\
Print the messages of a topic that have a key (or unique key), newest first.

The index answers; every message that it names is compared with the key before it is printed."""
EXAMPLES = """\
  firetrail query data --topic orders --key o-1
  firetrail query data --topic orders --key o-1 --begin 1794725936000 --max 1 --json"""
DEFAULT_MAX = 32


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Name, help and arguments."""
    parser = common.add_parser(subparsers, "query", "find messages by key", DESCRIPTION, EXAMPLES)
    parser.add_argument("--topic", metavar="T", required=True)
    parser.add_argument("--key", metavar="K", required=True)
    parser.add_argument(
        "--begin", metavar="MS", type=not_negative, default=0, help="stored at this time or later"
    )
    parser.add_argument(
        "--end", metavar="MS", type=not_negative, default=TIME_MAX, help="or before (ms since 1970)"
    )
    parser.add_argument(
        "--max",
        metavar="N",
        type=not_negative,
        default=DEFAULT_MAX,
        help="print at most N messages (default: %(default)s)",
    )
    common.add_json(parser, "one JSON object a line, as dump --json prints them")
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Print what the index finds."""
    count = max(args.max, 1)
    with open_view(args.store, StoreConfig(max_query_count=count)) as view:
        result = view.reader.query(args.topic, args.key, args.begin, args.end, count)
        if not result.buffers:
            queues_of(view, args.topic, None)  # perhaps there is no such topic
        shower = Shower()
        show = shower.json if args.json else shower.line
        columns = Columns(1)
        if not args.json:
            print(colour(HEADING, "bold"))
        for buffer in result.buffers[: args.max]:
            row = row_of(buffer, record_offset(buffer), columns)
            if row is not None:
                print(show(row))
        faults = [*view.index_faults, *key_gaps(view, args.topic, args.key)]
        for fault in faults:
            say(
                f"{fault.file} at {fault.offset}: {fault.detail}; messages may be missing: check "
                "the store: firetrail fsck"
            )
    return ExitCode.PROBLEMS if faults else ExitCode.OK
