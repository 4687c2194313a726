"""Databases of tables in the commands of tables: their options, and what is printed of them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from firetrail.cli.output import counted, human_size, say, table
from firetrail.cli.spark_jobs import spark_options
from firetrail.cli.subcommand import ExitCode
from firetrail.errors import ConfigError

if TYPE_CHECKING:
    from firetrail.pipeline.tables.databases.database_explanation import DatabaseExplanation
    from firetrail.pipeline.tables.databases.database_result import DatabaseResult
    from firetrail.pipeline.tables.runs.explanation import BrokerPlan
    from firetrail.pipeline.tables.runs.table_status import BrokerMessages


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of databases to the parser of tables."""
    group = parser.add_argument_group("databases")
    group.add_argument(
        "--database",
        metavar="BY",
        help="make a table for each table that messages name; BY is envelope (of CDC events), tag, "
        "or column:NAME (of the bodies)",
    )
    group.add_argument(
        "--include",
        metavar="TABLES",
        help="names of tables, with * for any text, separated by commas; messages of others are "
        "skipped (default: all)",
    )
    group.add_argument(
        "--exclude", metavar="TABLES", help="names of tables whose messages are skipped"
    )
    group.add_argument(
        "--table-prefix",
        metavar="TEXT",
        help="beginning of the names of the folders of tables (default: none)",
    )


def check_options(args: argparse.Namespace) -> None:
    """Raise ConfigError if an option of databases is given without --database."""
    for name in ("include", "exclude", "table_prefix"):
        if args.database is None and getattr(args, name) is not None:
            raise ConfigError(name, getattr(args, name), "needs --database")


def options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of the job that tables alone do not have; raise ConfigError."""
    if args.schema is not None:
        reason = "is for a table alone; a database infers the columns of each of its tables"
        raise ConfigError("schema", args.schema, reason)
    names = ("include", "exclude", "table_prefix")
    return {"by": args.database, **{name: getattr(args, name) for name in names}}


def jobs() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the job and its dry run, with the arguments of those of a table."""
    from firetrail.pipeline.tables.databases.database_explanation import explain_database
    from firetrail.pipeline.tables.databases.database_job import database

    return _without_schema(database), _without_schema(explain_database)


def _without_schema(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, schema: None, **more: Any) -> Any:
        return function(*args, **more)

    return call


def is_database(place: str) -> bool:
    """Whether a place is a database."""
    from firetrail.pipeline.tables.databases.database_commit import database_of

    found = database_of(place)
    return found is not None and not found[1]


def is_in_database(place: str) -> bool:
    """Whether a place is a database or a table in one."""
    from firetrail.pipeline.tables.databases.database_commit import database_of

    return database_of(place) is not None


def _name(place: str, database: str) -> str:
    return place.removeprefix(f"{database}/")


# -- runs -------------------------------------------------------------------------------------


def show(args: argparse.Namespace, done: DatabaseResult) -> None:
    """Print the result of a run."""
    if args.json:
        print(json.dumps(done.as_json(), ensure_ascii=False), flush=True)
        return
    for each in done.tables:
        for change in each.changes:
            print(f"{_name(each.table, done.database)}: {change}")
    lines = [
        (
            _name(each.table, done.database),
            *(f"{number:,}" for number in (each.messages, each.rows, each.updated, each.deleted)),
            f"{each.rejected:,}",
            f"{each.total_rows:,}",
        )
        for each in done.tables
    ]
    if lines:
        heads = ("messages>", "added>", "replaced>", "deleted>", "rejected>", "rows>")
        print(*table(("table", *heads), lines), sep="\n")
    skipped = f", {counted(done.skipped, 'message')} skipped" if done.skipped else ""
    print(
        f"{done.database}: {counted(done.rows, 'row')} of {counted(done.messages, 'message')} "
        f"added{skipped}; {counted(done.total_rows, 'row')} in "
        f"{counted(done.total_tables, 'table')}",
        flush=True,
    )
    if done.lost:
        say(f"{counted(done.lost, 'message')} had been deleted before they were read")
    if done.rejected:
        say(
            f"{counted(done.rejected, 'message')} rejected, {done.unassigned:,} of no table "
            f"({done.database}__rejected); the first: {done.first_reject}"
        )


def show_plan(args: argparse.Namespace, found: DatabaseExplanation) -> None:
    """Print what a run would do."""
    if args.json:
        print(json.dumps(found.as_json(), ensure_ascii=False))
        return
    key = f", key {', '.join(found.key)}" if found.key else ""
    print(f"{found.database}: {'a new database' if found.is_new else 'an existing database'}{key}")
    print(*plan_lines(found.brokers), sep="\n")
    lines = [
        (
            _name(each.table, found.database),
            "yes" if each.is_new else "no",
            f"{each.messages:,}",
            f"{each.rows:,}",
            f"{each.rejected:,}",
            f"{each.rewritten_files:,}",
            each.schema if each.is_new else "; ".join(each.changes) or "no change",
        )
        for each in found.tables
    ]
    heads = ("new", "messages>", "rows>", "rejected>", "rewritten>", "columns")
    print(*table(("table", *heads), lines), sep="\n")
    rejects = [
        (_name(each.table, found.database), f"{reject.messages:,}", reject.reason)
        for each in found.tables
        for reject in each.rejects
    ]
    rejects += [("(none)", f"{reject.messages:,}", reject.reason) for reject in found.rejects]
    if rejects:
        print(*table(("table", "rejected>", "reason"), rejects), sep="\n")
    print(
        f"{counted(found.rows, 'row')} to add to {counted(len(found.tables), 'table')}, "
        f"{found.rejected:,} to reject, {found.skipped:,} to skip; "
        f"{counted(found.rewritten_files, 'file')} of {human_size(found.rewritten_size)} to write "
        "again"
    )


