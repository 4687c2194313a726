"""``firetrail replica``: brokers that follow a master. Each action has a module ``replica_*``.

The action ``follow`` may be left out: ``firetrail replica STORE --of HOST:PORT``.
"""

import argparse
import sys
from collections.abc import Sequence

from firetrail.cli.common import action_names, add_actions, add_plain_parser
from firetrail.cli.subcommand import ExitCode, Subparsers

DESCRIPTION = """\
Run and operate replicas: brokers that keep a copy of a master's log.

'firetrail replica STORE --of HOST:PORT' is short for 'firetrail replica follow STORE …'; if the
folder has the name of an action, write ./NAME."""
NAME, FOLLOW = "replica", "follow"


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser, and those of the actions."""
    parser = add_plain_parser(
        subparsers, NAME, "follow a broker, and operate its replicas", DESCRIPTION
    )
    add_actions(parser, __name__, "actions", "ACTION")
    return parser


def spelled_out(argv: Sequence[str]) -> Sequence[str]:
    """Return the arguments of the process with the action ``follow`` if it was left out."""
    known = {"-h", "--help", *action_names(__name__)}
    if argv[:1] != [NAME] or len(argv) < 2 or argv[1] in known:
        return argv
    return [NAME, FOLLOW, *argv[1:]]


def run(args: argparse.Namespace) -> ExitCode:
    """Print the help: no action was named."""
    args.group.print_help(sys.stderr)
    return ExitCode.USAGE
