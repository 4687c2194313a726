"""``firetrail backup``: a copy of a store, also while it is in use."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from firetrail.cli import common
from firetrail.cli.command import ExitCode, Subparsers
from firetrail.cli.common import open_view
from firetrail.cli.fsck import checked, show
from firetrail.cli.output import Progress, counted, human_size
from firetrail.store.config import StoreConfig
from firetrail.store.repair.backup import back_up
from firetrail.system import SYSTEM, allow_many_files

DESCRIPTION = """\
Copy a store to a new folder, also while a broker has it open: the log, the consume queues, the
index and the files of the broker. Holes are not copied, and file systems that can share blocks do.

The copy of a store in use has every message that was acknowledged before the command began, and is
a closed store: open it, or put it in the place of the other. At the end it is checked as by
firetrail fsck; exit code 1 says that this has found problems, which the store itself then has, too.
DIR is complete or not there at all."""
EXAMPLES = """\
  firetrail backup data /backups/monday
  firetrail backup data /backups/monday --json"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Name, help and arguments."""
    parser = common.add_parser(subparsers, "backup", "copy a store", DESCRIPTION, EXAMPLES)
    parser.add_argument("into", metavar="DIR", type=Path, help="a new or empty folder")
    common.add_delay_levels(parser)
    common.add_json(parser, "one JSON object: what was copied, and the report of fsck")
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Copy, check the copy, and say what was done and found."""
    allow_many_files()
    config = StoreConfig(delay_levels=args.delay_levels)
    progress = Progress("copying", _used_bytes(args.store))
    try:
        copied = back_up(SYSTEM, args.store, args.into, config, progress)
    finally:
        progress.clear()
    with open_view(args.into) as view:
        report = checked(view, args.delay_levels)
    if args.json:
        print(json.dumps({"into": str(args.into), **copied._asdict(), "check": report.as_json()}))
    else:
        state = "in use, the copy is recovered and closed" if copied.live else "not in use"
        print(
            f"{args.into}: {counted(copied.files, 'file')}, {human_size(copied.bytes)} copied; the "
            f"store was {state}"
        )
        print("\n".join(show(report)))
    return ExitCode.OK if report.ok else ExitCode.PROBLEMS


def _used_bytes(store: Path) -> int:
    """About how much there is to copy, holes left out."""
    total = 0
    for path in store.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue  # retention has deleted it
    return total
