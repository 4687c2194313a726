"""A real file system that is full: puts are refused without a signal and resume, reads continue.

The tests run in a process of their own, because the signal that must not occur would end it.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

PROGRAM = """
import os, sys
from pathlib import Path
from firetrail import FlushMode, Message, PutStatus, Store
from firetrail.errors import FiretrailError
from firetrail.store import dispatch
from tests.helpers import bodies, eventually, small_config

dispatch.DISK_FULL_PAUSE_S = 0.01
disk, mode, shape = Path(sys.argv[1]), FlushMode(sys.argv[2]), sys.argv[3]
root, ballast = disk / "data", disk / "ballast"
sizes = {
    "log": dict(log=1 << 16, units=20_000, slots=100, entries=40_000),
    "queues": dict(log=1 << 20, units=200, slots=100, entries=40_000),
    "index": dict(log=1 << 20, units=20_000, slots=20_000, entries=20_100),
}[shape]
# A message of its own shape fills the kind of file that it is about.
body = {"log": b"x" * 2000, "queues": b"", "index": b""}[shape]
keys = {"log": 1, "queues": 1, "index": 40}[shape]
many = 400 if shape == "queues" else 1
config = small_config(
    flush=mode, disk_warning_ratio=0.90, clean_forcibly=False, **sizes
)


def fill_disk(leave):
    with ballast.open("wb") as file:
        while True:
            stat = os.statvfs(disk)
            try:
                os.posix_fallocate(file.fileno(), 0, max(stat.f_bavail * stat.f_bsize - leave, 1))
            except OSError:  # the store has used some of the space
                continue
            return


store = Store.open(root, config)
put = 0
while put < 40:
    store.put(Message("T", body, keys=[f"{put}-{n}" for n in range(keys)], queue_id=put % many))
    put += 1
assert store.wait_dispatched(20)
fill_disk(200_000)
refused = None
while put < 40_000:
    message = Message("T", body, keys=[f"{put}-{n}" for n in range(keys)], queue_id=put % many)
    result = store.try_put(message)
    if not result.ok:
        refused = result
        break
    put += 1
assert refused is not None, "the disk was never full"
assert refused.status in (
    PutStatus.CREATE_MAPPED_FILE_FAILED, PutStatus.SERVICE_NOT_AVAILABLE
), refused
assert "no space" in refused.detail, refused
found = sum(len(bodies(store, "T", queue)) for queue in store.queues("T"))
assert found >= 40, "reads continue"
assert len(store.query("T", "0-0")) == 1
ballast.unlink()
eventually(lambda: not store.refusal)
assert store.wait_dispatched(20)
last = store.put(Message("T", b"again", keys=["again"]))
assert store.wait_dispatched(20)
found = sum(len(bodies(store, "T", queue)) for queue in store.queues("T"))
assert found == put + 1, (found, put)
assert len(store.query("T", "again")) == 1
fill_disk(0)
store.close()
# On a full disk, a closed store can still be opened and read, or the open reports "no space".
try:
    store = Store.open(root, config)
except FiretrailError as error:
    assert "No space" in str(error) or "no space" in str(error), error
    ballast.unlink()
    store = Store.open(root, config)
found = sum(len(bodies(store, "T", queue)) for queue in store.queues("T"))
assert found == put + 1, (found, put)
store.close()
print("done", refused.status.value, put)
"""


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A file system of four megabytes."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("shape", ["log", "queues", "index"])
def test_a_program_survives_a_full_disk(tmpfs: Path, mode: str, shape: str) -> None:
    program = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmpfs), mode, shape],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert program.returncode == 0, f"exit {program.returncode}\n{program.stderr}"
    assert program.stdout.startswith("done")
