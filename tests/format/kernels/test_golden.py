"""Stores that Java wrote: scanned, decoded, written again, their queues and index rebuilt."""

from array import array
from collections import defaultdict

import pytest
from tests.format.kernels.drafts import ANY_RECORD, assert_row
from tests.format.kernels.golden import STORES, Piece, index_files, queue_files, scan_log

from firetrail.format import layout
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.columns import Check, Stop
from firetrail.format.files.index import (
    IndexGeometry,
    IndexHeader,
    decode_index_header,
    encode_index_header,
    find_geometry,
    index_file_size,
)
from firetrail.format.files.unit import PRE_BLANK, UNIT_SIZE, encode_unit
from firetrail.format.kernels.derive import ENTRIES_PER_RECORD_MAX, derive_entries, derive_units
from firetrail.format.kernels.encode import RecordFields, RecordWriter, measure_batch, with_crc_room
from firetrail.format.kernels.index import append_entries, cut_entries, walk
from firetrail.format.record import Blank, Record, decode_record
from firetrail.format.values.delay import DEFAULT_DELAY_LEVELS, DelayLevels
from firetrail.format.values.hosts import encode_host
from firetrail.format.values.javahash import index_key_hash

WAITS = array("q", DelayLevels.parse(DEFAULT_DELAY_LEVELS).waits_ms)
every_store = pytest.mark.parametrize("store", STORES)


def records(piece: Piece) -> list[Record]:
    found = []
    at = piece.begin
    while at < piece.end:
        record = decode_record(piece.data, at)
        assert isinstance(record, Record)
        found.append(record)
        at += record.size
    return found


def rewrite(writer: RecordWriter, at: int, record: Record) -> None:
    """Write ``record`` again, from its decoded values."""
    properties = record.raw_properties
    has_crc = properties[-layout.PROPERTY_CRC_SIZE :].startswith(layout.PROPERTY_CRC_NAME)
    if has_crc:
        properties = with_crc_room(properties[: -layout.PROPERTY_CRC_SIZE])
    fields = RecordFields(
        record.topic.encode(),
        encode_host(record.born_host),
        encode_host(record.store_host),
        body=record.body,
        properties=properties,
        queue_id=record.queue_id,
        flag=record.flag,
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        sys_flag=record.sys_flag,
        born_time=record.born_time,
        store_time=record.store_time,
        reconsume_times=record.reconsume_times,
        prepared_offset=record.prepared_offset,
    )
    assert fields.size == record.size
    writer.write(at, fields)
    if has_crc:
        writer.seal(at, record.size)


def test_all_stores_are_here() -> None:
    assert len(STORES) == 7


@every_store
@pytest.mark.parametrize("check", ANY_RECORD)
def test_scan_and_decoding_agree(store: str, check: Check) -> None:
    found = 0
    for piece in scan_log(store, check):
        at = 0
        for row in range(piece.rows):
            at = assert_row(piece.data, at, piece.columns.row(row))
        assert at == piece.end
        assert piece.rows == len(records(piece))
        found += piece.rows
        if piece.stop == Stop.BLANK:
            assert decode_record(piece.data, piece.end) == Blank(len(piece.data) - piece.end)
        else:
            assert piece.stop == Stop.EMPTY
            assert not any(piece.data[piece.end :])
    assert found


@every_store
def test_written_again(store: str) -> None:
    for piece in scan_log(store):
        out = bytearray(len(piece.data))
        writer = RecordWriter(out)
        for record in records(piece):
            rewrite(writer, record.physical_offset - piece.base, record)
        if piece.stop == Stop.BLANK:
            writer.blank(piece.end, len(piece.data) - piece.end)
        assert out == piece.data


@pytest.mark.parametrize(
    ("store", "shared", "property_crc"),
    [
        ("v4-clean", b"CLUSTER\x01DefaultCluster", False),
        ("v5-clean", b"", False),
        ("v5-propcrc", b"", True),
    ],
)
def test_batch_written_again(store: str, shared: bytes, property_crc: bool) -> None:
    """The three records of topic TB, made from the batch that the client sent."""
    piece = next(p for p in scan_log(store) if any(r.topic == "TB" for r in records(p)))
    java = [record for record in records(piece) if record.topic == "TB"][:3]
    own = [record.raw_properties.split(b"__CRC32#")[0] for record in java]
    if shared:
        assert all(raw.endswith(b"\x02" + shared) for raw in own)
        own = [raw.removesuffix(b"\x02" + shared) for raw in own]
    batch = encode_batch(
        [BatchItem(record.flag, record.body, raw) for record, raw in zip(java, own, strict=True)]
    )
    first = java[0]
    born_host, store_host = encode_host(first.born_host), encode_host(first.store_host)
    count, total, largest = measure_batch(
        batch, len(born_host) + len(store_host), 2, len(shared), property_crc
    )
    assert (count, total) == (3, sum(record.size for record in java))
    assert largest == max(record.size for record in java)
    out = bytearray(total)
    common = RecordFields(
        b"TB",
        born_host,
        store_host,
        properties=shared,
        queue_id=first.queue_id,
        queue_offset=first.queue_offset,
        physical_offset=first.physical_offset,
        sys_flag=first.sys_flag,
        born_time=first.born_time,
        store_time=first.store_time,
        reconsume_times=first.reconsume_times,
    )
    end = RecordWriter(out).write_batch(0, batch, common, property_crc)
    assert end == total
    start = first.physical_offset - piece.base
    assert out == piece.data[start : start + total]


