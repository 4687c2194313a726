"""Damage to one byte of a record: every reader notices the same, whichever columns are read."""

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import fsspec
import pytest
from tests.helpers import Machine, small_config
from tests.pipeline.source.shelf import STEP_MS, rows_with, some_messages
from tests.stores import flip, log_file, records

from firetrail import Store
from firetrail.errors import StoreDamagedError
from firetrail.format import layout
from firetrail.format.record import Record
from firetrail.pipeline.source.arrays import BatchBuilder
from firetrail.pipeline.source.plan import log_splits
from firetrail.pipeline.source.plan.store_splits import EVERYTHING, QueueRange
from firetrail.pipeline.source.schema import CHEAPEST, METADATA, NAMES, fields
from firetrail.pipeline.source.unit_reader import RecordSelector
from firetrail.pipeline.wire.broker_reader import _Decoder
from firetrail.pipeline.wire.broker_splits import BrokerRange

COUNT = 60
VICTIM = 33
COLUMNS = (NAMES, METADATA, (CHEAPEST,))
Reader = Callable[[Path, tuple[str, ...], bool], int]


def places(record: Record, sealed: bool) -> dict[str, int]:
    """Return the position of the last byte of each field within a record with IPv4 hosts."""
    widths = {
        **dict.fromkeys(("size", "magic", "body_crc", "queue_id", "flag"), 4),
        "queue_offset": 8,
        "physical_offset": 8,
        "sys_flag": 4,
        "born_time": 8,
        "born_host": 8,
        "store_time": 8,
        "store_host": 8,
        "reconsume_times": 4,
        "prepared_offset": 8,
        "body_length": 4,
        "body": len(record.body),
        "topic_length": 1,
        "topic": len(record.topic),
        "properties_length": 2,
        "properties": len(record.raw_properties) - layout.PROPERTY_CRC_SIZE * sealed,
    }
    if sealed:
        mark = len(layout.PROPERTY_CRC_MARK)
        widths |= {"seal_name": mark, "seal": layout.PROPERTY_CRC_SIZE - mark - 1, "seal_end": 1}
    found, at = {}, 0
    for name, width in widths.items():
        at += width
        found[name] = at - 1
    assert at == record.size
    return found


# -- readers ----------------------------------------------------------------------------------


def read(store: Path | str, columns: tuple[str, ...], permissive: bool, **options: str) -> int:
    how = {"permissive": True} if permissive else None
    mode = "permissive" if permissive else "failfast"
    return len(rows_with({"path": str(store), "mode": mode, **options}, columns, how=how))


def log(store: Path, columns: tuple[str, ...], permissive: bool) -> int:
    return read(store, columns, permissive, view="log")


def scanned(store: Path, columns: tuple[str, ...], permissive: bool) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_splits, "SCAN_RATIO", 10**9)
        return read(store, columns, permissive)


def looked_up(store: Path, columns: tuple[str, ...], permissive: bool) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_splits, "SCAN_RATIO", 0)
        return read(store, columns, permissive)


def by_key(store: Path, columns: tuple[str, ...], permissive: bool) -> int:
    return read(store, columns, permissive, subscribe="usual", key="all")


def by_key_in_log(store: Path, columns: tuple[str, ...], permissive: bool) -> int:
    return read(store, columns, permissive, subscribe="usual", key="all", view="log")


def remote(store: Path, columns: tuple[str, ...], permissive: bool) -> int:
    (path,) = (store / "commitlog").iterdir()
    fsspec.filesystem("memory").pipe(f"/verified/commitlog/{path.name}", path.read_bytes())
    return read("memory://verified", columns, permissive)


def wire(store: Path, columns: tuple[str, ...], permissive: bool) -> int:
    """Decode what a broker sends, as it is in the log."""
    (path,) = (store / "commitlog").iterdir()
    sent = path.read_bytes().rstrip(b"\0")
    part = BrokerRange("broker", QueueRange("usual", 0, 0, COUNT))
    decoder = _Decoder(BatchBuilder(fields(columns)), permissive)
    return sum(
        b.num_rows for b in decoder.batches(part, sent, RecordSelector(None, b"", EVERYTHING))
    )


READERS: tuple[Reader, ...] = (log, scanned, looked_up, by_key, by_key_in_log, remote, wire)


def verdict(reader: Reader, store: Path, columns: tuple[str, ...], permissive: bool) -> str:
    try:
        return f"{reader(store, columns, permissive)} rows"
    except StoreDamagedError as error:
        return str(error)


# -- stores -----------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["sealed", "unsealed"], scope="module")
def sealed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, sealed: bool) -> Iterator[Path]:
    """Messages in one file of the log, with a checksum of the whole record or only of the body."""
    path, machine = tmp_path_factory.mktemp("verified") / "store", Machine()
    config = small_config(log=64 << 10, units=100, slots=64, entries=200, property_crc=sealed)
    with Store.open(path, config, system=machine.system) as opened:
        for message in some_messages(COUNT):
            opened.put(message)
            machine.clock.advance(STEP_MS)
    yield path
    fsspec.filesystem("memory").rm("/verified", recursive=True)


def damaged_fields(store: Path, sealed: bool) -> Iterator[str]:
    """Damage one field after the other, and repair it again."""
    victim = records(store)[VICTIM]
    path, at = log_file(store, victim.physical_offset)
    for name, place in places(victim, sealed).items():
        flip(path, at + place)
        yield name
        flip(path, at + place)


def test_damage_does_not_depend_on_the_columns_that_are_read(store: Path, sealed: bool) -> None:
    for field, reader in product(damaged_fields(store, sealed), READERS):
        for permissive in (False, True):
            found = {verdict(reader, store, columns, permissive) for columns in COLUMNS}
            assert len(found) == 1, (field, reader.__name__, permissive, found)


def test_every_reader_notices_what_the_checksum_covers(store: Path, sealed: bool) -> None:
    """A sealed record has a checksum of all its bytes, any other one only of its body."""
    for field in damaged_fields(store, sealed):
        if sealed or field in ("body", "body_crc"):
            for reader in READERS:
                found = verdict(reader, store, (CHEAPEST,), False)
                assert "fsck" in found, (field, reader.__name__, found)
