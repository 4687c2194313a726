"""Bulk work on stores with Spark: the data source ``rocketmq``, its sink, and the jobs.

Needs the extra ``spark``; importing this package without it raises ``MissingExtraError``. Jobs run
on ``local[*]`` by default and unchanged on a cluster, whose workers need Firetrail installed and
the store's folder at the same path.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from firetrail.errors import MissingExtraError

if missing := [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]:
    raise MissingExtraError(
        f"Firetrail's pipeline needs {' and '.join(missing)}: pip install 'firetrail[spark]'"
    )

from firetrail.pipeline.session import session

if TYPE_CHECKING:
    from firetrail.pipeline.jobs.archive.job import archive
    from firetrail.pipeline.jobs.audit.job import audit
    from firetrail.pipeline.jobs.rebuild.job import rebuild
    from firetrail.pipeline.jobs.replay.job import replay
    from firetrail.pipeline.jobs.report import report
    from firetrail.pipeline.jobs.restore import restore
    from firetrail.pipeline.jobs.sql import sql
    from firetrail.pipeline.source.datasource import register
    from firetrail.pipeline.source.plan import explain

__all__ = [
    "archive",
    "audit",
    "explain",
    "rebuild",
    "register",
    "replay",
    "report",
    "restore",
    "session",
    "sql",
]

# Where the others are. They are imported when they are asked for: Spark's workers import this
# package too, each of them anew, and need one job at most.
_HOMES = {
    "archive": "jobs.archive.job",
    "audit": "jobs.audit.job",
    "explain": "source.plan",
    "rebuild": "jobs.rebuild.job",
    "register": "source.datasource",
    "replay": "jobs.replay.job",
    "report": "jobs.report",
    "restore": "jobs.restore",
    "sql": "jobs.sql",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
