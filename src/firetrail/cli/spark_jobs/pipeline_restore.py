"""``firetrail pipeline restore``: create a store from a lake."""

import argparse
import json
from contextlib import ExitStack
from pathlib import Path

from firetrail.cli import common
from firetrail.cli.output import counted
from firetrail.cli.spark_jobs import spark_options
from firetrail.cli.subcommand import ExitCode, Subparsers

DESCRIPTION = """\
Create a store from the records in a lake that 'firetrail pipeline archive' wrote.

Every record is restored to its original physical offset, byte for byte; queues and index are
derived from the log. An archive does not contain the broker's files in config/ (topics, consumer
offsets).

All workers must see the new folder under the same path. It appears only when it is complete."""
EXAMPLES = """\
  firetrail pipeline restore lake --into data
  firetrail pipeline restore s3://bucket/lake --into data --json"""


def add(subparsers: Subparsers) -> None:
    """Add the parser."""
    parser = common.add_plain_parser(
        subparsers, "restore", "create a store from a lake", DESCRIPTION, EXAMPLES
    )
    parser.add_argument("lake", metavar="LAKE", help="folder or address of the archive")
    parser.add_argument(
        "--into", metavar="DIR", type=Path, required=True, help="new or empty folder for the store"
    )
    parser.add_argument(
        "--part",
        metavar="N",
        type=common.not_negative,
        help="which part of an archive with gaps to restore; 0 is the oldest",
    )
    common.add_delay_levels(parser)
    common.add_json(parser, "print a JSON object: what was restored")
    spark_options.add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> ExitCode:
    """Restore the store, and print its figures."""
    with spark_options.spark_session(args) as session, ExitStack() as shown:
        from firetrail.pipeline.jobs.restore import restore

        made = restore(
            session,
            args.lake,
            args.into,
            part=args.part,
            delays=args.delay_levels,
            on_plan=lambda tasks: shown.enter_context(
                spark_options.task_progress("restoring", tasks)
            ),
        )
    if args.json:
        print(json.dumps(made._asdict()))
    else:
        print(
            f"{args.into}: {counted(made.messages, 'message')} in "
            f"{counted(made.segments, 'log file')}, from {made.start} to {made.end}"
        )
    return ExitCode.OK
