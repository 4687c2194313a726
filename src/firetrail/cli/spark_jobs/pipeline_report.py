"""``firetrail pipeline report``: an HTML page with plots about a store."""

import argparse
from pathlib import Path

from firetrail.cli import common
from firetrail.cli.output import counted, human_size
from firetrail.cli.spark_jobs import spark_options
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.errors import PipelineError

DESCRIPTION = """\
Write one HTML page about a store: messages and bytes over time by topic, sizes, queue skew, hot
tags and keys, latency from produce to store, retries and dead letters, a map of the segments, and
damage. The page is a single file that needs no network, and follows the browser's light or dark
theme.

The whole log is read and verified. Exit code 0: success; 1: the log is damaged; 2: no report was
written."""
EXAMPLES = """\
  firetrail pipeline report data --out report.html"""


def add(subparsers: Subparsers) -> None:
    """Add the parser."""
    parser = common.add_parser(
        subparsers, "report", "write a page with plots about a store", DESCRIPTION, EXAMPLES
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        required=True,
        help="file of the page; an existing file is replaced",
    )
    spark_options.add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> ExitCode:
    """Write the page, and print a summary."""
    spark_options.check_store(str(args.store))
    if not args.out.parent.is_dir():
        raise PipelineError(f"{args.out.parent}: no such folder; create it, or change --out")
    with spark_options.spark_session(args, bar=True) as session:
        from firetrail.pipeline.jobs.report import report

        figures = report(session, args.store, args.out)
    damage = counted(figures.flaws_total, "damaged place") if figures.flaws_total else "no damage"
    print(f"{args.out}: {figures.total:,} messages of {human_size(figures.size)}, {damage}")
    return ExitCode.PROBLEMS if figures.flaws_total else ExitCode.OK
