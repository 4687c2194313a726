"""Spark's Python daemon, the process that forks the workers, with one traceback suppressed.

If Spark cancels a task, because a ``limit`` was reached, a query was stopped or the session ended,
the worker finds its socket closed and prints a long traceback on the terminal of the user. This
module suppresses that one and prints all others.
"""

import sys
import traceback
from types import TracebackType

from pyspark import daemon

_print_exc = traceback.print_exc
_RUNNERS = "pyspark.sql."
"""Prefix of the modules that Spark runs as programs, such as the runner of a stream's source."""


def print_exc() -> None:
    """Print the error that is being handled, unless the connection to Spark was closed."""
    if not isinstance(sys.exc_info()[1], ConnectionError):  # closed, or reset
        _print_exc()


def hush_planner() -> None:
    """Suppress it in the planner's workers, too: Spark always plans with its own modules."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None:
        return
    if spec.name == daemon.__name__:
        traceback.print_exc = print_exc  # type: ignore[assignment]
    elif spec.name.startswith(_RUNNERS):
        sys.excepthook = print_uncaught


def print_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print the error that ends a runner, unless the connection to Spark was closed."""
    if not isinstance(error, ConnectionError):
        sys.__excepthook__(kind, error, trace)


if __name__ == "__main__":
    traceback.print_exc = print_exc  # type: ignore[assignment]
    daemon.manager()
