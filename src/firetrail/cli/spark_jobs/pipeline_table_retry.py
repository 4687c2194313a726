"""``firetrail pipeline table-retry``: rejected messages of a table, decoded again."""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from typing import TYPE_CHECKING

from firetrail.cli import common
from firetrail.cli.output import counted, say
from firetrail.cli.spark_jobs import database_output, spark_options
from firetrail.cli.subcommand import ExitCode, Subparsers

if TYPE_CHECKING:
    from collections.abc import Callable

DESCRIPTION = """\
Decode the messages again that 'firetrail pipeline table' has rejected, after the columns or the
schema file were corrected, and move those that fit to the table. Each message is in one of the two
tables, also if a run is killed. The exit code is 1 if messages still do not fit.

For a database, messages of no table look for one again, and then each table retries its own."""
EXAMPLES = """\
  firetrail pipeline table-retry lake/orders
  firetrail pipeline table-retry lake/orders --schema 'total decimal(20,2)'"""


def add(subparsers: Subparsers) -> None:
    """Add the parser."""
    parser = common.add_plain_parser(
        subparsers, "table-retry", "decode rejected messages again", DESCRIPTION, EXAMPLES
    )
    parser.add_argument("table", metavar="LAKE/NAME", help="folder of the table or database")
    parser.add_argument(
        "--schema", metavar="COLUMNS", help="columns to add, and wider types, as DDL"
    )
    common.add_json(parser, "print a JSON object")
    spark_options.add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> ExitCode:
    """Retry, and print the numbers of rows."""
    from firetrail.pipeline.tables.runs.retry_job import retry_table

    with ExitStack() as sessions, ExitStack() as shown:
        sessions.enter_context(spark_options.ending_at_sigterm())
        session = spark_options.later_session(args, sessions)

        def on_plan(tasks: int) -> Callable[[int], None]:
            return shown.enter_context(spark_options.task_progress("reading", tasks))

        options = {"schema": args.schema, "on_plan": on_plan}
        if database_output.is_in_database(args.table):
            return database_output.retry(args, session, **options)
        done = retry_table(session, args.table, **options)
    if args.json:
        print(json.dumps(done._asdict(), ensure_ascii=False))
    else:
        for change in done.changes:
            print(change)
        if done.history:
            changed = f"validity of {counted(done.updated, 'row')} changed"
        else:
            changed = f"{done.updated:,} replaced, {done.deleted:,} deleted"
        print(
            f"{done.table}: {counted(done.retried, 'rejected message')}, "
            f"{counted(done.rows, 'row')} added, {changed}; "
            f"{counted(done.rejected, 'message')} still rejected"
        )
        if done.rejected:
            say(f"the first that does not fit: {done.first_reject}")
    return ExitCode.PROBLEMS if done.rejected else ExitCode.OK
