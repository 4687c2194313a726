"""``firetrail pipeline rebuild``: consume queues and index from the log alone, in parallel."""

from __future__ import annotations

import argparse
from pathlib import Path

from firetrail.cli import common, spark
from firetrail.cli.command import ExitCode, Subparsers
from firetrail.cli.output import Progress
from firetrail.cli.rebuild import tell
from firetrail.format.names import COMMIT_LOG
from firetrail.store.inspect.log_files import segment_sizes
from firetrail.system import SYSTEM

DESCRIPTION = """\
Make the consume queues and index files of a store anew, from its log alone: the log's files are
read in parallel, and what comes out is byte for byte what the store itself derives.

With --into the store is only read, and may be in use; the new folder is complete or not there at
all. Without it the store must be closed: its queues and index are replaced when the new ones are
complete, and kept in a folder repair-<time> in the store.

All workers must reach the store and DIR under the same path. About a fifth of the log's size is
needed beside DIR while the job runs."""
EXAMPLES = """\
  firetrail pipeline rebuild data --into rebuilt
  firetrail pipeline rebuild data
  firetrail pipeline rebuild /mnt/data --into /mnt/rebuilt --master spark://host:7077"""


def add(subparsers: Subparsers) -> None:
    """Name, help and arguments."""
    parser = common.add_parser(
        subparsers, "rebuild", "make queues and index from the log", DESCRIPTION, EXAMPLES
    )
    parser.add_argument(
        "--into", metavar="DIR", type=Path, help="a new or empty folder (default: the store)"
    )
    common.add_delay_levels(parser)
    common.add_json(parser, "one JSON object: what was made")
    spark.add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> ExitCode:
    """Rebuild, and say what was made."""
    spark.check_store(str(args.store))
    with spark.spark_session(args) as session:
        from firetrail.pipeline.jobs.rebuild.job import rebuild

        progress = Progress("rebuilding", log_size(args.store))
        try:
            made = rebuild(
                session,
                args.store,
                args.into,
                delays=args.delay_levels,
                on_progress=progress,
            )
        finally:
            progress.clear()
    tell(args, args.into or args.store, made)
    return ExitCode.OK


def log_size(store: Path) -> int:
    """Length of all files of the log."""
    return sum(size for _, size in segment_sizes(SYSTEM, store / COMMIT_LOG))
