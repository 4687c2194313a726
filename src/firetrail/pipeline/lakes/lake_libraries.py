"""The libraries of table formats, which are optional, and their errors."""

from importlib import import_module
from typing import Any

from firetrail.errors import MissingExtraError


def library(module: str, extra: str, user: str = "an archive") -> Any:
    """Import the library of a table format; raise MissingExtraError if it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{user} with the format {extra} needs {module.split('.')[0]}: "
            f"pip install 'firetrail[spark,{extra}]'"
        ) from error


def first_line(error: Exception | None) -> str:
    """Return the text of an error of a library without the stack that may follow it."""
    return next(iter(str(error).splitlines()), type(error).__name__)
