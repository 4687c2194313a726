"""``firetrail pipeline restore``: a store from a lake."""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from pathlib import Path

from firetrail.cli import common, spark
from firetrail.cli.command import ExitCode, Subparsers
from firetrail.cli.output import counted

DESCRIPTION = """\
Make a store of the records in a lake that 'archive' has written.

Every record comes back to its old place in the log, byte for byte; queues and index are derived
from the log. The new folder appears when everything is in it. It must be one that all workers
reach. What a broker keeps in config/ (topics, consumer offsets) is not in an archive."""
EXAMPLES = """\
  firetrail pipeline restore lake --into data
  firetrail pipeline restore s3://bucket/lake --into data --json"""


def add(subparsers: Subparsers) -> None:
    """Name, help and arguments."""
    parser = subparsers.add_parser(
        "restore",
        help="make a store from a lake",
        description=DESCRIPTION,
        epilog=f"examples:\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("lake", metavar="LAKE", help="folder or address of the archive")
    parser.add_argument(
        "--into", metavar="STORE", type=Path, required=True, help="a new or empty folder"
    )
    parser.add_argument(
        "--part",
        metavar="N",
        type=common.not_negative,
        help="which part, of an archive with gaps; 0 is the oldest",
    )
    common.add_delay_levels(parser)
    common.add_json(parser, "one JSON object: what was made")
    spark.add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> ExitCode:
    """Restore, and say what was made."""
    with spark.spark_session(args) as session, ExitStack() as shown:
        from firetrail.pipeline.jobs.restore import restore

        made = restore(
            session,
            args.lake,
            args.into,
            part=args.part,
            delays=args.delay_levels,
            on_plan=lambda tasks: shown.enter_context(spark.task_progress("restoring", tasks)),
        )
    if args.json:
        print(json.dumps(made._asdict()))
    else:
        print(
            f"{args.into}: {counted(made.messages, 'message')} in "
            f"{counted(made.segments, 'log file')}, from {made.start} to {made.end}"
        )
    return ExitCode.OK
