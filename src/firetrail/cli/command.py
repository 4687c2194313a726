"""What a subcommand is.

A subcommand is a module of this package with the two functions of :class:`Command`, listed in
``COMMANDS`` of ``firetrail.cli.main``. What it cannot do it raises as a ``FiretrailError``, which
``main`` turns into one line on standard error and an exit code.
"""

from __future__ import annotations

import argparse
from enum import IntEnum
from typing import Protocol, TypeAlias

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class ExitCode(IntEnum):
    """What the process returns; scripts rely on the numbers."""

    OK = 0
    """Done, and nothing is wrong with the store."""
    PROBLEMS = 1
    """The store was read and something in it is wrong."""
    USAGE = 2
    """Not done: wrong arguments, not a store, or a store that cannot be opened."""
    INTERRUPTED = 130
    """Stopped from the keyboard, by the shell's convention of 128 + SIGINT."""


class Command(Protocol):
    """The two functions of a subcommand's module."""

    def add_parser(self, subparsers: Subparsers) -> argparse.ArgumentParser:
        """Add and return the subcommand's parser: name, help and arguments."""

    def run(self, args: argparse.Namespace) -> ExitCode:
        """Do it. Results go to standard output, everything else to standard error."""
