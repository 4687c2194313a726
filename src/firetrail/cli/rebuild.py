"""``firetrail rebuild``: consume queues and index from the log alone."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from firetrail.cli import common
from firetrail.cli.command import ExitCode, Subparsers
from firetrail.cli.common import open_view
from firetrail.cli.output import Progress, counted
from firetrail.store.inspect.tail import check_end
from firetrail.store.repair.rebuild import Rebuilt, check_outside, rebuild

DESCRIPTION = """\
Make the consume queues and index files of a store anew, from its log alone, in another folder.

The store is only read. The new folder is complete or not there at all; with the store closed, its
consumequeue and index folders can then be replaced by those in it."""
EXAMPLES = """\
  firetrail rebuild data --into rebuilt
  firetrail rebuild data --into rebuilt --json"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Name, help and arguments."""
    parser = common.add_parser(
        subparsers, "rebuild", "make queues and index from the log", DESCRIPTION, EXAMPLES
    )
    parser.add_argument(
        "--into", metavar="DIR", type=Path, required=True, help="a new or empty folder"
    )
    common.add_delay_levels(parser)
    common.add_json(parser, "one JSON object: what was made")
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Rebuild, and say what was made."""
    check_outside(args.store, args.into)
    with open_view(args.store) as view:
        check_end(view)
        progress = Progress("rebuilding", view.end - view.log.min_offset)
        try:
            made = rebuild(view, args.into, args.delay_levels, progress)
        finally:
            progress.clear()
    tell(args, args.into, made)
    return ExitCode.OK


def tell(args: argparse.Namespace, place: Path, made: Rebuilt) -> None:
    """Say what was made, and where."""
    if args.json:
        print(json.dumps({"into": str(place), **made.as_json()}))
    else:
        print(
            f"{place}: {counted(made.queues, 'queue')} and "
            f"{counted(made.index_files, 'index file')} of {counted(made.messages, 'message')}"
        )
        print("".join(f"{each}\n" for each in made.left_out), end="")
