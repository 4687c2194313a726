"""``firetrail pipeline``: bulk work with Spark. Each job has a module ``pipeline_<job>``."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pkgutil import iter_modules

from firetrail import cli
from firetrail.cli.command import ExitCode, Subparsers

DESCRIPTION = """\
Bulk work on a store with Spark: on all cores of this machine, or on a cluster with --master.

Needs the extra: pip install 'firetrail[spark]'"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """The group, with the jobs below it."""
    parser = subparsers.add_parser(
        "pipeline",
        help="bulk work with Spark: SQL, reports, archives, …",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    jobs = parser.add_subparsers(title="jobs", metavar="JOB")
    for name in sorted(found.name for found in iter_modules(cli.__path__, "firetrail.cli.")):
        if name.startswith(f"{__name__}_"):
            import_module(name).add(jobs)
    parser.set_defaults(group=parser)
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """No job was named."""
    args.group.print_help(sys.stderr)
    return ExitCode.USAGE
