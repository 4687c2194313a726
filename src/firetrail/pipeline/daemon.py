"""Spark's Python daemon, the process that forks the workers, with one traceback suppressed.

If Spark cancels a task, because a ``limit`` was reached or the session ended, the worker finds its
socket closed and prints a long traceback on the terminal of the user. This module suppresses that
one and prints all others.
"""

import sys
import traceback

from pyspark import daemon

_print_exc = traceback.print_exc


def print_exc() -> None:
    """Print the error that is being handled, unless the connection to Spark was closed."""
    if not isinstance(sys.exc_info()[1], ConnectionError):  # closed, or reset
        _print_exc()


def hush_planner() -> None:
    """Suppress it in the planner's workers, too: Spark always plans with its own daemon module."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == daemon.__name__:
        traceback.print_exc = print_exc  # type: ignore[assignment]


if __name__ == "__main__":
    traceback.print_exc = print_exc  # type: ignore[assignment]
    daemon.manager()
