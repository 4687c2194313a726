"""Errors on their way back from Spark's workers.

All that comes back from a failed task is the text of a traceback, inside of the JVM's exception.
Whoever called a job is to see what was raised there, in one line.
"""

from __future__ import annotations

import pickle
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException

from firetrail.errors import NotSharedError, PipelineError, StoreDamagedError

_CARRIED = re.compile(r"firetrail-error:([A-Za-z0-9+/=]+)")
_TRACED = re.compile(r"^(?:pyspark\S*: )?firetrail\.errors\.(\w+): (.+)$", re.M)
_DAMAGE = re.compile(r"(.+) at offset (\d+)(?: \(record (\d+)\))?: (.+); (.+)")
# After the message of an error in a query: the unresolved plan, or the query with a caret in it.
_QUERY_ERROR_END = re.compile(r";?\n")


def carrier_of(error: Exception) -> RuntimeError:
    """What a task raises so that :func:`original_errors` raises ``error`` on the driver."""
    return RuntimeError(f"firetrail-error:{b64encode(pickle.dumps(error)).decode()}")


@contextmanager
def original_errors() -> Iterator[None]:
    """Raise what Spark reports as what it was.

    Firetrail's own errors come back from tasks and from the data source, errors in a query as
    ``PipelineError``. Everything else, a bug or a lost worker, stays as Spark told it.
    """
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        original = _original(error)
        if original is None:
            raise
        raise original from None


def _original(error: Exception) -> Exception | None:
    text = str(error)
    if carried := _CARRIED.search(text):
        found: Exception = pickle.loads(b64decode(carried[1]))
        return found
    if traced := _TRACED.findall(text):
        return _from_text(*traced[-1])
    if isinstance(error, AnalysisException):  # the parser's errors are of this kind, too
        return PipelineError(_QUERY_ERROR_END.split(text.strip(), maxsplit=1)[0])
    return None


def _from_text(name: str, message: str) -> Exception:
    """An error of the data source, of which there is only the last line of its traceback."""
    if name == StoreDamagedError.__name__ and (parts := _DAMAGE.fullmatch(message)):
        file, offset, record, detail, remedy = parts.groups()
        physical_offset = None if record is None else int(record)
        return StoreDamagedError(file, int(offset), physical_offset, detail, remedy)
    if name == NotSharedError.__name__:
        return NotSharedError(message)
    return PipelineError(message)
