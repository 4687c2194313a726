"""``firetrail pipeline replay``: copy selected messages to a store or to brokers."""

import argparse
import json
from pathlib import Path

from firetrail.cli import common
from firetrail.cli.output import Progress, counted, human_size
from firetrail.cli.spark_jobs import spark_options
from firetrail.cli.subcommand import ExitCode, Subparsers

DESCRIPTION = """\
Copy the messages that match a SQL predicate to a store that is not in use, or to brokers.

If a replay was killed, run it again: it continues where it ended. No message is left out, and none
is copied twice to a store; brokers may receive the last few twice. A replay is recognized by its
arguments, or by --id. Each copy has the id of the original message as its property
REPLAY_ORIGIN."""
EXAMPLES = """\
  firetrail pipeline replay data --where "topic = 'orders' and tags = 'failed'" --dry-run
  firetrail pipeline replay data --where "topic = 'orders' and tags = 'failed'" --to data2
  firetrail pipeline replay data --where "tags = 'failed'" --to namesrv=127.0.0.1:9876
  firetrail pipeline replay data --where "store_time > '2026-11-01'" --to data2 --topic again"""


def add(subparsers: Subparsers) -> None:
    """Add the parser."""
    parser = spark_options.add_parser(
        subparsers,
        "replay",
        "copy selected messages to a store or to brokers",
        DESCRIPTION,
        EXAMPLES,
    )
    parser.add_argument(
        "--where",
        metavar="PREDICATE",
        required=True,
        help="Spark SQL predicate on the columns that 'firetrail pipeline sql --help' lists",
    )
    parser.add_argument(
        "--to",
        metavar="TARGET",
        help="destination: the folder of a store, or namesrv=HOST:PORT for running brokers",
    )
    parser.add_argument(
        "--topic", metavar="TOPIC", help="topic of the copies (default: that of each message)"
    )
    parser.add_argument(
        "--rate",
        metavar="N",
        type=_rate,
        help="copy at most N messages per second (default: no limit)",
    )
    parser.add_argument(
        "--id",
        metavar="NAME",
        help="name by which this replay is recognized if it is run again (default: derived from "
        "the arguments)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only count the messages that would be copied"
    )
    spark_options.add_mode(parser)
    common.add_json(parser, "print a JSON object: what was copied")
    parser.set_defaults(run=run, parser=parser)


def _rate(text: str) -> float:
    rate = float(text)
    if rate <= 0:
        raise ValueError
    return rate


_rate.__name__ = "rate"  # argparse's errors call the argument by this name


def run(args: argparse.Namespace) -> ExitCode:
    """Replay the messages, and print how many."""
    if args.to is None and not args.dry_run:
        args.parser.error("--to TARGET or --dry-run is required")
    spark_options.check_store(args.store)
    with common.open_view(Path(args.store)) as view:
        size = view.end - view.log.min_offset
    with spark_options.spark_session(args) as session, Progress("replaying", size) as progress:
        from firetrail.pipeline.jobs.replay.replay_job import replay

        done = replay(
            session,
            args.store,
            args.to,
            where=args.where,
            topic=args.topic,
            replay_id=args.id,
            rate=args.rate,
            dry_run=args.dry_run,
            mode=args.mode,
            on_progress=progress,
        )
    if args.json:
        print(json.dumps(done._asdict()))
    else:
        what = "would be copied" if args.dry_run else f"copied to {args.to}"
        print(f"{counted(done.messages, 'message')} ({human_size(done.bytes)}) {what}")
        if done.skipped:
            skipped = counted(done.skipped, "damaged position")
            print(f"{skipped} skipped; 'firetrail fsck {args.store}' lists the damage")
    return ExitCode.OK
