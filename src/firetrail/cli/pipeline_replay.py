"""``firetrail pipeline replay``: chosen messages, copied to a topic of a store or of brokers."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from firetrail.cli import common, spark
from firetrail.cli.command import ExitCode, Subparsers
from firetrail.cli.output import Progress, counted, human_size

DESCRIPTION = """\
Copy the messages that a SQL predicate chooses to a store that is not in use, or to brokers.

Run again, a replay goes on where it ended: after it was killed no message is left out, and none is
copied twice to a store; brokers may get the last few again. It is known again by what it was asked
for, or by --id. Each copy has the id of its message as the property REPLAY_ORIGIN."""
EXAMPLES = """\
  firetrail pipeline replay data --where "topic = 'orders' and tags = 'failed'" --dry-run
  firetrail pipeline replay data --where "topic = 'orders' and tags = 'failed'" --to data2
  firetrail pipeline replay data --where "tags = 'failed'" --to namesrv=127.0.0.1:9876
  firetrail pipeline replay data --where "store_time > '2026-11-01'" --to data2 --topic again"""


def add(subparsers: Subparsers) -> None:
    """Name, help and arguments."""
    parser = spark.add_parser(
        subparsers, "replay", "copy chosen messages to a store or to brokers", DESCRIPTION, EXAMPLES
    )
    parser.add_argument(
        "--where", metavar="PREDICATE", required=True, help="in Spark SQL, as 'sql' has columns"
    )
    parser.add_argument(
        "--to",
        metavar="TARGET",
        help="where the copies go: a folder, or namesrv=HOST:PORT for running brokers",
    )
    parser.add_argument("--topic", help="topic of the copies (default: that of each message)")
    parser.add_argument(
        "--rate", metavar="N", type=_rate, help="most messages a second (default: no limit)"
    )
    parser.add_argument("--id", help="name by which this replay is known again")
    parser.add_argument("--dry-run", action="store_true", help="only count what would be copied")
    common.add_json(parser, "one JSON object: what was copied")
    parser.set_defaults(run=run, parser=parser)


def _rate(text: str) -> float:
    rate = float(text)
    if rate <= 0:
        raise ValueError
    return rate


_rate.__name__ = "rate"  # what argparse calls it in its errors


def run(args: argparse.Namespace) -> ExitCode:
    """Replay, and say what was copied."""
    if args.to is None and not args.dry_run:
        args.parser.error("--to TARGET is needed, or --dry-run")
    spark.check_store(args.store)
    with common.open_view(Path(args.store)) as view:
        size = view.end - view.log.min_offset
    progress = Progress("replaying", size)
    with spark.spark_session(args) as session:
        from firetrail.pipeline.jobs.replay.job import replay

        try:
            done = replay(
                session,
                args.store,
                args.to,
                where=args.where,
                topic=args.topic,
                replay_id=args.id,
                rate=args.rate,
                dry_run=args.dry_run,
                on_progress=progress,
            )
        finally:
            progress.clear()
    if args.json:
        print(json.dumps(done._asdict()))
    else:
        what = "would be copied" if args.dry_run else f"copied to {args.to}"
        print(f"{counted(done.messages, 'message')} ({human_size(done.bytes)}) {what}")
    return ExitCode.OK
