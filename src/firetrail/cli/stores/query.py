"""``firetrail query``: messages by key."""

import argparse

from firetrail.cli import common
from firetrail.cli.common import not_negative, open_view, queues_of
from firetrail.cli.output import colour, say
from firetrail.cli.record_output import HEADING, RecordFormatter, row_of
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.format.columns import Columns
from firetrail.store.inspect.zeroed_pages import key_gaps
from firetrail.store.log.log_records import record_offset
from firetrail.store.reads.reader import TIME_MAX
from firetrail.store.settings.store_config import StoreConfig

DESCRIPTION = """\
Print the messages of a topic that have a key (or unique key), newest first.

The messages are found through the index, and compared with the key before they are printed. Exit
code 0: success; 1: parts of the index are missing or damaged; 2: not a store, or unreadable."""
EXAMPLES = """\
  firetrail query data --topic orders --key o-1
  firetrail query data --topic orders --key o-1 --begin 1794725936000 --max 1 --json"""
DEFAULT_MAX = 32


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser."""
    parser = common.add_parser(subparsers, "query", "find messages by key", DESCRIPTION, EXAMPLES)
    parser.add_argument("--topic", metavar="TOPIC", required=True, help="topic of the messages")
    parser.add_argument("--key", metavar="KEY", required=True, help="key or unique key")
    parser.add_argument(
        "--begin",
        metavar="MS",
        type=not_negative,
        default=0,
        help="stored at this time or later, in ms since 1970 (default: no limit)",
    )
    parser.add_argument(
        "--end",
        metavar="MS",
        type=not_negative,
        default=TIME_MAX,
        help="stored at this time or earlier, in ms since 1970 (default: no limit)",
    )
    parser.add_argument(
        "--max",
        metavar="N",
        type=not_negative,
        default=DEFAULT_MAX,
        help="print at most N messages (default: %(default)s)",
    )
    common.add_json(parser, "print one JSON object per line, as 'firetrail dump --json' does")
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Print the messages that the index finds."""
    count = max(args.max, 1)
    with open_view(args.store, StoreConfig(max_query_count=count)) as view:
        result = view.reader.query(args.topic, args.key, args.begin, args.end, count)
        if not result.buffers:
            queues_of(view, args.topic, None)  # raises if the topic does not exist
        formatter = RecordFormatter()
        show = formatter.json if args.json else formatter.line
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
                f"{fault.file} at {fault.offset}: {fault.detail}; messages may be missing; check "
                "the store: firetrail fsck"
            )
    return ExitCode.PROBLEMS if faults else ExitCode.OK
