"""Bulk work on stores with Spark: the data source ``rocketmq``, its sink, and the jobs.

Needs the extra ``spark``; importing this package without it raises ``MissingExtraError``. Jobs run
on ``local[*]`` by default and unchanged on a cluster, whose workers need Firetrail installed and
the store's folder at the same path.
"""

from __future__ import annotations

from importlib.util import find_spec

from firetrail.errors import MissingExtraError

if missing := [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]:
    raise MissingExtraError(
        f"Firetrail's pipeline needs {' and '.join(missing)}: pip install 'firetrail[spark]'"
    )

from firetrail.pipeline.session import session

__all__ = ["session"]
