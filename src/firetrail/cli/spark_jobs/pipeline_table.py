"""``firetrail pipeline table``: a topic as a typed table, each message once."""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from firetrail.cli import common
from firetrail.cli.output import counted, human_size, say
from firetrail.cli.output import table as lines_of
from firetrail.cli.spark_jobs import database_output, spark_options
from firetrail.cli.subcommand import ExitCode, Subparsers

if TYPE_CHECKING:
    from collections.abc import Callable

    from firetrail.pipeline.tables.runs.explanation import TableExplanation
    from firetrail.pipeline.tables.runs.table_result import TableResult

DESCRIPTION = """\
Add the messages of a topic to a Delta, Iceberg or Parquet table with typed columns. Delta and
Iceberg require the extra of the same name. With --upsert, the table has the newest version of each
key, and with --history all of them.

Each run continues where the last one ended. If a run was killed, run it again: every message is in
the table once. The store may be in use. Messages that do not fit go, with the reason, to a second
table whose name ends in __rejected; then the exit code is 1.

A SOURCE is the folder of a broker or of a replica, an archive, or a quoted pattern of such folders,
which are named after their brokers. BROKER=SOURCE names the broker that it belongs to, which is
necessary if there are several brokers, or several places for one. namesrv=HOST:PORT reads all
running brokers of a name server, by their names. What appears later is read by the next run.

--database makes a database of the topic: a table for each that its CDC events, its tags or a column
name, in the folder LAKE. The topic is read once, and all tables change together. Messages that
belong to no table go to LAKE__rejected."""
EXAMPLES = """\
  firetrail pipeline table data orders --to lake/orders
  firetrail pipeline table data orders --to lake/orders --schema 'id bigint, total decimal(10,2)'
  firetrail pipeline table data orders --to lake/orders --explain
  firetrail pipeline table data orders --to lake/newest --upsert id
  firetrail pipeline table data orders --to lake/versions --upsert id --history
  firetrail pipeline table data orders --to lake/orders --format iceberg --catalog glue.shop.orders
  firetrail pipeline table data cdc --to lake/orders --decoder canal --upsert id --follow
  firetrail pipeline table data cdc --to lake --database envelope --decoder canal --upsert pk
  firetrail pipeline table data events --to lake --database tag --exclude 'debug*'
  firetrail pipeline table a=/archive/a a=/data/a b=/data/b orders --to lake/orders
  firetrail pipeline table '/data/*' orders --to lake/orders
  firetrail pipeline table namesrv=127.0.0.1:9876 orders --to lake/orders --follow"""


