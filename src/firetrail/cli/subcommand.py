"""The interface of a subcommand.

A subcommand is a module in a folder of this package, with the two functions of :class:`Command`.
``COMMANDS`` of ``firetrail.cli.main`` lists it. It raises a ``FiretrailError`` if it fails;
``main`` turns that into one line on standard error and an exit code.
"""

import argparse
from enum import IntEnum
from typing import Any, Protocol, TypeAlias

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class CommandParser(argparse.ArgumentParser):
    """A parser that accepts no abbreviations of options: ``--inse`` must not mean ``--insecure``.

    The parsers of its subcommands, and of theirs, are of the same class.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments, allow_abbrev=False)


class ExitCode(IntEnum):
    """The exit code of the process; scripts rely on the numbers."""

    OK = 0
    """The command succeeded and found no problems in the store."""
    PROBLEMS = 1
    """The command read the store and found problems in it."""
    USAGE = 2
    """The command failed: wrong arguments, not a store, or a store that cannot be opened."""
    NOT_FOLLOWING = 3
    """``replica status``: the slave does not follow its master at the moment, and tries again."""
    STUCK = 4
    """``replica status``: the master does not have, or does not send, the records that the slave
    needs."""
    DIVERGED = 5
    """``replica status``: the logs of master and slave are not the same."""
    REFUSES = 6
    """``replica status``: the master refuses messages."""
    UNFINISHED = 7
    """``replica status``, ``replica promote``: a hand-over is not finished, or its outcome is not
    known."""
    UNCONFIRMED = 8
    """``send``: a message is stored, but not confirmed as the broker's settings require;
    ``replica status``: the master has too few replicas to confirm messages."""
    INCOMPLETE = 9
    """``replica status``: the slave has deleted messages that its master still has."""
    DOUBTS = 10
    """``replica status``: the member refuses the state of its group in etcd."""
    INTERRUPTED = 130
    """The command was interrupted by Ctrl-C; shells use 128 + SIGINT for that."""
    TERMINATED = 143
    """A Spark job was ended by SIGTERM; shells use 128 + SIGTERM for that."""


class Command(Protocol):
    """The two functions of a subcommand's module."""

    def add_parser(self, subparsers: Subparsers) -> argparse.ArgumentParser:
        """Add and return the subcommand's parser: name, help and arguments."""

    def run(self, args: argparse.Namespace) -> ExitCode:
        """Run the command. Results go to standard output, everything else to standard error."""
