"""A Spark session as Firetrail's jobs want it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from types import FrameType

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from firetrail.pipeline.java import find_java, java_home

__all__ = ["SparkSession", "active_session", "session"]

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
    """The session that this process has, if any."""
    return SparkSession.getActiveSession()


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