def add(subparsers: Subparsers) -> None:
    """Add the parser."""
    parser = common.add_plain_parser(
        subparsers, "table", "add a topic to a table", DESCRIPTION, EXAMPLES
    )
    parser.add_argument(
        "sources",
        metavar="SOURCE",
        nargs="+",
        help="folder of a store, archive, pattern of folders, or namesrv=HOST:PORT",
    )
    parser.add_argument("topic", metavar="TOPIC", help="the topic")
    parser.add_argument(
        "--to", metavar="LAKE/NAME", required=True, help="folder of the table, existing or new"
    )
    parser.add_argument(
        "--format",
        choices=("delta", "iceberg", "parquet"),
        help="format of the table; delta and iceberg require the extra of the same name, parquet "
        "has no --upsert (default: that of the table, delta for a new one)",
    )
    parser.add_argument(
        "--catalog",
        metavar="CATALOG.NAMESPACE.TABLE",
        help="name of an Iceberg table in a catalog that PyIceberg is configured for (default: "
        "none, the table is found by its folder)",
    )
    parser.add_argument(
        "--decoder",
        metavar="FORMAT",
        help="format of the bodies: json, text, csv, avro, protobuf, canal, maxwell or debezium "
        "(default: that of the table, json for a new one)",
    )
    parser.add_argument(
        "--option",
        metavar="KEY=VALUE",
        action=common.KeyValues,
        help="option of the decoder, kept with the table; may be repeated",
    )
    parser.add_argument(
        "--schema",
        metavar="COLUMNS",
        help="the columns of the bodies as DDL (default: those that the messages show)",
    )
    parser.add_argument(
        "--prefix",
        metavar="TEXT",
        help="prefix of the columns that describe the message (default: _)",
    )
    parser.add_argument(
        "--no-message-columns",
        dest="message_columns",
        action="store_const",
        const=False,
        help="leave out the columns that describe the message",
    )
    parser.add_argument(
        "--upsert",
        metavar="KEY",
        help="columns that identify a row, separated by commas: the table keeps the newest version "
        "of each, and an empty body deletes (default: every message is added)",
    )
    database_output.add_options(parser)
    parser.add_argument(
        "--history",
        action="store_const",
        const=True,
        help="with --upsert: keep all versions of each row, with the times from which and until "
        "which each is valid; an empty body ends the newest one",
    )
    parser.add_argument(
        "--buckets",
        metavar="N",
        type=common.positive,
        help="number of partitions of a new table with --upsert; a run rewrites those that its "
        "messages touch (default: 16)",
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--explain",
        action="store_true",
        help="write nothing, but show what a run would read, decode, reject and write again",
    )
    mode.add_argument("--follow", action="store_true", help="keep adding new messages until Ctrl-C")
    parser.add_argument(
        "--every",
        metavar="SECONDS",
        type=common.positive,
        help="with --follow: add messages every SECONDS (default: 1, with --upsert 60)",
    )
    parser.add_argument(
        "--keep",
        metavar="HOURS",
        type=common.not_negative,
        help="keep replaced files for readers of older versions (default: 168, with --upsert 1)",
    )
    parser.add_argument(
        "--strict", action="store_true", help="stop, and add nothing, if a message does not fit"
    )
    parser.add_argument(
        "--allow-gap",
        action="store_true",
        help="continue although messages were deleted before they were read",
    )
    spark_options.add_source_options(parser)
    common.add_json(parser, "print a JSON object: what was added, or would be")
    spark_options.add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> ExitCode:
    """Append the messages, and print how many."""
    database_output.check_options(args)
    rejected = False
    with ExitStack() as sessions, ExitStack() as shown:
        from firetrail.pipeline.tables.runs.explanation import explain_table
        from firetrail.pipeline.tables.runs.table_job import table
        from firetrail.pipeline.tables.runs.table_rounds import follow_table

        sessions.enter_context(spark_options.ending_at_sigterm())
        sessions.enter_context(spark_options.warnings_shown())
        session = spark_options.later_session(args, sessions)

        def on_plan(tasks: int) -> Callable[[int], None]:
            return shown.enter_context(spark_options.task_progress("reading", tasks))

        def on_round(done: Any) -> None:
            nonlocal rejected
            rejected = rejected or done.rejected > 0
            shown.close()
            show(args, done)

        options: dict[str, Any] = {
            "format": args.format,
            "catalog": args.catalog,
            "decoder": args.decoder,
            "decoder_options": args.option,
            "schema": args.schema,
            "prefix": args.prefix,
            "message_columns": args.message_columns,
            "upsert": args.upsert,
            "history": args.history,
            "buckets": args.buckets,
            "keep_hours": args.keep,
            "strict": args.strict,
            "allow_gap": args.allow_gap,
            "source_options": args.source_option,
            "on_plan": on_plan,
        }
        where = (args.sources, args.topic, args.to)
        job: Callable[..., Any] = table
        explain: Callable[..., Any] = explain_table
        show: Callable[..., None] = _print
        show_plan: Callable[..., None] = _print_explanation
        if args.database is not None:
            job, explain = database_output.jobs()
            show, show_plan = database_output.show, database_output.show_plan
            options |= database_output.options(args)
        if args.explain:
            planned = explain(session, *where, **options)
            shown.close()
            show_plan(args, planned)
            rejected = planned.rejected > 0
        elif args.follow:
            options |= {"every_s": args.every, "on_round": on_round, "run": job}
            follow_table(session, *where, **options)
        else:
            on_round(job(session, *where, **options))
    return ExitCode.PROBLEMS if rejected else ExitCode.OK


def _print(args: argparse.Namespace, done: TableResult) -> None:
    if args.json:
        result: dict[str, Any] = done._asdict()
        print(json.dumps(result, ensure_ascii=False), flush=True)
        return
    for change in done.changes:
        print(change)
    if done.history:
        changed = f", validity of {counted(done.updated, 'row')} changed" if done.updated else ""
    elif done.updated or done.deleted:
        changed = f", {done.updated:,} replaced, {done.deleted:,} deleted"
    else:
        changed = ""
    skipped = f", {counted(done.skipped, 'message')} skipped" if done.skipped else ""
    print(
        f"{done.table}: {counted(done.rows, 'row')} of {counted(done.messages, 'message')} "
        f"added{changed}{skipped}; {counted(done.total_rows, 'row')} in total",
        flush=True,
    )
    if done.lost:
        say(f"{counted(done.lost, 'message')} had been deleted before they were read")
    if done.rejected:
        say(
            f"{counted(done.rejected, 'message')} rejected, see {done.rejected_table}; the first: "
            f"{done.first_reject}"
        )


def _print_explanation(args: argparse.Namespace, found: TableExplanation) -> None:
    if args.json:
        lists = ("brokers", "versions", "rejects")
        nested = {name: [each._asdict() for each in getattr(found, name)] for name in lists}
        print(json.dumps(found._asdict() | nested, ensure_ascii=False))
        return
    key = f", key {', '.join(found.key)}" if found.key else ""
    key += ", with history" if found.history else ""
    print(f"{found.table}: {'a new table' if found.is_new else 'an existing table'}{key}")
    print(f"schema: {found.schema}")
    for change in found.changes:
        print(f"  {change}")
    print(*database_output.plan_lines(found.brokers), sep="\n")
    versions = [
        (f"{each.messages:,}", "; ".join(each.changes) or "no change") for each in found.versions
    ]
    print(*lines_of(("messages>", "schema version"), versions), sep="\n")
    rejects = [(f"{each.messages:,}", each.reason) for each in found.rejects]
    if rejects:
        print(*lines_of(("rejected>", "reason"), rejects), sep="\n")
    buckets = f" in {counted(found.buckets, 'bucket')}" if found.key else ""
    print(
        f"{counted(found.rows, 'row')} to add, {found.rejected:,} to reject, {found.skipped:,} to "
        f"skip; {counted(found.rewritten_files, 'file')} of {human_size(found.rewritten_size)} to "
        f"write again{buckets}"
    )
