"""Jobs that are really killed: nothing is lost, and nothing is duplicated."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.helpers import small_config
from tests.pipeline import victims
from tests.stores import records

from firetrail import Message, Store, StoreLockedError
from firetrail.pipeline.jobs.archive import archive_job
from firetrail.pipeline.jobs.archive.archive_job import archive
from firetrail.pipeline.jobs.replay.replay_job import replay
from firetrail.pipeline.lakes.lake_reader import archived_files

pytestmark = pytest.mark.slow
PATIENCE_S = 300
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    with Store.open(root, small_config()) as store:
        for number in range(150):
            topic = ("orders", "others")[number % 2]
            store.put(Message(topic, b"message %d" % number + b"." * 60, keys=["k"]))
    return root


def start(*arguments: object) -> "subprocess.Popen[str]":
    """Start a victim in a process group of its own, together with all its children."""
    return subprocess.Popen(
        [sys.executable, victims.__file__, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def kill_when(victim: "subprocess.Popen[str]", ready: Callable[[], bool]) -> None:
    """Kill the driver and all of its workers as soon as ``ready``; fail if it ends before."""
    deadline = time.monotonic() + PATIENCE_S
    while not ready():
        assert victim.poll() is None, victim.communicate()[1][-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.killpg(victim.pid, signal.SIGKILL)
    victim.communicate()


def archived(lake: Path) -> list[int]:
    return sorted(
        offset
        for file in archived_files(lake)
        for offset in pq.read_table(lake / file.path, partitioning=None)
        .column("physical_offset")
        .to_pylist()
    )


def offsets(root: Path) -> list[int]:
    return [record.physical_offset for record in records(root)]


def test_archive_whose_driver_is_killed(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    victim = start("archive", root, lake)
    kill_when(victim, lambda: len(list(lake.rglob("_*.part"))) > 2)
    assert archived_files(lake) == []
    done = archive(spark, root, lake)
    assert done.removed > 2
    assert archived(lake) == offsets(root)


def test_archive_whose_worker_is_killed(
    spark: SparkSession, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    monkeypatch.setattr(archive_job, "archive_part", victims.dying_part)
    with pytest.raises(Exception, match="Python worker"):
        archive(spark, root, lake, split_bytes=4096)
    assert archived_files(lake) == []
    archive(spark, root, lake, split_bytes=4096)
    assert archived(lake) == offsets(root)


def test_replay_whose_driver_is_killed(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    seen: set[bytes] = set()

    def ready() -> bool:
        try:
            seen.add((target / "firetrail.sink").read_bytes())
        except FileNotFoundError:
            return False
        return len(seen) > 5  # two for each commit

    kill_when(start("replay", root, target), ready)
    chosen = [record.body for record in records(root) if record.topic == "orders"]
    done = replay(spark, root, target, where="topic = 'orders'")
    with Store.open(target) as store:
        assert [message.body for message in store.read("orders")] == chosen
    assert 0 < done.messages < len(chosen)


def once_free(store: Path) -> Store:
    """Open the store once the process that commits for the killed driver has ended."""
    for _ in range(3000):
        try:
            return Store.open(store)
        except StoreLockedError:
            time.sleep(0.01)
    return Store.open(store)


def test_stream_whose_driver_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    source, store, checkpoint = (tmp_path / name for name in ("in", "data", "checkpoint"))
    source.mkdir()
    for number in range(8):
        (source / f"{number}.json").write_text(f'{{"topic": "T", "body": "{number}"}}\n')

    def ready() -> bool:
        journal = store / "firetrail.sink"
        return journal.exists() and '": 2' in journal.read_text()

    kill_when(start("stream", source, store, checkpoint), ready)
    with once_free(store) as opened:
        before = [message.body for message in opened.read("T")]
    assert 3 <= len(before) < 8
    victims.stream(str(source), str(store), str(checkpoint))
    with Store.open(store) as opened:
        found = [message.body for message in opened.read("T")]
    assert found[: len(before)] == before
    assert sorted(found) == [b"%d" % number for number in range(8)]


def test_executors_in_processes_of_their_own(root: Path, tmp_path: Path) -> None:
    """A worker is killed; Spark repeats its task, and its leftovers are not used."""
    lake, back = tmp_path / "lake", tmp_path / "back"
    victim = start("cluster", root, lake, back)
    out, error = victim.communicate(timeout=PATIENCE_S)
    assert victim.returncode == 0, error[-2000:]
    assert out.split()[-1] == "150"
    assert (tmp_path / "died").exists()
    assert archived(lake) == offsets(root)
    with Store.open(back) as store:
        assert len(list(store.read("sunk"))) == 100
        assert sum(len(list(store.read(topic))) for topic in ("orders", "others")) == 150
