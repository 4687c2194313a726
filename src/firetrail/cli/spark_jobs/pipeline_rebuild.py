"""``firetrail pipeline rebuild``: rebuild consume queues and index from the log, in parallel."""

import argparse
from pathlib import Path

from firetrail.cli import common
from firetrail.cli.output import Progress
from firetrail.cli.spark_jobs import spark_options
from firetrail.cli.stores.rebuild import print_result
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.store.log.view_log import log_size
from firetrail.system import SYSTEM

DESCRIPTION = """\
Rebuild the consume queues and index files of a store from its log. The log files are read in
parallel; the result is byte for byte what the store itself derives.

With --into the store is only read, and may be in use; DIR appears only when it is complete. Without
--into the store must be closed: its queues and index are replaced when the new ones are complete,
and the old ones are kept in a folder repair-<time> in the store.

All workers must see the store and DIR under the same path. While the job runs, it needs space for
about a fifth of the log next to DIR."""
EXAMPLES = """\
  firetrail pipeline rebuild data --into rebuilt
  firetrail pipeline rebuild data
  firetrail pipeline rebuild /mnt/data --into /mnt/rebuilt --master spark://host:7077"""


def add(subparsers: Subparsers) -> None:
    """Add the parser."""
    parser = common.add_parser(
        subparsers, "rebuild", "rebuild queues and index from the log", DESCRIPTION, EXAMPLES
    )
    parser.add_argument(
        "--into",
        metavar="DIR",
        type=Path,
        help="new or empty folder for the files (default: replace those of the store)",
    )
    common.add_delay_levels(parser)
    common.add_json(parser, "print a JSON object: what was rebuilt")
    spark_options.add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> ExitCode:
    """Rebuild queues and index, and print how many."""
    spark_options.check_store(str(args.store))
    with spark_options.spark_session(args) as session:
        from firetrail.pipeline.jobs.rebuild.rebuild_job import rebuild

        with Progress("rebuilding", log_size(SYSTEM, args.store)) as progress:
            made = rebuild(
                session, args.store, args.into, delays=args.delay_levels, on_progress=progress
            )
    print_result(args, args.into or args.store, made)
    return ExitCode.OK
