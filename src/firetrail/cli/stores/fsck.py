"""``firetrail fsck``: check a store, and repair it."""

from __future__ import annotations

import argparse
import json

from firetrail.broker.state.config_check import unreadable_files
from firetrail.broker.state.excess_positions import set_back_files
from firetrail.broker.timer.timer_inspection import timer_problems
from firetrail.cli import common
from firetrail.cli.common import open_view
from firetrail.cli.output import Progress, colour, counted, human_size, human_time
from firetrail.cli.stores.discarded_messages import confirm, loss_lines
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.errors import FiretrailError
from firetrail.format.values.delay import DelayLevels
from firetrail.store.evidence.dropped_records import is_copy_of_dropped
from firetrail.store.inspect.fsck.check import check_store
from firetrail.store.inspect.fsck.report import CheckReport
from firetrail.store.inspect.view import StoreView
from firetrail.store.log.lost_part import Loss
from firetrail.store.problems import Problem
from firetrail.store.queues.generations import OmittedMessages
from firetrail.store.repair.damage_cut import check_log, damage_to_cut
from firetrail.store.repair.losses import loss_behind
from firetrail.store.repair.rebuild import find_left_out
from firetrail.store.repair.repair import Repair, repair_store
from firetrail.store.root.folder import check_not_in_use
from firetrail.system import SYSTEM

DESCRIPTION = """\
Check the log, the consume queues, the index and the checkpoint, whether they agree with each other,
whether the broker's files in config/ can be read, and, unless the store is open, whether every
message that waits for its delivery time is in the files of the timer.

Without --repair the store is only read. After a crash, a torn tail is not a problem, and neither is
a queue or index that ends before the log: recovery takes care of them when the store is opened.
Exit code 0: no problems; 1: problems were found; 2: not a store, or unreadable.

Repairs (the store must not be in use; removed files are kept in its folder repair-<time>):
  rebuild-derived  rebuild the consume queues and the index from the log
  truncate-log     cut off the log at the first damage, then rebuild-derived
After a repair, positions of consumer groups, delay levels and ordered pops beyond the end of their
queue are set back to the end."""
EXAMPLES = """\
  firetrail fsck data
  firetrail fsck data --json | jq '.problems[] | {file, offset, kind}'
  firetrail fsck data --repair rebuild-derived
  firetrail fsck data --repair truncate-log --dry-run"""

_REPAIRS = [repair.value for repair in Repair]


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser."""
    parser = common.add_parser(subparsers, "fsck", "check a store", DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "--repair", choices=_REPAIRS, help="repair the store before the check, as described above"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="with --repair: change nothing, only report what the repair would discard",
    )
    parser.add_argument(
        "--yes", action="store_true", help="with --repair: do not ask before discarding messages"
    )
    common.add_delay_levels(parser)
    common.add_json(parser, "print the report as a JSON object")
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Repair the store if asked to, check it, and print both results."""
    if is_copy_of_dropped(args.store):
        raise FiretrailError(
            f"{args.store} is not a whole store: it has only the records that were removed from "
            f"{args.store.resolve().parent}; 'firetrail dump' prints them, and 'firetrail salvage "
            f"{args.store} --into DIR' creates a store from them"
        )
    if args.dry_run:
        return _dry_run(args)
    repaired: list[str] = []
    losses: list[Loss] = []
    if args.repair is not None:

        def on_loss(loss: Loss) -> None:
            losses.append(loss)
            confirm(args, loss)

        repaired = repair_store(
            SYSTEM,
            args.store,
            Repair(args.repair),
            args.delay_levels,
            finish=_set_back,
            on_loss=on_loss,
        )
    with open_view(args.store) as view:
        report = checked(view, args.delay_levels)
    if args.json:
        result = report.as_json()
        if args.repair is not None:
            result |= {"repaired": repaired, "loss": losses[0].as_json() if losses else None}
        print(json.dumps(result))
    else:
        discarded = [line for loss in losses for line in loss_lines(loss, "discarded")]
        print("\n".join([*repaired, *discarded, *show(report)]))
    return ExitCode.OK if report.ok else ExitCode.PROBLEMS


def checked(view: StoreView, delays: DelayLevels) -> CheckReport:
    """Check a store and show the progress."""
    with Progress("checking", view.end - view.log.min_offset) as progress:
        report = check_store(view, delays, progress)
    report.problems += unreadable_files(view.system, view.root)
    report.problems += timer_problems(view)
    return report


def _dry_run(args: argparse.Namespace) -> ExitCode:
    """Print the messages that a repair would discard."""
    if args.repair is None:
        raise FiretrailError("--dry-run needs --repair")
    check_not_in_use(SYSTEM, args.store)
    loss: Loss | None = None
    left_out: tuple[OmittedMessages, ...] = ()
    with open_view(args.store) as view:
        if Repair(args.repair) is Repair.TRUNCATE_LOG:
            loss = loss_behind(view, damage_to_cut(view))
        else:
            check_log(view)
            left_out = find_left_out(view, args.delay_levels)
    if args.json:
        result = {"loss": loss.as_json() if loss is not None else None}
        print(json.dumps(result | {"left_out": [each._asdict() for each in left_out]}))
    elif loss is not None:
        print("\n".join(loss_lines(loss, "would discard")))
    elif left_out:
        print("rebuild-derived would rebuild queues and index from the log:")
        print("\n".join(map(str, left_out)))
    else:
        print("rebuild-derived would rebuild queues and index from the log and discard no message")
    return ExitCode.OK


def _set_back(view: StoreView) -> list[str]:
    return set_back_files(view.system, view.root, view.queue_end)


def show(report: CheckReport) -> list[str]:
    """Return the lines of the report: problems, warnings, and the figures of the check."""
    lines = [_line(problem, "red") for problem in report.problems]
    if report.problems_omitted:
        lines.append(colour(f"and {report.problems_omitted} more", "red"))
    lines += [_line(warning, "yellow") for warning in report.warnings]
    return [*lines, *summary(report)]


def summary(report: CheckReport) -> list[str]:
    """Return lines with the end of a crashed store's log, the verdict, the figures and a remedy."""
    lines = []
    if report.torn_tail is not None:
        lines.append(
            f"{report.torn_tail.file} at {report.torn_tail.offset}: the log of the crashed store "
            f"ends here; an unfinished record follows ({report.torn_tail.detail})"
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
    lines.append(f"{report.store} ({report.state}): {verdict}: {checked}")
    if report.advice is not None:
        first = f"stop process {report.owner}, then " if report.owner is not None else ""
        lines.append(f"to repair it: {first}{report.advice}")
    return lines


def _line(problem: Problem, tint: str) -> str:
    record = ""
    if problem.physical_offset is not None:
        record = f" (record {problem.physical_offset})"
    kind = colour(problem.kind, tint)
    return f"{problem.file} at {problem.offset}{record}: {kind}: {problem.detail}"
