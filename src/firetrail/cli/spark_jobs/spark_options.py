"""Spark's options, session and progress, which the jobs of ``firetrail pipeline`` share.

The modules of the pipeline are imported only when a job runs, so that the other commands work
without the extra ``spark``, and start fast.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from firetrail.cli import common
from firetrail.cli.output import Progress, counted, say
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.errors import StoreError
from firetrail.format.names import name_server
from firetrail.store.root.folder import check_is_store
from firetrail.system import SYSTEM

if TYPE_CHECKING:
    from firetrail.pipeline.spark_session import SparkSession


def add_parser(
    subparsers: Subparsers, name: str, summary: str, description: str, examples: str
) -> argparse.ArgumentParser:
    """Add the parser of a job whose STORE is a folder or an address such as ``s3://…``."""
    parser = common.add_parser(subparsers, name, summary, description, examples, store=str)
    add_options(parser)
    return parser


def check_store(store: str, *, brokers: bool = False) -> None:
    """Raise an error if STORE is not a store, before Spark starts, which takes seconds.

    ``brokers`` allows ``namesrv=HOST:PORT`` instead of a store.
    """
    if name_server(store) is not None:
        if not brokers:
            raise StoreError(
                f"{store}: this job needs the files of a store; only 'sql', 'table', the target of "
                "'replay' and Firetrail's Spark data source support brokers"
            )
    elif "://" not in store:
        check_is_store(SYSTEM, Path(store))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that configure Spark."""
    group = parser.add_argument_group("Spark")
    group.add_argument(
        "--master",
        metavar="URL",
        default="local[*]",
        help="master of the Spark cluster (default: %(default)s, all cores of this machine)",
    )
    group.add_argument(
        "--conf",
        metavar="KEY=VALUE",
        type=_setting,
        action=common.KeyValues,
        default={},
        help="Spark setting, such as spark.driver.memory=4g; may be repeated",
    )


def add_mode(parser: argparse.ArgumentParser) -> None:
    """Add the option for the treatment of damaged records."""
    parser.add_argument(
        "--mode",
        choices=("failfast", "permissive"),
        default="failfast",
        help="fail at a damaged record, or skip it (default: %(default)s)",
    )


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Add the option for name servers as sources of a table."""
    parser.add_argument(
        "--source-option",
        metavar="KEY=VALUE",
        action=common.KeyValues,
        default={},
        help="option of the Spark source for name servers: credentialsFile, group or "
        "retryTimeoutMs; may be repeated",
    )


@contextmanager
def warnings_shown() -> Iterator[None]:
    """Show what the pipeline warns of, such as that it waits for a broker; not each repetition."""
    logger = logging.getLogger("firetrail.pipeline")
    handler = _Remarks(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


QUIET_S = 120.0
"""A warning that was repeated within this time lasts, and is not shown again."""


class _Remarks(logging.Handler):
    """Prints warnings; one that lasts is printed once."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._seen: dict[str, float] = {}  # the time at which each text was logged last

    def emit(self, record: logging.LogRecord) -> None:
        text, now = record.getMessage(), SYSTEM.clock.monotonic()
        self._seen = {each: at for each, at in self._seen.items() if now - at < QUIET_S}
        if text not in self._seen:
            say(text)
        self._seen[text] = now


def _setting(text: str) -> str:
    if "=" not in text or not text.startswith("spark."):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a Spark setting such as spark.driver.memory=4g"
        )
    return text


@contextmanager
def spark_session(args: argparse.Namespace, *, bar: bool = False) -> Iterator[SparkSession]:
    """Provide the Spark session of a job; an active session is used, and left running.

    ``bar`` lets Spark show the progress of its stages on a terminal. Queries need this, because
    only Spark knows their tasks.
    """
    conf = dict(args.conf)
    if bar and sys.stderr.isatty():
        conf["spark.ui.showConsoleProgress"] = "true"
    with ending_at_sigterm():
        from firetrail.pipeline.failures import original_errors
        from firetrail.pipeline.spark_session import active_session, session

        active = active_session()
        spark = active or session(args.master, **conf)
        if active is None:
            _interrupt_plainly()
        try:
            with original_errors():
                yield spark
        finally:
            if active is None:
                spark.stop()


def later_session(args: argparse.Namespace, stack: ExitStack) -> Callable[[], SparkSession]:
    """Return a function that begins the session when it is called first; ``stack`` ends it."""
    found: list[SparkSession] = []

    def get() -> SparkSession:
        if not found:
            found.append(stack.enter_context(spark_session(args)))
        return found[0]

    return get


@contextmanager
def ending_at_sigterm() -> Iterator[None]:
    """Let SIGTERM end the command and its session in order; a second one ends it at once."""

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        say("ended by SIGTERM before the job was done")
        raise SystemExit(ExitCode.TERMINATED)

    if threading.current_thread() is not threading.main_thread():  # others cannot set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt_plainly() -> None:
    """Let Ctrl-C only raise KeyboardInterrupt, which ends the session.

    PySpark's own handler calls the JVM in the middle of another call, and both PySpark and Py4J
    then log tracebacks (through the root logger, which has no handler in a command).
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.getLogger().addHandler(logging.NullHandler())


def task_progress(what: str, tasks: int) -> Progress:
    """Return the progress of ``run_tasks`` with this number of tasks."""
    return Progress(what, tasks, lambda total: counted(total, "task"))
