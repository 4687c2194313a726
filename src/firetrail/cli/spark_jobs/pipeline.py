"""``firetrail pipeline``: Spark jobs. Each job has a module ``pipeline_<job>``."""

import argparse
import sys

from firetrail.cli.common import add_actions, add_plain_parser
from firetrail.cli.subcommand import ExitCode, Subparsers

DESCRIPTION = """\
Process a store in bulk with Spark, on all cores of this machine, or on a cluster with --master.

Requires the extra 'spark': pip install 'firetrail[spark]'"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser, and those of the jobs."""
    summary = "process stores with Spark: SQL, reports, archives, …"
    parser = add_plain_parser(subparsers, "pipeline", summary, DESCRIPTION)
    add_actions(parser, __name__, "jobs", "JOB")
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Print the help: no job was named."""
    args.group.print_help(sys.stderr)
    return ExitCode.USAGE
