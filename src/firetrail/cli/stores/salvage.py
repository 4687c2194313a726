"""``firetrail salvage``: copy the good messages of a damaged store to a new one."""

import argparse
import json
import logging
from pathlib import Path

from firetrail.broker.state.salvaged_positions import SalvagedPositions
from firetrail.cli import common
from firetrail.cli.common import open_view
from firetrail.cli.output import Progress, counted
from firetrail.cli.stores.fsck import checked, show
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.store.evidence.dropped_records import is_copy_of_dropped
from firetrail.store.repair.misplaced_records import MisplacedRecord
from firetrail.store.repair.salvage import SalvageResult, salvage_store
from firetrail.system import SYSTEM, allow_many_files

DESCRIPTION = """\
Copy every good message of a store whose log is damaged to a new store, including the messages after
the damage. The damaged store is only read, and must not be in use.

Up to the first damage both stores are the same. After it, messages have another physical offset
and, in queues that lost messages, a lower queue offset; the positions of consumer groups and delay
levels are adjusted, so that groups continue where they were. Messages that were popped after the
damage are redelivered, whether or not they were acknowledged. A record whose topic or queue id is
damaged is left out and listed; a record whose queue offset is damaged gets the right one.

From a folder dropped-<time> of a store, which has the records that recovery or 'firetrail replica
rewind' removed, a store with these messages is created. Their queues begin with offset 0.

At the end the new store is checked as by 'firetrail fsck'. Exit code 0: no problems; 1: the check
found problems; 2: nothing was copied, for instance because the store is in use or not damaged."""
EXAMPLES = """\
  firetrail salvage data --into saved
  firetrail salvage data --into saved --json"""

_STORE_LOGGER = logging.getLogger("firetrail.store.recovery")
MISPLACED_SHOWN = 20
"""Maximum number of records that are listed one by one; ``--json`` lists all."""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser."""
    parser = common.add_parser(
        subparsers, "salvage", "copy the good messages of a damaged store", DESCRIPTION, EXAMPLES
    )
    parser.add_argument(
        "--into", metavar="DIR", type=Path, required=True, help="new or empty folder for the store"
    )
    common.add_delay_levels(parser)
    common.add_json(parser, "print a JSON object: what was saved, and the report of fsck")
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Salvage the store, check the new one, and print both results."""
    allow_many_files()
    with open_view(args.store) as view:
        size = view.end - view.log.min_offset
    broker = SalvagedPositions()
    # Opening the new store before its groups are renumbered would log warnings about their offsets.
    _STORE_LOGGER.setLevel(logging.ERROR)
    try:
        with Progress("saving", size) as progress:
            saved = salvage_store(
                SYSTEM,
                args.store,
                args.into,
                args.delay_levels,
                broker.wanted,
                broker.finish,
                progress,
            )
    finally:
        _STORE_LOGGER.setLevel(logging.NOTSET)
    with open_view(args.into) as view:
        report = checked(view, args.delay_levels)
    if args.json:
        result = {
            "into": str(args.into),
            "damaged_at": saved.cut_at,
            "saved": saved.kept,
            "left_out": saved.left_out,
            "misplaced": [record._asdict() for record in saved.misplaced],
            "deleted": saved.deleted,
            "positions": broker.done,
            "check": report.as_json(),
        }
        print(json.dumps(result))
    else:
        print(f"{args.into}: {_summary(args.store, saved)}")
        if saved.left_out:
            print(f"{counted(saved.left_out, 'internal record')} of pops and transactions left out")
        if saved.deleted:
            print(f"{counted(saved.deleted, 'message')} of deleted topics left out")
        print("\n".join([*_notes(saved.misplaced), *broker.done, *show(report)]))
    return ExitCode.OK if report.ok else ExitCode.PROBLEMS


def _summary(store: Path, saved: SalvageResult) -> str:
    kept = counted(saved.kept, "message")
    if is_copy_of_dropped(store):
        return f"{kept} that were removed from the store {store.resolve().parent}"
    return f"everything before the damage at {saved.cut_at}, and {kept} after it"


def _notes(misplaced: list[MisplacedRecord]) -> list[str]:
    """Return a line for each record that was out of order, up to a limit."""
    lines = [
        f"{'kept' if record.number is not None else 'left out'}: the record at "
        f"{record.physical_offset}, which {record.detail}"
        for record in misplaced[:MISPLACED_SHOWN]
    ]
    if len(misplaced) > MISPLACED_SHOWN:
        more = counted(len(misplaced) - MISPLACED_SHOWN, "record")
        lines.append(f"{more} more out of order, see --json")
    return lines
