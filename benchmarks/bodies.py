"""Effects of a dictionary for message bodies on the files of an archive: size, writing, reading.

::

    .venv/bin/python -m benchmarks.bodies [--mib 128]

Stores with bodies of several kinds are archived by one task, without Spark, with and without a
dictionary for the column ``body``; the table goes to standard output. The measured reads are of
the column ``body``.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq

from firetrail import Message, Store
from firetrail.pipeline.jobs.archive import parquet_files as archive_files
from firetrail.pipeline.jobs.archive.parquet_files import ArchivePart, archive_part
from firetrail.pipeline.lakes.lake import Lake
from firetrail.pipeline.lakes.lake_manifest import LakeLayout

RUNS = 3
"""Of each measurement; the best counts."""
Bodies = Callable[[random.Random], Iterator[bytes]]


def noise(rng: random.Random) -> Iterator[bytes]:
    """1 KiB that nothing compresses."""
    while True:
        yield rng.randbytes(1024)


def events(rng: random.Random) -> Iterator[bytes]:
    """JSON of three shapes with values of their own, about 250 bytes."""
    number = 0
    while True:
        number += 1
        common = {"id": f"o-{number}", "at": 1_790_000_000_000 + number * 37, "shop": "main"}
        yield json.dumps(
            (
                common | {"event": "created", "total": rng.randrange(9000), "currency": "EUR"},
                common | {"event": "paid", "method": rng.choice(["card", "bank"]), "fee": 0.25},
                common | {"event": "sent", "parcel": f"{rng.getrandbits(64):x}", "items": [1, 2]},
            )[number % 3]
            | {"customer": {"id": rng.randrange(100_000), "country": rng.choice(["DE", "FR"])}}
        ).encode()


def repeated(rng: random.Random) -> Iterator[bytes]:
    """Yield 500 different bodies of JSON, each repeatedly: states, heartbeats, commands."""
    known = [
        json.dumps({"device": n, "state": rng.randbytes(60).hex()}).encode() for n in range(500)
    ]
    while True:
        yield rng.choice(known)


def large(rng: random.Random) -> Iterator[bytes]:
    """200 different bodies of 20 KiB: more than the limit of a dictionary."""
    known = [rng.randbytes(10 << 10).hex().encode() for _ in range(200)]
    while True:
        yield rng.choice(known)


def identical(rng: random.Random) -> Iterator[bytes]:
    """Yield the same body of 100 bytes."""
    while True:
        yield b"ping" * 25


KINDS: tuple[Bodies, ...] = (noise, events, repeated, large, identical)


def measure(store: Path, end: int, dictionary: bool) -> tuple[int, float, float]:
    """Bytes of the files, seconds to write and to read them."""
    columns = [name for name in archive_files.DICTIONARY_COLUMNS if name != "body"]
    archive_files.DICTIONARY_COLUMNS[:] = columns + ["body"] * dictionary
    size, write_s, read_s = 0, float("inf"), float("inf")
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory(dir=store.parent) as lake, Lake(lake).locked("t"):
            part = ArchivePart(str(store), None, 0, end, Lake(lake), "t", LakeLayout.DAY, False)
            begun = time.perf_counter()
            files = archive_part(part).files
            write_s = min(write_s, time.perf_counter() - begun)
            size = sum(file.size for file in files)
            begun = time.perf_counter()
            for file in files:
                with pq.ParquetFile(f"{lake}/{file.path}") as source:
                    for group in range(source.num_row_groups):
                        source.read_row_group(group, ["body"])
            read_s = min(read_s, time.perf_counter() - begun)
    return size, write_s, read_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=128, help="of bodies in each store")
    parser.add_argument("--folder", type=Path, help="where to work")
    args = parser.parse_args()
    print("| bodies | size, plain → dictionary | written in | read in |\n|---|---|---|---|")
    for kind in KINDS:
        root = Path(tempfile.mkdtemp(dir=args.folder))
        try:
            left, bodies = args.mib << 20, kind(random.Random(1))
            with Store.open(root / "store") as store:
                while left > 0:
                    body = next(bodies)
                    left -= len(body) + 100
                    store.put(Message("T", body))
                store.wait_dispatched()
                end = store.log_range[1]
            plain, coded = (measure(root / "store", end, flag) for flag in (False, True))
            sizes = f"{plain[0] / 2**20:.1f} → {coded[0] / 2**20:.1f} MiB"
            print(
                f"| {kind.__name__} | {sizes} | {plain[1]:.2f} → {coded[1]:.2f} s "
                f"| {plain[2]:.2f} → {coded[2]:.2f} s |",
                flush=True,
            )
        finally:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
