"""The outcome of a job, read by code that shares nothing with it: source equals sink by id."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.crash.files_check import Raw, check_files, read_log
from tests.crash.oracle import Violation
from tests.stores import derived

from firetrail.format.values.delay import DEFAULT_DELAY_LEVELS, DelayLevels
from firetrail.store.inspect.fsck.check import check_store
from firetrail.store.inspect.view import StoreView

SLOTS = 16
Ids = Iterable[object]
Row = tuple[str, int, bytes]
"""A message in a lake: topic, physical offset, body."""


def same(source: Ids, sink: Ids, where: str) -> None:
    """Raise a Violation unless both have the same ids, each once."""
    wanted, found = Counter(map(repr, source)), Counter(map(repr, sink))
    if lost := wanted - found:
        raise Violation(f"I1: {where}: lost {len(lost)}, {next(iter(lost))} for one")
    if more := found - wanted:
        raise Violation(f"I2: {where}: {len(more)} too many, {next(iter(more))} for one")


def log_of(root: Path) -> list[Raw]:
    """Return the records of a closed store."""
    return read_log(root / "commitlog")[0]


def bodies(root: Path, topic: str) -> list[bytes]:
    return [raw.body for raw in log_of(root) if raw.topic == topic]


def sound(root: Path) -> None:
    """Raise a Violation unless the store's files agree, by the tests' code and by fsck."""
    check_files(root, SLOTS)
    with StoreView.open(root) as view:
        report = check_store(view, DelayLevels.parse(DEFAULT_DELAY_LEVELS))
    if not report.ok:
        raise Violation(f"I4: fsck of {root}: {report.problems}")


def listed_rows(lake: Path, manifest: dict[str, Any]) -> Iterator[Row]:
    for file in manifest["files"]:
        table = pq.read_table(lake / file["path"], partitioning=None)
        for row in table.to_pylist():
            yield row.get("topic", file["topic"]), row["physical_offset"], row["body"]


def _delta_rows(lake: Path) -> Iterator[Row]:
    from deltalake import DeltaTable, QueryBuilder

    query = "select topic, physical_offset, body from t"
    found = QueryBuilder().register("t", DeltaTable(str(lake))).execute(query).read_all()
    for row in pa.table(found).to_pylist():
        yield row["topic"], row["physical_offset"], row["body"]


def _iceberg_rows(lake: Path) -> Iterator[Row]:
    from pyiceberg.catalog.sql import SqlCatalog

    with SqlCatalog("firetrail", uri=f"sqlite:///{lake}/_firetrail/catalog.db") as catalog:
        table = catalog.load_table("firetrail.messages")
    fields = ("topic", "physical_offset", "body")
    for row in table.scan(selected_fields=fields).to_arrow().to_pylist():
        yield row["topic"], row["physical_offset"], row["body"]


READ = {"delta": _delta_rows, "iceberg": _iceberg_rows}


def same_files(wanted: Path, made: Path) -> None:
    """Raise a Violation unless queues and index are the same, byte for byte."""
    if derived(wanted) != derived(made):
        raise Violation(f"I4: queues and index of {made} are not those of {wanted}")


def nothing_left(folder: Path, names: set[str]) -> None:
    """Raise a Violation if there is anything else in a folder."""
    if more := {path.name for path in folder.iterdir()} - names:
        raise Violation(f"I2: unexpected files are left: {more}")
