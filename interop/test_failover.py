"""A group of Firetrail brokers on a real etcd: the master is tormented, and nothing is lost.

No Java is needed. The program is Debian's ``etcd-server``, which is fetched on first use.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.replication.etcd_server import FETCHED, find_etcd
from tests.torture.failing_over import KINDS, fail_over
from tests.torture.faults import compiler

NEEDS_JAVA = False
PACKAGE = "etcd-server"
SEED = 1

pytestmark = pytest.mark.time_limit(600)


@pytest.fixture(scope="module", autouse=True)
def etcd() -> None:
    """Fetch etcd, unless the machine has it; skip the tests if that is not possible."""
    folder = FETCHED.parents[2]
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if find_etcd() is not None:
            return
        if not shutil.which("apt-get"):
            pytest.skip("there is neither etcd nor apt-get on this machine")
        script = f"apt-get download {PACKAGE} && dpkg-deb -x {PACKAGE}_*.deb ."
        done = subprocess.run(["sh", "-c", script], cwd=folder, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{PACKAGE} cannot be fetched: {done.stderr[-300:]}")


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_acknowledged_is_lost(tmp_path: Path, kind: str) -> None:
    if compiler() is None:
        pytest.skip("faults.c needs a C compiler")
    print(await fail_over(tmp_path, SEED, (kind,)))
