"""``firetrail fsck``: is the store good, and if not, where."""

from __future__ import annotations

import argparse
import json

from firetrail.broker.overruns import set_back_files
from firetrail.cli import common
from firetrail.cli.command import ExitCode, Subparsers
from firetrail.cli.common import open_view
from firetrail.cli.output import Progress, colour, counted, human_size, human_time
from firetrail.format.delay import DelayLevels
from firetrail.storage.system import System
from firetrail.store.fsck.check import check_store
from firetrail.store.fsck.report import CheckReport
from firetrail.store.problems import Problem
from firetrail.store.repair import Repair, repair_store
from firetrail.store.view import StoreView

DESCRIPTION = """\
Check the log, the consume queues, the index, the checkpoint, and whether they agree.

Nothing is written without --repair. A store that crashed is judged as one: a torn tail, and queues
and index that are behind the log, are what recovery is for. Exit code 0: nothing is wrong;
1: problems were found; 2: not a store, or it cannot be read.

Repairs, of a store that is not in use; what they remove is kept in a folder repair-<time> of it:
  rebuild-derived  make consume queues and index anew from the log
  truncate-log     end the log at its first damage, then rebuild-derived
Afterwards the positions of consumer groups, delay levels and ordered pops that are beyond the end
of their queue are set back to it."""
EXAMPLES = """\
  firetrail fsck data
  firetrail fsck data --json | jq '.problems[] | {file, offset, kind}'
  firetrail fsck data --repair rebuild-derived"""

_REPAIRS = [repair.value for repair in Repair]


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Name, help and arguments."""
    parser = common.add_parser(subparsers, "fsck", "check a store", DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "--repair", choices=_REPAIRS, help="change the store: one of the repairs above"
    )
    common.add_delay_levels(parser)
    common.add_json(parser, "one JSON object")
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Repair if asked to, check, and say what was done and found."""
    repaired: list[str] = []
    if args.repair is not None:
        repaired = repair_store(
            System(), args.store, Repair(args.repair), args.delay_levels, finish=_set_back
        )
    with open_view(args.store) as view:
        report = checked(view, args.delay_levels)
    if args.json:
        told = report.as_json()
        print(json.dumps(told | {"repaired": repaired} if repaired else told))
    else:
        print("\n".join([*repaired, *show(report)]))
    return ExitCode.OK if report.ok else ExitCode.PROBLEMS


def checked(view: StoreView, delays: DelayLevels) -> CheckReport:
    """Check a store, and show how far that has come."""
    progress = Progress("checking", view.end - view.log.min_offset)
    try:
        return check_store(view, delays, progress)
    finally:
        progress.clear()


def _set_back(view: StoreView) -> list[str]:
    return set_back_files(view.system, view.root, view.queue_end)


def show(report: CheckReport) -> list[str]:
    """The report as lines: problems, warnings, and what was checked."""
    lines = [_line(problem, "red") for problem in report.problems]
    if report.problems_omitted:
        lines.append(colour(f"and {report.problems_omitted} more", "red"))
    lines += [_line(warning, "yellow") for warning in report.warnings]
    return [*lines, *summary(report)]


def summary(report: CheckReport) -> list[str]:
    """Where a crashed store's log ends, what was checked, and the verdict."""
    lines = []
    if report.torn_tail is not None:
        lines.append(
            f"{report.torn_tail.file} at {report.torn_tail.offset}: the log of the crashed store "
            f"ends here; what follows was being written ({report.torn_tail.detail})"
        )
    checked = (
        f"{counted(report.messages, 'message')} in "
        f"{human_size(report.end_offset - report.begin_offset)} of log, "
        f"{counted(report.units, 'unit')} of {counted(report.queues, 'queue')}, "
        f"{counted(report.index_entries, 'entry')} of {counted(report.index_files, 'index file')}; "
        f"last stored {human_time(report.last_store_time)}"
    )
    verdict = colour("ok", "green")
    if not report.ok:
        count = len(report.problems) + report.problems_omitted
        verdict = colour(counted(count, "problem"), "red")
    return [*lines, f"{report.store} ({report.state}): {verdict}: {checked}"]


def _line(problem: Problem, tint: str) -> str:
    record = ""
    if problem.physical_offset is not None:
        record = f" (record {problem.physical_offset})"
    kind = colour(problem.kind, tint)
    return f"{problem.file} at {problem.offset}{record}: {kind}: {problem.detail}"
