"""``firetrail replica``: brokers that follow a master. Each action has a module ``replica_*``."""

from __future__ import annotations

import argparse
import sys

from firetrail.cli.command import ExitCode, Subparsers
from firetrail.cli.common import add_actions, add_plain_parser

DESCRIPTION = """\
Run and operate replicas: brokers that keep a copy of a master's log."""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser, and those of the actions."""
    parser = add_plain_parser(subparsers, "replica", "operate replicas of a broker", DESCRIPTION)
    add_actions(parser, __name__, "actions", "ACTION")
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Print the help: no action was named."""
    args.group.print_help(sys.stderr)
    return ExitCode.USAGE
