"""The ``firetrail`` command, before anything of Firetrail is imported.

The imports take a tenth of a second or more, in which Ctrl-C must not print a traceback. This
module is outside the package, because Python imports a package before its modules.
"""

INTERRUPTED = 130
"""The exit code after Ctrl-C, as in ``firetrail.cli.subcommand``, which may not be imported yet."""


def main() -> int:
    """Run ``firetrail`` with the arguments of the process; return the exit code."""
    try:
        from firetrail.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return INTERRUPTED
