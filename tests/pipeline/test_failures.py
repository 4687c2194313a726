"""Errors in Spark as a caller sees them."""

import pytest
from pyspark.errors import AnalysisException, PySparkException

from firetrail.errors import IllegalMessageError, NotSharedError, PipelineError, StoreDamagedError
from firetrail.pipeline.failures import carrier_of, original_errors

DAMAGE = StoreDamagedError(
    "commitlog/0", 332, 1332, "body CRC differs; twice", "run firetrail fsck"
)
TRACEBACK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "somewhere", line 3, in read
{line}

JVM stacktrace: …"""


def raised_as(error: Exception) -> Exception:
    with pytest.raises(Exception) as caught, original_errors():
        raise error
    return caught.value


def test_an_error_of_a_task_is_raised_unchanged() -> None:
    original = IllegalMessageError("topic", "is empty")
    carried = raised_as(
        PySparkException(TRACEBACK.format(line=f"RuntimeError: {carrier_of(original)}"))
    )
    assert type(carried) is IllegalMessageError
    assert vars(carried) == vars(original)


def test_an_error_that_names_a_worker_keeps_its_type() -> None:
    line = "firetrail.errors.NotSharedError: s/commitlog: the folder is missing on the worker w"
    found = raised_as(PySparkException(TRACEBACK.format(line=line)))
    assert type(found) is NotSharedError
    assert str(found) == line.partition(": ")[2]


@pytest.mark.parametrize(
    "damage", [DAMAGE, StoreDamagedError("checkpoint", 0, None, "12 bytes", "remove it")]
)
def test_damage_keeps_its_file_and_offset(damage: StoreDamagedError) -> None:
    line = f"firetrail.errors.StoreDamagedError: {damage}"
    found = raised_as(PySparkException(TRACEBACK.format(line=line)))
    assert isinstance(found, StoreDamagedError)
    assert str(found) == str(damage)
    assert (found.offset, found.physical_offset) == (damage.offset, damage.physical_offset)


def test_an_error_of_the_data_source_is_one_line() -> None:
    line = "firetrail.errors.ConfigError: view = 'x': queue or log"
    found = raised_as(PySparkException(TRACEBACK.format(line=line)))
    assert type(found) is PipelineError
    assert str(found) == "view = 'x': queue or log"


def test_an_error_in_a_query_is_one_line() -> None:
    text = "[UNRESOLVED_COLUMN] `topi` cannot be resolved; line 1 pos 7;\n'Project ['topi]\n+- …"
    found = raised_as(AnalysisException(text))
    assert type(found) is PipelineError
    assert str(found) == "[UNRESOLVED_COLUMN] `topi` cannot be resolved; line 1 pos 7"


def test_other_errors_are_raised_as_spark_reports_them() -> None:
    bug = PySparkException(TRACEBACK.format(line="ZeroDivisionError: division by zero"))
    assert raised_as(bug) is bug
    other = KeyError("x")
    assert raised_as(other) is other
