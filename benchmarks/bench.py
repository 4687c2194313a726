"""Common parts of the measurements: their scale, their participants, and runs in fresh folders."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contestants import Java
from benchmarks.figures import Json
from firetrail.format.names import COMMIT_LOG

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Scale:
    """The amount of work of each measurement."""

    put: int = 4_000_000
    """Messages of a single put, and in the store that is read."""
    batch: int = 3_000_000
    sync: int = 200_000
    warm: int = 200_000
    """Messages put, in a store of their own, before the clock runs."""
    warm_sync: int = 20_000
    rounds: int = 3
    """Rounds of reading within one repetition; the best counts."""
    keys: int = 10_000
    scan: int = 1 * GIB
    recover: int = 4 * GIB
    open_small: int = 1 * GIB
    lag: int = 100
    served: int = 500_000
    """Messages sent to a broker one by one; four times as many in batches."""
    spark_sizes: tuple[int, ...] = (1 * GIB, 8 * GIB)
    """Of the logs that Spark scans; it archives the first."""
    topics: int = 2000
    """Topics, of four queues each, among which a read is planned."""
    crowd: int = 1000
    """Connections to a broker that only keep alive."""
    crowd_s: int = 10
    readable: int = 5000
    """Messages that are read as soon as they are acknowledged."""
    grpc: int = 100_000
    """Messages sent by gRPC, received and acknowledged."""
    grpc_warm: int = 60_000
    """Messages sent by gRPC before them, while the client's code and Java's are compiled."""
    grpc_crowd_s: int = 120
    """Seconds for which many gRPC clients poll."""
    relayed: int = 20_000
    """Messages sent by gRPC at a fixed rate while they are received."""
    timers: int = 1_000_000
    """Messages that wait for their delivery time."""
    replicated: int = 900 * MIB
    """Of the log that an empty replica copies: one file, as a Java replica gets only the last."""
    log_size: int = 1 * GIB
    """Length of a file of the log."""

    @property
    def amounts(self) -> dict[str, str]:
        """The amounts of work of the measurements, for each part of the page."""
        return {
            "store": f"{self.put:,} messages put one by one, {self.batch:,} in batches, "
            f"{self.sync:,} synced",
            "replication": f"a log of {self.replicated // MIB} MiB, {self.served:,} messages sent "
            f"one by one, {4 * self.served:,} in batches",
            "brokers": f"{self.served:,} messages sent one by one, {4 * self.served:,} in batches",
            "grpc": f"{self.grpc:,} messages of 1 KiB sent, received and acknowledged, after "
            f"{self.grpc_warm:,} others; {self.relayed:,} at a fixed rate",
            "tls": f"{self.served:,} messages sent one by one, {4 * self.served:,} in batches",
            "timers": f"{self.timers:,} messages with bodies of 100 bytes, due within ten hours",
        }

    @property
    def settings(self) -> dict[str, str]:
        """Settings of every store; all others have their default, the same as Java's."""
        return {"mappedFileSizeCommitLog": str(self.log_size)}


FULL = Scale()
QUICK = Scale(
    put=300_000,
    batch=640_000,
    sync=20_000,
    warm=50_000,
    warm_sync=2_000,
    keys=2_000,
    scan=256 * MIB,
    recover=256 * MIB,
    open_small=64 * MIB,
    lag=20,
    served=60_000,
    crowd_s=4,
    readable=1000,
    grpc=20_000,
    grpc_warm=20_000,
    grpc_crowd_s=20,
    relayed=4000,
    timers=50_000,
    replicated=64 * MIB,
    spark_sizes=(64 * MIB,),
    topics=100,
)


@dataclass(frozen=True, slots=True)
class Bench:
    """One run of the benchmarks."""

    root: Path
    scale: Scale
    javas: Sequence[Java]
    repeat: int
    say: Callable[[str], None]

    @contextmanager
    def folder(self, name: str) -> Iterator[Path]:
        """Provide a folder for a store, which is removed afterwards with its neighbours."""
        path = self.root / name
        try:
            yield path
        finally:
            for left in (path, path.with_name(f"{name}.warmup"), path.with_name(f"{name}.saved")):
                shutil.rmtree(left, ignore_errors=True)

    def take_turns(self, runs: Mapping[str, Callable[[], Json]]) -> dict[str, list[Json]]:
        """Run all of them in turn, ``repeat`` times; return the answers of each."""
        answers: dict[str, list[Json]] = {name: [] for name in runs}
        for turn in range(self.repeat):
            for name, run in runs.items():
                os.sync()  # so that this run does not wait for the writes of others
                self.say(f"  {name}, {turn + 1} of {self.repeat}")
                answers[name].append(run())
        return answers

    def in_new_folder(self, run: Callable[[Path], Json]) -> Callable[[], Json]:
        """Return a function that calls ``run`` with a store that does not exist yet."""

        def once() -> Json:
            with self.folder("store") as store:
                return run(store)

        return once


class Snapshot:
    """A store that can be restored to its earlier state, except for the bytes of its log.

    Opening a store changes neither a good record nor the bytes after the last one. So the log need
    not be copied; files that were added to it are removed again.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._saved = store.with_name(f"{store.name}.saved")
        self._log = {path.name for path in (store / COMMIT_LOG).iterdir()}
        self._saved.mkdir()
        for path in store.iterdir():
            if path.name != COMMIT_LOG:
                _copy(path, self._saved)

    def restore(self, *, without: Sequence[str] = ()) -> None:
        """Restore the store without the files and folders that ``without`` names."""
        for path in self._store.iterdir():
            if path.name != COMMIT_LOG:
                _remove(path)
        for path in (self._store / COMMIT_LOG).iterdir():
            if path.name not in self._log:
                path.unlink()
        for path in self._saved.iterdir():
            if path.name not in without:
                _copy(path, self._store)

    def warm_up(self) -> None:
        """Load the store into memory, and wait until all of it is on disk."""
        os.sync()
        for path in self._store.rglob("*"):
            if path.is_file():
                with path.open("rb", buffering=0) as file:
                    buffer = bytearray(MIB)
                    while file.readinto(buffer):
                        pass


def _copy(path: Path, into: Path) -> None:
    subprocess.run(
        ["cp", "--archive", "--sparse=always", "--reflink=auto", str(path), str(into)], check=True
    )


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