def plan_lines(brokers: Sequence[BrokerPlan]) -> Sequence[str]:
    """Return the lines of what a run would read of each broker."""
    rows = [
        (each.broker, f"{each.messages:,}", f"{each.lost:,}", human_size(each.size))
        for each in brokers
    ]
    return list(table(("broker", "messages>", "lost>", "to read>"), rows))


# -- what there is ----------------------------------------------------------------------------


def print_status(args: argparse.Namespace) -> ExitCode:
    """Print the status of a database."""
    from firetrail.pipeline.tables.databases.database_status import database_status

    found = database_status(args.table)
    if args.json:
        print(json.dumps(found.as_json(), ensure_ascii=False))
        return ExitCode.OK
    chosen = found.options["database"]
    key = f", key {', '.join(chosen['upsert'])}" if chosen["upsert"] else ""
    print(
        f"{found.database}: topic {found.topic}, {found.options['decoder']}, by {chosen['by']}{key}"
    )
    rows = [
        (
            _name(each.table, found.database),
            f"{each.messages:,}",
            f"{each.rows:,}",
            f"{each.rejected:,}",
            f"{each.files:,}",
            human_size(each.size),
            time_text(max((b.newest_ms or 0 for b in each.brokers), default=0) or None),
        )
        for each in found.tables
    ]
    heads = ("messages>", "rows>", "rejected>", "files>", "size>", "newest")
    print(*table(("table", *heads), rows), sep="\n")
    print(
        f"{counted(len(found.tables), 'table')}: {counted(found.rows, 'row')} of "
        f"{counted(found.messages, 'message')}, {found.rejected:,} rejected "
        f"({found.unassigned:,} of no table), {found.skipped:,} skipped; "
        f"{counted(found.files, 'file')} of {human_size(found.size)}"
    )
    print(*broker_lines(found.brokers), sep="\n")
    return ExitCode.OK


def broker_lines(brokers: Sequence[BrokerMessages]) -> Sequence[str]:
    """Return the lines of the progress of brokers."""
    rows = [
        (
            broker.broker,
            f"{broker.messages:,}",
            f"{broker.lost:,}",
            time_text(broker.newest_ms),
            " ".join(f"{queue}:{offset}" for queue, offset in sorted(broker.offsets.items())),
        )
        for broker in brokers
    ]
    return list(table(("broker", "messages>", "lost>", "newest", "next offsets"), rows))


def time_text(ms: int | None) -> str:
    """Return a time in ms for people; a dash if there is none."""
    if ms is None:
        return "-"
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(" ", "milliseconds")


def verify(args: argparse.Namespace) -> ExitCode:
    """Compare a database with its topic, and print what differs."""
    from firetrail.pipeline.tables.databases.database_verification import verify_database

    with spark_options.warnings_shown():
        found = verify_database(args.sources, args.to, source_options=args.source_option)
    if args.json:
        print(json.dumps(found.as_json()))
        return ExitCode.OK if found.ok else ExitCode.PROBLEMS
    for example in found.examples:
        print(example)
    rows = [
        (
            _name(each.table, found.database),
            "ok" if each.ok else "differs",
            *(f"{number:,}" for number in (each.messages, each.rows, each.rejected)),
            *(f"{number:,}" for number in (each.missing, each.repeated, each.unexpected)),
        )
        for each in found.tables
    ]
    heads = ("", "messages>", "rows>", "rejected>", "missing>", "repeated>", "unexpected>")
    print(*table(("table", *heads), rows), sep="\n")
    gone = f", {found.unreadable:,} no longer in the sources" if found.unreadable else ""
    print(
        f"{found.database}: {'ok' if found.ok else 'differs'}: "
        f"{counted(found.messages, 'message')}, {counted(found.rows, 'row')} in "
        f"{counted(len(found.tables), 'table')}, {found.rejected:,} rejected{gone}; "
        f"{found.missing:,} missing, {found.repeated:,} repeated, {found.unexpected:,} unexpected"
    )
    return ExitCode.OK if found.ok else ExitCode.PROBLEMS


def retry(args: argparse.Namespace, session: Any, **options: Any) -> ExitCode:
    """Retry the rejected messages of a database or of a table in it."""
    from firetrail.pipeline.tables.databases.database_retry import retry_database

    done = retry_database(session, args.table, **options)
    if args.json:
        print(json.dumps(done.as_json(), ensure_ascii=False))
        return ExitCode.PROBLEMS if done.rejected else ExitCode.OK
    for each in done.tables:
        for change in each.changes:
            print(f"{_name(each.table, done.database)}: {change}")
    rows = [
        (
            _name(each.table, done.database),
            *(f"{number:,}" for number in (each.retried, each.rows, each.updated, each.deleted)),
            f"{each.rejected:,}",
        )
        for each in done.tables
    ]
    if rows:
        heads = ("retried>", "added>", "replaced>", "deleted>", "rejected>")
        print(*table(("table", *heads), rows), sep="\n")
    print(
        f"{done.database}: {counted(done.retried, 'rejected message')}, "
        f"{counted(done.rows, 'row')} added, {done.updated:,} replaced, {done.deleted:,} deleted; "
        f"{counted(done.rejected, 'message')} still rejected, {done.unassigned:,} of no table"
    )
    if done.rejected and done.first_reject:
        say(f"the first that does not fit: {done.first_reject}")
    return ExitCode.PROBLEMS if done.rejected else ExitCode.OK
