"""``firetrail rebuild``: rebuild consume queues and index from the log, in a new folder."""

import argparse
import json
from pathlib import Path

from firetrail.cli import common
from firetrail.cli.common import open_view
from firetrail.cli.output import Progress, counted
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.store.inspect.log_tail import check_end
from firetrail.store.repair.rebuild import RebuildResult, check_outside, rebuild

DESCRIPTION = """\
Rebuild the consume queues and index files of a store from its log, in another folder.

The store is only read, and may be in use. DIR appears only when it is complete; while the store is
closed, its folders consumequeue and index can be replaced by those in DIR."""
EXAMPLES = """\
  firetrail rebuild data --into rebuilt
  firetrail rebuild data --into rebuilt --json"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser."""
    parser = common.add_parser(
        subparsers, "rebuild", "rebuild queues and index from the log", DESCRIPTION, EXAMPLES
    )
    parser.add_argument(
        "--into", metavar="DIR", type=Path, required=True, help="new or empty folder for the files"
    )
    common.add_delay_levels(parser)
    common.add_json(parser, "print a JSON object: what was rebuilt")
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Rebuild queues and index, and print how many."""
    check_outside(args.store, args.into)
    with open_view(args.store) as view:
        check_end(view)
        with Progress("rebuilding", view.end - view.log.min_offset) as progress:
            made = rebuild(view, args.into, args.delay_levels, progress)
    print_result(args, args.into, made)
    return ExitCode.OK


def print_result(args: argparse.Namespace, place: Path, made: RebuildResult) -> None:
    """Print the number of rebuilt files, and their folder."""
    if args.json:
        print(json.dumps({"into": str(place), **made.as_json()}))
    else:
        print(
            f"{place}: {counted(made.queues, 'queue')} and "
            f"{counted(made.index_files, 'index file')} of {counted(made.messages, 'message')}"
        )
        print("".join(f"{each}\n" for each in made.left_out), end="")
