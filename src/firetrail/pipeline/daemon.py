"""Spark's Python daemon, the process that forks the workers, without one useless traceback.

A worker whose task Spark gave up (a ``limit`` was reached, the session ended) finds its socket
closed and says so at length, on the terminal of whoever runs the job. Everything else is printed.
"""

import sys
import traceback

from pyspark import daemon

_print_exc = traceback.print_exc


def print_exc() -> None:
    """Print the error that is being handled, unless it is that nobody listens any more."""
    if not isinstance(sys.exc_info()[1], ConnectionError):  # closed, or reset
        _print_exc()


def hush_planner() -> None:
    """The same in the workers of the daemon that Spark plans with, which is always its own."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == daemon.__name__:
        traceback.print_exc = print_exc  # type: ignore[assignment]


if __name__ == "__main__":
    traceback.print_exc = print_exc  # type: ignore[assignment]
    daemon.manager()
