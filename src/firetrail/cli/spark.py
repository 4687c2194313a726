"""What the jobs of ``firetrail pipeline`` have in common: Spark's options, its session, progress.

The pipeline's modules are imported when a job runs, not before: every other command works, and
starts fast, without the extra ``spark``.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from firetrail.cli import common
from firetrail.cli.command import Subparsers
from firetrail.cli.output import Progress, counted
from firetrail.errors import StoreError
from firetrail.format.names import name_server
from firetrail.store.lifecycle.folder import check_is_store
from firetrail.system import SYSTEM

if TYPE_CHECKING:
    from firetrail.pipeline.session import SparkSession


def add_parser(
    subparsers: Subparsers, name: str, summary: str, description: str, examples: str
) -> argparse.ArgumentParser:
    """The parser of a job that reads STORE: a folder, or the address of an archived one."""
    parser = common.add_parser(subparsers, name, summary, description, examples, store=str)
    add_options(parser)
    return parser


def check_store(store: str, *, brokers: bool = False) -> None:
    """Raise what is wrong with a folder before Spark starts, which takes seconds.

    ``brokers`` says that ``namesrv=HOST:PORT`` will do as well.
    """
    if name_server(store) is not None:
        if not brokers:
            raise StoreError(
                f"{store}: this job needs the files of a store; 'sql' and the target of 'replay' "
                "may be brokers, and the data source reads from them"
            )
    elif "://" not in store:
        check_is_store(SYSTEM, Path(store))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where Spark runs, and its settings."""
    group = parser.add_argument_group("Spark")
    group.add_argument(
        "--master",
        metavar="URL",
        default="local[*]",
        help="where it runs (default: %(default)s, all cores of this machine)",
    )
    group.add_argument(
        "--conf",
        metavar="KEY=VALUE",
        type=_setting,
        action="append",
        default=[],
        help="a setting of Spark's, such as spark.driver.memory=4g; may be repeated",
    )


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise argparse.ArgumentTypeError(f"{text!r} is not like spark.driver.memory=4g")
    return key, value


@contextmanager
def spark_session(args: argparse.Namespace, *, bar: bool = False) -> Iterator[SparkSession]:
    """The session of a job; one that was active before stays so.

    ``bar`` lets Spark itself show the progress of its stages on a terminal: for queries, whose
    tasks only Spark knows.
    """
    from firetrail.pipeline.failures import original_errors
    from firetrail.pipeline.session import active_session, session

    conf = dict(args.conf)
    if bar and sys.stderr.isatty():
        conf["spark.ui.showConsoleProgress"] = "true"
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


def _interrupt_plainly() -> None:
    """Let the keyboard raise KeyboardInterrupt and nothing else; the session then ends.

    PySpark's own handler talks to the JVM in the middle of a call to it, and both it and Py4J print
    tracebacks about that (through the root logger, which has no handler in a command).
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.getLogger().addHandler(logging.NullHandler())


@contextmanager
def task_progress(what: str, tasks: int) -> Iterator[Progress]:
    """Progress for ``run_tasks`` with so many tasks."""
    progress = Progress(what, tasks, lambda total: counted(total, "task"))
    try:
        yield progress
    finally:
        progress.clear()
