"""``firetrail pipeline report``: what is in a store, as a page with plots."""

from __future__ import annotations

import argparse
from pathlib import Path

from firetrail.cli import common, spark
from firetrail.cli.command import ExitCode, Subparsers
from firetrail.cli.output import counted, human_size
from firetrail.errors import PipelineError

DESCRIPTION = """\
Write one HTML page about a store: messages and bytes over time by topic, sizes, queue skew, hot
tags and keys, latency from produce to store, retries and dead letters, a map of the segments, and
damage. The page is a single file that needs no network; it is light or dark as the browser is.

The whole log is read and verified. The exit code is 1 if it is damaged."""
EXAMPLES = """\
  firetrail pipeline report data --out report.html"""


def add(subparsers: Subparsers) -> None:
    """Name, help and arguments."""
    parser = common.add_parser(
        subparsers, "report", "a page with plots about a store", DESCRIPTION, EXAMPLES
    )
    parser.add_argument(
        "--out", metavar="FILE", type=Path, required=True, help="the page; replaced if it is there"
    )
    spark.add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> ExitCode:
    """Make the page, and say where it is."""
    spark.check_store(str(args.store))
    if not args.out.parent.is_dir():
        raise PipelineError(f"{args.out.parent}: no such folder; make it, or name another --out")
    with spark.spark_session(args, bar=True) as session:
        from firetrail.pipeline.jobs.report import report

        figures = report(session, args.store, args.out)
    damage = counted(figures.flaws_total, "damaged place") if figures.flaws_total else "no damage"
    print(f"{args.out}: {figures.total:,} messages of {human_size(figures.size)}, {damage}")
    return ExitCode.PROBLEMS if figures.flaws_total else ExitCode.OK
