"""Errors of the libraries of tables, as errors that name the table."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from firetrail.errors import LakeError
from firetrail.pipeline.lakes.lake_libraries import first_line

_LIBRARIES = {
    *("pyarrow", "deltalake", "_internal"),
    *("pyiceberg", "sqlalchemy", "botocore", "requests"),
}
"""Top-level modules whose exceptions are errors of the libraries."""
LakeArgument = TypeVar("LakeArgument")
LakeResult = TypeVar("LakeResult")
Arguments = ParamSpec("Arguments")


def naming_table(
    function: Callable[[LakeArgument], LakeResult], name: str
) -> Callable[[LakeArgument], LakeResult]:
    """Return a function that raises LakeError, which names a table, for errors of the libraries.

    Args:
        function: The function, which tasks can be given.
        name: The name for messages.
    """
    return partial(_call, function, name)


def _call(
    function: Callable[[LakeArgument], LakeResult], name: str, argument: LakeArgument
) -> LakeResult:
    with _named_errors(name):
        return function(argument)


def names_table(function: Callable[Arguments, LakeResult]) -> Callable[Arguments, LakeResult]:
    """Return a function of users that raises LakeError for errors of the libraries.

    Args:
        function: The function, whose argument ``to`` is the folder of the table.
    """
    parameters = signature(function)

    @wraps(function)
    def named(*args: Arguments.args, **more: Arguments.kwargs) -> LakeResult:
        with _named_errors(f"table {parameters.bind(*args, **more).arguments['to']}"):
            return function(*args, **more)

    return named


@contextmanager
def _named_errors(name: str) -> Iterator[None]:
    """Raise LakeError, which names a table, for errors of the libraries."""
    try:
        yield
    except Exception as error:
        kind = type(error)
        # delta-rs raises plain exceptions for errors of its queries
        if kind.__module__.partition(".")[0] not in _LIBRARIES and kind is not Exception:
            raise
        raise LakeError(
            f"{name}: ended with an error of a library ({kind.__name__}: {first_line(error)}); "
            "run it again, and report this if it ends so again"
        ) from error
