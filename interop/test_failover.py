"""A group of Firetrail brokers on a real etcd: the master is tormented, and nothing is lost.

What clients sent and read is checked as the history of a log, also by porcupine, which needs Go.
Without Go, a test that passes counts as skipped. No Java is needed. ``make setup`` fetches etcd.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.machine.etcd_program import MISSING, find_etcd
from tests.torture.faults import compiler
from tests.torture.group.failover import CHECKED, KINDS, fail_over
from tests.torture.group.networks import can_partition

NEEDS_JAVA = False
SEED = 1

pytestmark = pytest.mark.time_limit(600)


@pytest.fixture(autouse=True)
def etcd() -> None:
    """Skip the test if there is no etcd."""
    if find_etcd() is None:
        pytest.skip(MISSING)


@pytest.fixture(autouse=True)
def faults() -> None:
    """Skip the test if the clock of a process cannot be set."""
    if compiler() is None:
        pytest.skip("faults.c needs a C compiler")


def check(folder: Path, kind: str) -> None:
    """Torment the master once; porcupine must have checked what clients sent and read.

    Without Go, the test is skipped after everything else was checked.
    """
    figures = fail_over(folder, SEED, (kind,))
    print(figures)
    if not shutil.which("go"):
        pytest.skip("there is no Go: porcupine did not check the history, all other checks passed")
    assert figures[CHECKED] >= figures["acknowledged"] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_acknowledged_is_lost(tmp_path: Path, kind: str) -> None:
    check(tmp_path, kind)


def test_nothing_is_lost_when_a_master_is_heard_but_hears_nobody(tmp_path: Path) -> None:
    if not can_partition():
        pytest.skip("this user may not create network namespaces")
    check(tmp_path, "deaf")


def test_nothing_is_lost_when_the_successor_is_killed_too(tmp_path: Path) -> None:
    check(tmp_path, "successor")
