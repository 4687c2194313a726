"""What a subcommand is.

A subcommand is a module of this package with the two functions of :class:`Command`, listed in
``COMMANDS`` of ``firetrail.cli.main``. A subcommand raises :class:`~firetrail.errors.FiretrailError`
for what it cannot do; ``main`` turns that into one line on standard error and an exit code.
"""

from __future__ import annotations

import argparse
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    Subparsers: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]


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
