"""The command line: one command, ``firetrail``, with a module for each of its subcommands."""

from collections.abc import Sequence

__all__ = ["run_command", "version_line"]

# The imports are late: ``python -m firetrail.cli.main`` imports this package before that module,
# and Python warns if the module is loaded by then.


def run_command(argv: Sequence[str] | None = None) -> int:
    """Run ``firetrail`` with ``argv`` (default: the process's arguments); return the exit code."""
    from firetrail.cli.main import main

    return main(argv)


def version_line() -> str:
    """Return the name, the version, and whether the kernels run compiled."""
    from firetrail.cli import main

    return main.version_line()
