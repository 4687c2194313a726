"""The command line: one command, ``firetrail``, with a module for each of its subcommands."""

from firetrail.cli.main import main as run_command
from firetrail.cli.main import version_line

__all__ = ["run_command", "version_line"]
