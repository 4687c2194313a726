"""``firetrail pipeline table-verify``: compare a table with the messages of its topic."""

import argparse
import json

from firetrail.cli import common
from firetrail.cli.output import counted
from firetrail.cli.spark_jobs import database_output, spark_options
from firetrail.cli.subcommand import ExitCode, Subparsers

DESCRIPTION = """\
Read the messages again that a table has, and compare: that each is there once, in a row or among
the rejected ones, and with a key, that the newest version of each key is there, or with history all
of them with their validity. Nothing is shared with the job that wrote the table but the decoder.
The exit code is 1 if something differs.

For a database, all tables are compared in one pass.

No job may be writing the table. One position per row is held in memory."""
EXAMPLES = """\
  firetrail pipeline table-verify data --to lake/orders
  firetrail pipeline table-verify a=/archive/a a=/data/a --to lake/orders --json
  firetrail pipeline table-verify namesrv=127.0.0.1:9876 --to lake/orders"""


def add(subparsers: Subparsers) -> None:
    """Add the parser."""
    parser = common.add_plain_parser(
        subparsers, "table-verify", "compare a table with its topic", DESCRIPTION, EXAMPLES
    )
    parser.add_argument(
        "sources",
        metavar="SOURCE",
        nargs="+",
        help="folder of a store, archive, pattern of folders, or namesrv=HOST:PORT",
    )
    parser.add_argument(
        "--to", metavar="LAKE/NAME", required=True, help="folder of the table or database"
    )
    spark_options.add_source_options(parser)
    common.add_json(parser, "print a JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> ExitCode:
    """Compare, and print what differs."""
    from firetrail.pipeline.tables.runs.verification import verify_table

    if database_output.is_database(args.to):
        return database_output.verify(args)
    with spark_options.warnings_shown():
        found = verify_table(args.sources, args.to, source_options=args.source_option)
    if args.json:
        print(json.dumps(found._asdict() | {"ok": found.ok}))
        return ExitCode.OK if found.ok else ExitCode.PROBLEMS
    for example in found.examples:
        print(example)
    gone = f", {found.unreadable:,} no longer in the sources" if found.unreadable else ""
    print(
        f"{found.table}: {'ok' if found.ok else 'differs'}: {counted(found.messages, 'message')}, "
        f"{counted(found.rows, 'row')}, {found.rejected:,} rejected{gone}; {found.missing:,} "
        f"missing, {found.repeated:,} repeated, {found.unexpected:,} unexpected"
    )
    return ExitCode.OK if found.ok else ExitCode.PROBLEMS
