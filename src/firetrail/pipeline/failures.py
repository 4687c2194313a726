"""Conversion of Spark's errors into the ones that were raised on its workers.

A failed task returns only the text of its traceback, inside a JVM exception. The caller of a job
should see the original error, in one line.
"""

import pickle
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException

from firetrail.errors import CheckpointError, NotSharedError, PipelineError, StoreDamagedError

_CARRIED = re.compile(r"firetrail-error:([A-Za-z0-9+/=]+)")
_TRACED = re.compile(r"(?:^|: )firetrail\.errors\.(\w+): (.+)$", re.M)
_DAMAGE = re.compile(r"(.+) at offset (\d+)(?: \(record (\d+)\))?: (.+); (.+)")
# The message of a query error ends here; the unresolved plan or the query with a caret follows.
_QUERY_ERROR_END = re.compile(r";?\n")


def carrier_of(error: Exception) -> RuntimeError:
    """Return the error that a task raises to make :func:`original_errors` raise ``error``."""
    return RuntimeError(f"firetrail-error:{b64encode(pickle.dumps(error)).decode()}")


@contextmanager
def original_errors() -> Iterator[None]:
    """Raise the original of an error that Spark reports.

    Firetrail's errors in tasks and in the data source are raised as themselves, and errors in a
    query as ``PipelineError``. Everything else, such as a bug or a lost worker, is raised as Spark
    reports it.
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
    if isinstance(error, AnalysisException):  # includes errors of the parser
        return PipelineError(_QUERY_ERROR_END.split(text.strip(), maxsplit=1)[0])
    return None


def _from_text(name: str, message: str) -> Exception:
    """Restore an error of the data source from the last line of its traceback."""
    if name == StoreDamagedError.__name__ and (parts := _DAMAGE.fullmatch(message)):
        file, offset, record, detail, remedy = parts.groups()
        physical_offset = None if record is None else int(record)
        return StoreDamagedError(file, int(offset), physical_offset, detail, remedy)
    for kind in (NotSharedError, CheckpointError):
        if name == kind.__name__:
            return kind(message)
    return PipelineError(message)
