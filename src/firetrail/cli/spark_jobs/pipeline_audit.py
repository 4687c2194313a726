"""``firetrail pipeline audit``: check a store in parallel."""

import argparse
import json
from pathlib import Path

from firetrail.broker.state.config_check import unreadable_files
from firetrail.cli import common
from firetrail.cli.output import Progress, colour, counted, table
from firetrail.cli.spark_jobs import spark_options
from firetrail.cli.stores import fsck
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.store.inspect.fsck.report import CheckReport, by_kind
from firetrail.store.log.view_log import log_size
from firetrail.store.problems import Problem
from firetrail.system import SYSTEM

DESCRIPTION = """\
Check a store in parallel, by log file, queue and index file: the checksums and the structure of
every record, whether the messages of each queue are numbered without gaps, whether log, queues and
index agree one to one, the order of store times, and the checkpoint.

The checks, the kinds of findings and the exit codes (0 no problems, 1 problems, 2 not checked) are
those of 'firetrail fsck'. The store is only read, and may be in use.

All workers must see the store and the work folder under the same path. The work folder needs space
for about a fifth of the log."""
EXAMPLES = """\
  firetrail pipeline audit data
  firetrail pipeline audit data --html audit.html
  firetrail pipeline audit /mnt/data --work /mnt/tmp --json --master spark://host:7077"""
ROWS_MAX = 20


def add(subparsers: Subparsers) -> None:
    """Add the parser."""
    parser = common.add_parser(subparsers, "audit", "check a store", DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="also write the report as an HTML page"
    )
    parser.add_argument(
        "--work", metavar="DIR", type=Path, help="work folder (default: the system's, in $TMPDIR)"
    )
    common.add_delay_levels(parser)
    common.add_json(parser, "print the report as a JSON object, like that of 'firetrail fsck'")
    spark_options.add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> ExitCode:
    """Audit the store, and print the findings."""
    spark_options.check_store(str(args.store))
    with spark_options.spark_session(args) as session:
        from firetrail.pipeline.jobs.audit.audit_job import audit

        with Progress("auditing", log_size(SYSTEM, args.store)) as progress:
            report = audit(
                session, args.store, delays=args.delay_levels, work=args.work, on_progress=progress
            ).report
        report.problems += unreadable_files(SYSTEM, args.store)
        if args.html is not None:
            from firetrail.pipeline.jobs.audit.audit_page import write

            write(report, args.html)
    print(json.dumps(report.as_json()) if args.json else "\n".join(_show(report)))
    return ExitCode.OK if report.ok else ExitCode.PROBLEMS


def _show(report: CheckReport) -> list[str]:
    """Return a table for each kind of finding, and the summary of fsck."""
    lines: list[str] = []
    for found, tint in ((report.problems, "red"), (report.warnings, "yellow")):
        for kind, some in by_kind(found).items():
            lines += [colour(f"{kind}: {counted(len(some), 'finding')}", tint), *_table(some), ""]
    if report.problems_omitted:
        lines += [f"and {counted(report.problems_omitted, 'finding')} more, not kept", ""]
    return [*lines, *fsck.summary(report)]


def _table(some: list[Problem]) -> list[str]:
    rows = [
        (
            problem.file,
            problem.offset,
            "-" if problem.physical_offset is None else problem.physical_offset,
            problem.detail,
        )
        for problem in some[:ROWS_MAX]
    ]
    lines = table(("file", "at>", "record>", "detail"), rows)
    if len(some) > ROWS_MAX:
        lines.append(f"and {len(some) - ROWS_MAX} more")
    return lines
