"""Rebuild and audit on several executors while workers or the driver are killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.helpers import eventually, put_all, small_config
from tests.pipeline.jobs.rebuild_victim import ROOT
from tests.stores import derived

from firetrail import Store
from firetrail.pipeline.jobs.rebuild.rebuild_job import rebuild

STARTS_S = 90
pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A closed store with several log files, queues and index files."""
    root = tmp_path / "store"
    with Store.open(root, small_config(units=20)) as opened:
        for queue_id in range(3):
            put_all(opened, [b"%d" % n for n in range(80)], keys=["a", "b"], queue_id=queue_id)
    return root


@contextmanager
def victim(job: str, store: Path, target: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the job in a process group of its own, and kill the group afterwards."""
    flags = store.parent / "flags"
    flags.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.pipeline.jobs.rebuild_victim", job, str(store), str(target)],
        cwd=ROOT,
        env=os.environ | {"FIRETRAIL_TEST_FLAGS": str(flags), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if group_is_alive(process):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def group_is_alive(process: subprocess.Popen[str]) -> bool:
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_workers_are_killed(store: Path, tmp_path: Path) -> None:
    target = tmp_path / "new"
    with victim("workers", store, target) as process:
        out, errors = process.communicate(timeout=STARTS_S)
    assert process.returncode == 0, errors
    assert out.splitlines() == [
        "RebuildResult(messages=240, queues=3, index_files=8, left_out=())",
        "True 240 240 480",
    ]
    died = {path.name for path in (tmp_path / "flags").iterdir()}
    assert died == {"derive", "assemble", "check_log", "compare"}
    assert derived(target) == derived(store)
    assert {path.name for path in tmp_path.iterdir()} == {"store", "flags", "new"}


def test_the_driver_is_killed(store: Path, tmp_path: Path, spark: SparkSession) -> None:
    target = tmp_path / "new"
    with victim("driver", store, target) as process:
        reached = tmp_path / "flags" / "reached"
        for _ in range(STARTS_S // 20 + 1):  # each waits some 20 s
            try:
                eventually(lambda: reached.exists() or process.poll() is not None)
                break
            except AssertionError:
                continue
        assert reached.exists(), process.communicate()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert not target.exists()
    assert list((tmp_path / "new.building").glob("parts-*/*"))
    rebuild(spark, store, target)
    assert derived(target) == derived(store)
    assert {path.name for path in tmp_path.iterdir()} == {"store", "flags", "new"}
