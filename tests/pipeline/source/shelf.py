"""Stores for the tests of the data source, and the rows that it should return."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.helpers import Machine, small_config

from firetrail import Message, Store
from firetrail.format.record import Record
from firetrail.pipeline.batch_plan import plan_batch
from firetrail.pipeline.source.plan.ranges import NO_BOUNDS, Bounds
from firetrail.pipeline.source.schema import NAMES
from firetrail.pipeline.source.source_options import parse_options
from firetrail.pipeline.source.split_reader import read_split
from firetrail.pipeline.wire.broker_splits import WireSplit
from firetrail.store.inspect.view import StoreView

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STEP_MS = 1000
PREPARED, COMMITTED, ROLLED_BACK = 4, 8, 12


def fill(path: Path, messages: Iterable[Message], machine: Machine | None = None) -> Machine:
    """Put messages, one per second, into a store with tiny files, and close it."""
    machine = machine or Machine()
    config = small_config(log=8192, units=40, slots=16, entries=64)
    with Store.open(path, config, system=machine.system) as store:
        for message in messages:
            store.put(message)
            machine.clock.advance(STEP_MS)
    return machine


def some_messages(count: int, first: int = 0) -> list[Message]:
    """Return messages of two topics and three queues, some of them transactional."""
    found = []
    for number in range(first, first + count):
        kind = {5: PREPARED, 6: ROLLED_BACK, 7: COMMITTED}.get(number % 20, 0)
        found.append(
            Message(
                "rare" if number % 25 == 0 else "usual",
                b"body %d " % number * 5,
                tags=("A", "B", None)[number % 3],
                keys=[f"k{number}", "all"],
                properties={"n": str(number)},
                queue_id=number % 2,
                sys_flag=kind,
            )
        )
    return found


def row_of(record: Record) -> dict[str, Any]:
    fields = {name: getattr(record, name) for name in NAMES if hasattr(record, name)}
    return fields | {
        "msg_id": record.unique_key or record.message_id,
        "keys": list(record.keys),
        "properties": record.properties,
        "born_time": EPOCH + timedelta(milliseconds=record.born_time),
        "store_time": EPOCH + timedelta(milliseconds=record.store_time),
        "born_host": str(record.born_host),
        "store_host": str(record.store_host),
    }


def consumed(path: Path) -> list[dict[str, Any]]:
    """Return the messages that consumers get from all queues, in the order of the log."""
    records: list[Record] = []
    with StoreView.open(path) as view:
        for topic, queue_id in view.queues.pairs():
            offset = 0
            while True:
                result = view.reader.get(topic, queue_id, offset, 100)
                records += result.messages()
                if result.next_offset == offset:
                    break
                offset = result.next_offset
    return by_place(map(row_of, records))


def by_place(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: int(row["physical_offset"]))


def rows_of(
    path: Path | str,
    columns: Sequence[str] = NAMES,
    bounds: Bounds = NO_BOUNDS,
    how: dict[str, bool] | None = None,
    **options: str,
) -> list[dict[str, Any]]:
    """Read a store with the data source, split by split, without Spark."""
    return rows_with({"path": str(path)} | options, columns, bounds, how)


def rows_with(
    options: dict[str, str],
    columns: Sequence[str] = NAMES,
    bounds: Bounds = NO_BOUNDS,
    how: dict[str, bool] | None = None,
) -> list[dict[str, Any]]:
    """Read with the data source; the options name the store."""
    rows: list[dict[str, Any]] = []
    for split in plan_batch(parse_options(options), bounds).splits:
        assert not isinstance(split, WireSplit)
        for batch in read_split(split, columns, **(how or {})):
            batch.validate(full=True)
            rows += batch.to_pylist(maps_as_pydicts="strict")
    return rows
