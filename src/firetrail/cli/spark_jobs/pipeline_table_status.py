"""``firetrail pipeline table-status``: rows, progress and files of a table."""

import argparse
import json

from firetrail.cli import common
from firetrail.cli.output import counted, human_size
from firetrail.cli.spark_jobs import database_output
from firetrail.cli.spark_jobs.database_output import broker_lines
from firetrail.cli.subcommand import ExitCode, Subparsers

DESCRIPTION = """\
Print what 'firetrail pipeline table' has made of a topic: rows, rejected messages, files, and for
each queue the offset up to which it has been read. The table may be in use. For a database, there
is a line for each table."""
EXAMPLES = """\
  firetrail pipeline table-status lake/orders
  firetrail pipeline table-status lake/orders --json"""


def add(subparsers: Subparsers) -> None:
    """Add the parser."""
    parser = common.add_plain_parser(
        subparsers, "table-status", "show what a table has", DESCRIPTION, EXAMPLES
    )
    parser.add_argument("table", metavar="LAKE/NAME", help="folder of the table or database")
    common.add_json(parser, "print a JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> ExitCode:
    """Print the status."""
    from firetrail.pipeline.tables.runs.table_status import table_status

    if database_output.is_database(args.table):
        return database_output.print_status(args)
    found = table_status(args.table)
    if args.json:
        brokers = [broker._asdict() for broker in found.brokers]
        print(json.dumps(found._asdict() | {"brokers": brokers}, ensure_ascii=False))
        return ExitCode.OK
    key = f", key {', '.join(found.options['upsert'])}" if found.options["upsert"] else ""
    key += ", with history" if found.options["history"] else ""
    print(f"{found.table}: topic {found.topic}, {found.options['decoder']}{key}")
    print(
        f"{counted(found.rows, 'row')} of {counted(found.messages, 'message')}, "
        f"{found.rejected:,} rejected, {found.skipped:,} skipped; "
        f"{counted(found.files, 'file')} of {human_size(found.size)}"
    )
    print(*broker_lines(found.brokers), sep="\n")
    return ExitCode.OK
