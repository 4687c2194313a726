"""A Spark session as Firetrail's jobs want it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from types import FrameType

from pyspark import SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from firetrail.pipeline.java import find_java, java_home

__all__ = ["SparkSession", "active_session", "session"]

_PYTHON = "python3"
"""What Spark runs if nobody has chosen a Python."""
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_DEFAULTS = {
    "spark.app.name": "firetrail",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.daemon.module": "firetrail.pipeline.daemon",
    # A third faster from Python worker to JVM than TCP, and a task starts in 33 instead of 55 ms.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}


# They print errors that are raised as well, with the JVM's stack, as one line of JSON.
_LOUD_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")


def active_session() -> SparkSession | None:
    """The session that this process has, if any; this thread can write with it afterwards."""
    active = SparkSession.getActiveSession()
    if active is None and SparkContext._active_spark_context is not None:
        active = SparkSession.active()  # another thread has started it
        activate(active)
    return active


def activate(spark: SparkSession) -> None:
    """Let batch writes from this thread find data sources that are written in Python.

    They ask the session of the JVM's thread, and the one that belongs to a new thread of Python has
    none until a frame is made of local data.
    """
    spark.createDataFrame([], "nothing int")


def choose_python(spark: SparkSession) -> bool:
    """Run what belongs to Firetrail with this Python, if a session was started without any choice.

    Then Spark takes the ``python3`` on the path. Without an activated environment that is another
    Python, which knows nothing of Firetrail. True if the choice had to be made.
    """
    context = spark.sparkContext
    found = shutil.which(_PYTHON)
    if context.pythonExec != _PYTHON or _is_this_python(found):
        return False
    context.pythonExec = sys.executable
    return True


def prepare(spark: SparkSession) -> None:
    """Let a job work with a session that was started without Firetrail."""
    if choose_python(spark):
        from firetrail.pipeline.source.datasource import register

        register(spark)


def _is_this_python(path: str | None) -> bool:
    return path is not None and Path(path).absolute().parent == Path(sys.executable).parent


def session(master: str = "local[*]", **conf: str) -> SparkSession:
    """The active session, or a new one on ``master``.

    ``conf`` are Spark's settings: ``session(**{"spark.driver.memory": "4g"})``. They come before
    the defaults above; to an active session they are applied too, and Spark refuses those that
    cannot change any more.
    """
    active = active_session()
    if active is not None:
        for key, value in conf.items():
            active.conf.set(key, value)
        return active
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = _DEFAULTS | conf
    settings[_JAVA_OPTIONS] = f"{_quiet()} {settings.get(_JAVA_OPTIONS, '')}".rstrip()
    builder = SparkSession.builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    for name in _LOUD_LOGGERS:
        PySparkLogger.getLogger(name).disabled = True
    with _interrupted_later(), _environment(JAVA_HOME=str(java_home(find_java(os.environ)))):
        return builder.getOrCreate()


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """Let the keyboard's interrupt wait.

    PySpark forgets a JVM that was not ready yet, and the JVM then stays for ever.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting = []

    def note(number: int, frame: FrameType | None) -> None:
        waiting.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is note:  # PySpark has not set its own
            signal.signal(signal.SIGINT, before)
    if waiting:
        raise KeyboardInterrupt


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Environment variables for the JVM that starts meanwhile, as they were for everything else."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _quiet() -> str:
    """The option that gives the driver's JVM Firetrail's logging."""
    return f"-Dlog4j2.configurationFile={files('firetrail.pipeline') / 'log4j2.properties'}"
