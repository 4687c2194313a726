"""``firetrail cluster``: a whole group of brokers. Each action has a module ``cluster_*``."""

import argparse
import sys

from firetrail.cli.common import add_actions, add_plain_parser
from firetrail.cli.subcommand import ExitCode, Subparsers

DESCRIPTION = """\
Run and operate groups of brokers with automatic failover: a master, and replicas that can replace
it. 'up' starts a whole group on this machine; 'status' shows all members of any group, and what to
do about each."""
NAME = "cluster"


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser, and those of the actions."""
    parser = add_plain_parser(
        subparsers, NAME, "start a group of brokers, and show its members", DESCRIPTION
    )
    add_actions(parser, __name__, "actions", "ACTION")
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Print the help: no action was named."""
    args.group.print_help(sys.stderr)
    return ExitCode.USAGE
