"""Spark's Python daemon, the process that forks the workers, with one traceback suppressed.

If Spark cancels a task, because a ``limit`` was reached, a query was stopped or the session ended,
the worker finds its socket closed and prints a long traceback on the terminal of the user. This
module suppresses that one and prints all others.

Spark's planner reports an error with the traceback of its own process. Errors of Firetrail say what
is wrong in one line, so they are reported without it.
"""

import functools
import os
import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from pyspark import daemon

from firetrail.errors import FiretrailError

P = ParamSpec("P")
R = TypeVar("R")

_print_exc = traceback.print_exc
_HIDE = "SPARK_HIDE_TRACEBACK"
"""Variable that lets a process of Spark report an error without a traceback."""
_RUNNERS = "pyspark.sql."
"""Prefix of the modules that Spark runs as programs, such as the runner of a stream's source."""


def print_exc() -> None:
    """Print the error that is being handled, unless the connection to Spark was closed."""
    if not isinstance(sys.exc_info()[1], ConnectionError):  # closed, or reset
        _print_exc()


def _program() -> str:
    """Return the name of the module that this process runs, empty if it runs no module."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return "" if spec is None else spec.name


def hush_planner() -> None:
    """Suppress it in the planner's workers, too: Spark always plans with its own modules."""
    program = _program()
    if program == daemon.__name__:
        traceback.print_exc = print_exc  # type: ignore[assignment]
    elif program.startswith(_RUNNERS):
        sys.excepthook = print_uncaught


def in_one_line(function: Callable[P, R]) -> Callable[P, R]:
    """Let Spark's planner report Firetrail's errors in the function without a traceback.

    The process ends with such an error, so other errors keep their tracebacks.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except FiretrailError:
            program = _program()
            if program == daemon.__name__ or program.startswith(_RUNNERS):
                os.environ[_HIDE] = "1"
            raise

    return wrapped


def print_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print the error that ends a runner, unless the connection to Spark was closed."""
    if not isinstance(error, ConnectionError):
        sys.__excepthook__(kind, error, trace)


if __name__ == "__main__":
    traceback.print_exc = print_exc  # type: ignore[assignment]
    daemon.manager()
