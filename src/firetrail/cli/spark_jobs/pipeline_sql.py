"""``firetrail pipeline sql``: run a query, and print a table, JSON or CSV, or write Parquet."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from base64 import b64decode
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firetrail.cli.common import not_negative
from firetrail.cli.output import counted, say, table
from firetrail.cli.record_output import preview
from firetrail.cli.spark_jobs import spark_options
from firetrail.cli.subcommand import ExitCode, Subparsers

if TYPE_CHECKING:
    from firetrail.pipeline.jobs.sql import SqlResult

DESCRIPTION = """\
Run a SQL query over a store, or over the queues of running brokers: namesrv=HOST:PORT.

The table 'messages' has the messages that consumers see, through the queues; the table 'log' has
every record as stored, and exists only for stores, not for brokers. Both have the columns topic,
queue_id, queue_offset, physical_offset, msg_id, tags, keys (array), properties (map), body
(binary), born_time, store_time, born_host, store_host, sys_flag, flag, reconsume_times,
prepared_offset and size. Only the rows and columns that a query needs are read."""
EXAMPLES = """\
  firetrail pipeline sql data "select topic, count(*) from messages group by topic"
  firetrail pipeline sql data "select * from messages where topic = 'orders' limit 5" --json
  firetrail pipeline sql namesrv=127.0.0.1:9876 "select count(*) from messages"
  firetrail pipeline sql data "select keys[0], decode(body, 'utf-8') from log" --parquet out"""
DEFAULT_MAX = 100
_CELL_MAX = 60
_NUMBERS = {"byte", "short", "integer", "long", "decimal", "float", "double"}


def add(subparsers: Subparsers) -> None:
    """Add the parser."""
    parser = spark_options.add_parser(subparsers, "sql", "query a store", DESCRIPTION, EXAMPLES)
    parser.add_argument("query", metavar="QUERY", help="Spark SQL statement")
    parser.add_argument(
        "--max",
        metavar="N",
        type=not_negative,
        default=DEFAULT_MAX,
        help="print at most N rows of the table; does not apply to --json, --csv and --parquet "
        "(default: %(default)s)",
    )
    spark_options.add_mode(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object per line, binary columns in base64",
    )
    form.add_argument(
        "--csv", action="store_true", help="print comma-separated values with a header"
    )
    form.add_argument(
        "--parquet", metavar="DIR", type=Path, help="write Parquet files to a new folder"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> ExitCode:
    """Run the query, and print or write its result."""
    spark_options.check_store(args.store, brokers=True)
    with spark_options.spark_session(args, bar=True) as session:
        from firetrail.pipeline.jobs.sql import SqlResult, sql

        result = SqlResult(sql(session, args.store, args.query, mode=args.mode))
        if args.json:
            for line in result.lines():
                print(line)
        elif args.csv:
            _print_csv(result)
        elif args.parquet:
            result.write_parquet(args.parquet)
            say(f"{args.parquet}: written")
        else:
            _print_table(result, args.max)
    return ExitCode.OK


def _print_csv(result: SqlResult) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(result.names)
    for row in result.rows():
        writer.writerow(_plain(value) for value in row)


def _print_table(result: SqlResult, limit: int) -> None:
    rows = list(result.rows(limit + 1))
    heads = [
        f"{name}>" if kind in _NUMBERS else name
        for name, kind in zip(result.names, result.types, strict=True)
    ]
    cells = [
        [_cell(value, kind) for value, kind in zip(row, result.types, strict=True)]
        for row in rows[:limit]
    ]
    print("\n".join(table(heads, cells)))
    if len(rows) > limit:
        say(
            f"only the first {counted(limit, 'row')} are shown; --max N shows more, --json and "
            "--csv all"
        )


def _cell(value: Any, kind: str) -> str:
    """Format a value for the terminal: bytes as text if printable, long values cut."""
    if value is None:
        return "-"
    if kind == "binary":
        return preview(memoryview(b64decode(value)))
    text = str(_plain(value))
    text = text if text.isprintable() else json.dumps(text)
    return text if len(text) <= _CELL_MAX else f"{text[: _CELL_MAX - 1]}…"


def _plain(value: Any) -> Any:
    """Return arrays, maps and structs as JSON, everything else unchanged."""
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
