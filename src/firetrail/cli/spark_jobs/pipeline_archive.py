"""``firetrail pipeline archive``: export the log to a lake, each record once."""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from firetrail.cli import common
from firetrail.cli.output import counted, say
from firetrail.cli.spark_jobs import spark_options
from firetrail.cli.subcommand import ExitCode, Subparsers

if TYPE_CHECKING:
    from collections.abc import Callable

    from firetrail.pipeline.jobs.archive.archive_job import ArchiveResult

DESCRIPTION = """\
Export every record of the log to a lake: Parquet files (zstd) by day of the store time, in UTC,
with a manifest that says which records are in which file. Topics with many records have files of
their own, the others share one file per day.

Each run continues where the last one ended. If a run was killed, run it again: no record is
exported twice, and none is left out. The store may be in use. With the setting
delete_archived_only, its retention deletes only archived files.

LAKE is a folder that all workers reach, or s3://BUCKET/PATH in an object store (extra s3). Its
credentials, region and endpoint are those of the environment: AWS_PROFILE, AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL."""
EXAMPLES = """\
  firetrail pipeline archive data --to lake
  firetrail pipeline archive data --to lake --follow --every 300
  firetrail pipeline archive data --to s3://bucket/lake --format delta"""


def add(subparsers: Subparsers) -> None:
    """Add the parser."""
    parser = spark_options.add_parser(
        subparsers, "archive", "export to a lake", DESCRIPTION, EXAMPLES
    )
    parser.add_argument(
        "--to", metavar="LAKE", required=True, help="existing archive, or new folder"
    )
    parser.add_argument(
        "--format",
        choices=("parquet", "delta", "iceberg"),
        default="parquet",
        help="format of the lake (default: %(default)s); delta and iceberg require the extra of "
        "the same name",
    )
    parser.add_argument(
        "--layout",
        choices=("day", "topic"),
        help="folders of a new lake: one per day, or one per topic and day (default: day). With "
        "topic, every run writes at least one file for each topic and day",
    )
    parser.add_argument(
        "--follow", action="store_true", help="keep archiving new records until Ctrl-C"
    )
    parser.add_argument(
        "--every",
        metavar="SECONDS",
        type=common.not_negative,
        default=60,
        help="with --follow: archive every SECONDS (default: %(default)s)",
    )
    parser.add_argument(
        "--allow-gap",
        action="store_true",
        help="continue although retention deleted records that were not archived yet",
    )
    parser.add_argument(
        "--compact",
        action=argparse.BooleanOptionalAction,
        help="merge small files (default: with --format delta or iceberg; with plain Parquet, no "
        "program may read the lake meanwhile)",
    )
    common.add_json(parser, "print one JSON object per run: what was archived")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> ExitCode:
    """Archive the records, and print how many."""
    spark_options.check_store(args.store)
    with spark_options.spark_session(args) as session, ExitStack() as shown:
        from firetrail.pipeline.jobs.archive.archive_job import archive, follow

        def on_plan(tasks: int) -> Callable[[int], None]:
            return shown.enter_context(spark_options.task_progress("archiving", tasks))

        def on_round(done: ArchiveResult) -> None:
            shown.close()
            _print_round(args, done)

        options: dict[str, Any] = {
            "format": args.format,
            "layout": args.layout,
            "allow_gap": args.allow_gap,
            "compaction": args.compact,
            "on_plan": on_plan,
        }
        if args.follow:
            follow(session, args.store, args.to, every_s=args.every, on_round=on_round, **options)
        else:
            on_round(archive(session, args.store, args.to, **options))
    return ExitCode.OK


def _print_round(args: argparse.Namespace, done: ArchiveResult) -> None:
    if args.json:
        print(json.dumps(done._asdict()), flush=True)
        return
    extra = [f"{counted(done.removed, 'file')} of a killed run removed"] if done.removed else []
    extra += [f"{counted(done.compacted, 'small file')} merged"] if done.compacted else []
    print(
        f"{done.lake}: {counted(done.messages, 'message')} archived up to {done.end}; "
        f"{counted(done.total_messages, 'message')} in {counted(done.total_files, 'file')} in total"
        + "".join(f"; {text}" for text in extra),
        flush=True,
    )
    if not done.marked and done.total_messages:
        say(
            f"{args.store} cannot be written, so its retention does not know what is archived; do "
            "not set delete_archived_only"
        )