def rebuilt_queues(store: str, rows_max: int) -> dict[tuple[str, int], dict[int, bytes]]:
    """Units by queue and queue offset."""
    queues: dict[tuple[str, int], dict[int, bytes]] = defaultdict(dict)
    for piece in scan_log(store, rows_max=rows_max):
        units, runs = derive_units(piece.data, piece.columns.table, piece.rows, WAITS)
        for first, count, at in runs:
            row = piece.columns.row(first)
            topic = piece.data[row["topic_at"] : row["topic_at"] + row["topic_size"]].decode()
            queue = queues[topic, row["queue_id"]]
            for number in range(count):
                position = at + UNIT_SIZE * number
                queue[row["queue_offset"] + number] = bytes(units[position : position + UNIT_SIZE])
    return queues


@every_store
@pytest.mark.parametrize("rows_max", [100, 3])
def test_queues_rebuilt(store: str, rows_max: int) -> None:
    java = queue_files(store)
    rebuilt = rebuilt_queues(store, rows_max)
    assert rebuilt.keys() == java.keys()
    for queue, files in java.items():
        units = rebuilt[queue]
        begin = files[0][0]
        for offset in range(begin // UNIT_SIZE, min(units)):
            units[offset] = encode_unit(PRE_BLANK)
        out = bytearray(sum(len(data) for _, data in files))
        for offset, unit in units.items():
            at = UNIT_SIZE * offset - begin
            out[at : at + UNIT_SIZE] = unit
        assert out == b"".join(data for _, data in files), queue


def geometry(store: str) -> IndexGeometry:
    """As tests/golden/README.md says."""
    return IndexGeometry(100, 400) if store.startswith("v4-") else IndexGeometry(20, 64)


def rebuilt_index(store: str, rows_max: int) -> list[bytearray]:
    slots, room = geometry(store)
    entries = array("q", bytes(24 * ENTRIES_PER_RECORD_MAX))
    files = [bytearray(index_file_size(slots, room))]
    for piece in scan_log(store, rows_max=rows_max):
        count, row = derive_entries(
            piece.data, piece.columns.table, 0, piece.rows, entries, store.startswith("v5-")
        )
        assert row == piece.rows
        done = append_entries(files[-1], slots, room, entries, 0, count)
        while done < count:
            end = decode_index_header(files[-1])
            begin = IndexHeader(
                end.end_timestamp, end.end_timestamp, end.end_offset, end.end_offset
            )
            files.append(bytearray(index_file_size(slots, room)))
            files[-1][: layout.INDEX_HEADER.size] = encode_index_header(begin)
            done = append_entries(files[-1], slots, room, entries, done, count)
    return files


@every_store
@pytest.mark.parametrize("rows_max", [100, 3])
def test_index_rebuilt(store: str, rows_max: int) -> None:
    assert rebuilt_index(store, rows_max) == index_files(store)


def test_some_golden_index_has_several_files() -> None:
    assert {len(index_files(store)) for store in STORES} > {1, 2}


@every_store
def test_index_finds_every_key(store: str) -> None:
    files = index_files(store)
    slots = geometry(store).slots
    for record in (record for piece in scan_log(store) for record in records(piece)):
        for key in filter(None, (record.unique_key, *record.keys)):
            key_hash = index_key_hash(record.topic, key)
            time = record.store_time
            found = [
                offset for data in files for offset in walk(data, slots, key_hash, time, time, 999)
            ]
            rolled_back = record.sys_flag & layout.TRANSACTION_MASK == layout.TRANSACTION_ROLLBACK
            assert rolled_back or record.physical_offset in found


@every_store
def test_index_chains_are_relinked_as_java_linked_them(store: str) -> None:
    for data in index_files(store):
        slots, _ = find_geometry(data)
        header = decode_index_header(data)
        torn = bytearray(data)
        torn[40 : 40 + 4 * slots] = b"\xff" * (4 * slots)
        assert cut_entries(torn, slots, header.entry_count, header.entry_count) == header.slot_count
        assert torn == data
