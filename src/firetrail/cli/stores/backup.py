"""``firetrail backup``: a copy of a store, which may be in use."""

import argparse
import json
from pathlib import Path

from firetrail.cli import common
from firetrail.cli.common import open_view
from firetrail.cli.output import Progress, counted, human_size
from firetrail.cli.stores.fsck import checked, show
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.store.repair.backup import back_up
from firetrail.store.settings.store_config import StoreConfig
from firetrail.system import SYSTEM, allow_many_files

DESCRIPTION = """\
Copy a store to a new folder: the log, the consume queues, the index and the files of the broker. A
broker may have the store open. Holes are not copied, and blocks are shared if the file system can.

The copy of a store in use has every message that was acknowledged before the command began. The
copy is a closed store, which can be opened or put in the place of the original. DIR appears only
when it is complete.

At the end the copy is checked as by 'firetrail fsck'. Exit code 0: success; 1: the check found
problems, which are then also in the original; 2: nothing was copied."""
EXAMPLES = """\
  firetrail backup data /backups/monday
  firetrail backup data /backups/monday --json"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser."""
    parser = common.add_parser(subparsers, "backup", "copy a store", DESCRIPTION, EXAMPLES)
    parser.add_argument("into", metavar="DIR", type=Path, help="new or empty folder for the copy")
    common.add_delay_levels(parser)
    common.add_json(parser, "print a JSON object: what was copied, and the report of fsck")
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Copy the store, check the copy, and print both results."""
    allow_many_files()
    config = StoreConfig(delay_levels=args.delay_levels)
    with Progress("copying", _used_bytes(args.store)) as progress:
        copied = back_up(SYSTEM, args.store, args.into, config, progress)
    with open_view(args.into) as view:
        report = checked(view, args.delay_levels)
    if args.json:
        print(json.dumps({"into": str(args.into), **copied._asdict(), "check": report.as_json()}))
    else:
        state = "in use; the copy is recovered and closed" if copied.live else "not in use"
        print(
            f"{args.into}: {counted(copied.files, 'file')}, {human_size(copied.bytes)} copied; the "
            f"store was {state}"
        )
        print("\n".join(show(report)))
    return ExitCode.OK if report.ok else ExitCode.PROBLEMS


def _used_bytes(store: Path) -> int:
    """Estimate how many bytes there are to copy, without holes."""
    total = 0
    for path in store.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue  # retention deleted it
    return total
