"""Bulk work on stores with Spark: the data source ``rocketmq``, its sink, and the jobs.

The package needs the extra ``spark``; importing it without that raises ``MissingExtraError``. Jobs
run on ``local[*]`` by default. They run unchanged on a cluster whose workers have Firetrail
installed and the store's folder mounted at the same path.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from firetrail.errors import MissingExtraError

if missing := [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]:
    raise MissingExtraError(
        f"Firetrail's pipeline needs {' and '.join(missing)}: pip install 'firetrail[spark]'"
    )

from firetrail.pipeline.spark_session import session

if TYPE_CHECKING:
    from firetrail.pipeline.batch_plan import explain
    from firetrail.pipeline.datasource import register
    from firetrail.pipeline.jobs.archive.archive_job import archive
    from firetrail.pipeline.jobs.audit.audit_job import audit
    from firetrail.pipeline.jobs.rebuild.rebuild_job import rebuild
    from firetrail.pipeline.jobs.replay.replay_job import replay
    from firetrail.pipeline.jobs.report import report
    from firetrail.pipeline.jobs.restore import restore
    from firetrail.pipeline.jobs.sql import sql
    from firetrail.pipeline.lakes.lake_reader import lake_dataset, lake_files, read_lake
    from firetrail.pipeline.tables.databases.database_job import database
    from firetrail.pipeline.tables.runs.table_job import table
    from firetrail.pipeline.tables.runs.table_reader import table_dataset, table_files

__all__ = [
    "archive",
    "audit",
    "database",
    "explain",
    "lake_dataset",
    "lake_files",
    "read_lake",
    "rebuild",
    "register",
    "replay",
    "report",
    "restore",
    "session",
    "sql",
    "table",
    "table_dataset",
    "table_files",
]

# Modules that are imported on first use. Every Spark worker process imports this package, too, and
# needs at most one of the jobs.
_MODULES = {
    "archive": "jobs.archive.archive_job",
    "audit": "jobs.audit.audit_job",
    "database": "tables.databases.database_job",
    "explain": "batch_plan",
    "lake_dataset": "lakes.lake_reader",
    "lake_files": "lakes.lake_reader",
    "read_lake": "lakes.lake_reader",
    "rebuild": "jobs.rebuild.rebuild_job",
    "register": "datasource",
    "replay": "jobs.replay.replay_job",
    "report": "jobs.report",
    "restore": "jobs.restore",
    "sql": "jobs.sql",
    "table": "tables.runs.table_job",
    "table_dataset": "tables.runs.table_reader",
    "table_files": "tables.runs.table_reader",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
