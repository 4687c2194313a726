"""The jobs and the sink on a cluster where a worker sees other files than the driver.

A refused job leaves no visible results.
"""

import pytest
from tests.pipeline.source.shelf import consumed, fill, some_messages
from tests.pipeline.standalone.bench import Bench
from tests.pipeline.standalone.test_reads import MESSAGES, refused
from tests.stores import records

from firetrail.pipeline.lakes.lake_reader import archived_files

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def stores(bench: Bench) -> None:
    """A store that all processes see, and one that only the driver sees."""
    for name in ("store", "unseen"):
        fill(bench.common / name, some_messages(MESSAGES))
    bench.show("unseen", "driver")


def own_folders(bench: Bench, name: str) -> str:
    """Give driver and workers separate folders with one path; return the path."""
    for tree in bench.trees.values():
        (tree / name).mkdir()
    return f"{bench.view}/{name}"


def test_jobs_on_a_store_that_workers_do_not_see(bench: Bench) -> None:
    store, common = f"{bench.view}/unseen", bench.common
    for job in ("archive", "audit", "rebuild", "report", "replay"):
        refused(bench, store, job, store, common / f"no-{job}")
    assert archived_files(common / "no-archive") == []
    assert not list((common / "no-audit").iterdir())
    assert not any((common / f"no-{job}").exists() for job in ("rebuild", "report", "replay"))


def test_targets_that_workers_have_elsewhere(bench: Bench) -> None:
    store, own = bench.common / "store", own_folders(bench, "targets")
    for job in ("archive", "audit", "rebuild"):
        refused(bench, own, job, store, f"{own}/{job}")
    assert archived_files(bench.trees["driver"] / "targets/archive") == []
    assert not (bench.trees["driver"] / "targets/rebuild").exists()
    assert not any((bench.trees["away"] / "targets").rglob("*"))


def test_restoring_from_and_to_what_workers_do_not_see(bench: Bench) -> None:
    whole = len(records(bench.common / "store"))
    lake = bench.common / "lake"
    assert bench.call("archive", bench.common / "store", lake) == whole
    own = f"{own_folders(bench, 'restored')}/store"
    refused(bench, own, "restore", lake, own)
    assert not (bench.trees["driver"] / "restored/store").exists()
    unseen = bench.show("lake", "driver")
    refused(bench, unseen, "restore", unseen, bench.common / "back")
    assert not (bench.common / "back").exists()


def test_the_sink_to_a_folder_that_workers_have_elsewhere(bench: Bench) -> None:
    path = f"{own_folders(bench, 'sinks')}/store"
    refused(bench, path, "write", path, 100)
    assert not (bench.trees["driver"] / "sinks/store/commitlog").exists()


def test_relative_paths_are_the_drivers(bench: Bench) -> None:
    wanted, whole = len(consumed(bench.common / "store")), len(records(bench.common / "store"))
    bench.call("chdir", bench.common)
    assert bench.call("archive", "store", "relative/lake") == whole
    assert bench.call("restore", "relative/lake", "relative/restored") == whole
    assert bench.call("audit", "relative/restored", "relative/work")
    assert bench.call("rebuild", "relative/restored", "relative/queues") == whole
    assert bench.call("report", "store", "relative/report.html") == whole
    assert bench.call("replay", "store", "relative/replayed") > 0
    bench.call("write", "relative/written", 100)
    bench.call("chdir", bench.cwd)
    relative = bench.common / "relative"
    assert len(consumed(relative / "restored")) == wanted
    assert len(consumed(relative / "written")) == 100
    assert (relative / "queues/consumequeue").exists()
    assert (relative / "report.html").exists()
