"""One long use of all kernels with fixed random input; prints what came out, line by line.

Run in two processes, with the kernels compiled and not, the output has to be the same.
"""

import random
from array import array
from collections.abc import Callable
from hashlib import sha256
from typing import ParamSpec

from tests.format.kernels.drafts import V4, V6, Draft

from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.columns import Check, Columns
from firetrail.format.files.index import index_file_size
from firetrail.format.kernels.derive import ENTRIES_PER_RECORD_MAX, derive_entries, derive_units
from firetrail.format.kernels.encode import RecordFields, RecordWriter, measure_batch, with_crc_room
from firetrail.format.kernels.index import append_entries, count_entries, cut_entries, walk
from firetrail.format.kernels.scan import scan
from firetrail.store.kernels.select import Selection

Arguments = ParamSpec("Arguments")
RNG = random.Random(20)
WAITS = array("q", [1000, 5000])
NUMBERS = [-(2**63), -(2**31), -1, 0, 1, 7, 255, 2**31 - 1, 2**31, 2**63 - 1]
NAMES = [b"KEYS", b"TAGS", b"UNIQ_KEY", b"DELAY", b"WAIT"]


def show(
    name: str, call: Callable[Arguments, object], *args: Arguments.args, **more: Arguments.kwargs
) -> None:
    """Print the result of a call, or how it failed."""
    try:
        result = call(*args, **more)
    except (ValueError, OverflowError) as error:
        result = f"{type(error).__name__}: {error}"
    print(name, result)


def random_draft() -> Draft:
    items = [
        RNG.choice(NAMES)
        + b"\x01"
        + RNG.choice([RNG.randbytes(9), b"k1 k2  k3", b"3", "中".encode()])
        for _ in range(RNG.randrange(5))
    ]
    return Draft(
        body=RNG.randbytes(RNG.randrange(300)),
        topic=RNG.choice([b"T1", b"T2", b"SCHEDULE_TOPIC_XXXX", b"T" * 130]),
        properties=b"\x02".join(items),
        queue_id=RNG.randrange(3),
        queue_offset=RNG.randrange(6),
        sys_flag=RNG.choice([0, 1, 4, 8, 12]),
        store_time=RNG.randrange(2**41),
        born_host=RNG.choice([V4, V6]),
        store_host=RNG.choice([V4, V6]),
        property_crc=RNG.random() < 0.3,
    )


def written_log(count: int) -> bytearray:
    drafts = [random_draft() for _ in range(count)]
    log = bytearray(sum(draft.size for draft in drafts))
    writer = RecordWriter(log)
    at = 0
    for draft in drafts:
        at += draft.write(writer, at, at)
    return log


def scan_and_derive(log: bytearray, index: bytearray) -> None:
    entries = array("q", bytes(24 * (ENTRIES_PER_RECORD_MAX + 100)))
    for check in Check:
        columns = Columns(40)
        rows, at, stop = scan(log, 0, len(log), 0, columns.table, check)
        print("scan", rows, at, stop, [columns.row(row) for row in range(rows)])
        print("units", derive_units(log, columns.table, rows, WAITS))
        for tags in (False, True):
            count, row = derive_entries(log, columns.table, 0, rows, entries, tags)
            print("entries", count, row, entries[: 3 * count])
            print("append", append_entries(index, 7, 60, entries, 0, count))
    for key_hash in [*entries[:60:3], *NUMBERS]:
        show("walk", walk, index, 7, key_hash, 0, 2**50, 9)


def batches() -> None:
    items = [
        BatchItem(RNG.choice([0, -1]), RNG.randbytes(RNG.randrange(50)), with_crc_room(b"K\x01v"))
        for _ in range(RNG.randrange(1, 4))
    ]
    batch = bytearray(encode_batch(items))
    for _ in range(RNG.choice([0, 0, 1, 3])):
        batch[RNG.randrange(len(batch))] = RNG.randrange(256)
    common = RecordFields(
        b"TB",
        V4,
        V4,
        properties=b"a\x01\x02",
        queue_id=1,
        queue_offset=2,
        physical_offset=3,
        born_time=4,
        store_time=5,
        reconsume_times=6,
    )
    for property_crc in (False, True):
        show("measure", measure_batch, batch, 16, 2, 3, property_crc)
        out = bytearray(1000)
        show(
            "write batch",
            RecordWriter(out).write_batch,
            RNG.choice([0, 3, 900]),
            batch,
            common,
            property_crc,
        )
        print("batch records", sha256(out).hexdigest())


def hostile_arguments() -> None:
    table, entries = Columns(4).table, array("q", bytes(24 * ENTRIES_PER_RECORD_MAX))
    for a in NUMBERS:
        for b in NUMBERS:
            index = bytearray(index_file_size(7, 20))
            show("scan", scan, bytes(100), a, b, 0, table, 1)
            show("derive", derive_entries, b"", table, a, b, entries)
            show("append", append_entries, index, a, b, entries, 0, 3)
            show("entries", append_entries, index, 7, 20, entries, a, b)
            show("walk", walk, index, a, b, 0, 9, 9)
            show("count", count_entries, index, a, b, 2**40)
            show("cut", cut_entries, index, 7, a, b)
            show("seal", RecordWriter(bytearray(99)).seal, a, b)
            show("blank", RecordWriter(bytearray(99)).blank, a, b)
            print("index", sha256(index).hexdigest())


def selections() -> None:
    units = bytearray()
    for _ in range(10):
        units += RNG.choice(NUMBERS).to_bytes(8, "big", signed=True)
        units += RNG.choice([5, 7, 255, 2**31 - 1]).to_bytes(4, "big")
        units += RNG.choice(NUMBERS).to_bytes(8, "big", signed=True)
    for tags in (None, frozenset([0, 7, -1])):
        selection = Selection(5, 50, 4, 30, 3, 4, tags)
        stop = selection.take(units, 0, len(units), memoryview(bytes(range(100))), 0, 90)
        print("select", stop, selection.position, selection.size, selection.last_offset)
        print(selection.filtered, [bytes(found) for found in selection.found])


def main() -> None:
    for _ in range(8):
        log = written_log(30)
        index = bytearray(index_file_size(7, 60))
        scan_and_derive(log, index)
        for _ in range(4):
            log[RNG.randrange(len(log))] ^= 1 << RNG.randrange(8)
            scan_and_derive(log, index)
        show("cut", cut_entries, index, 7, 20, 60)
        print("index", sha256(index).hexdigest())
        batches()
        selections()
    hostile_arguments()


if __name__ == "__main__":
    main()
