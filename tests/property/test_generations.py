"""Topics are put to, deleted, created again; then every way to derive queues must give the same.

What a consumer must see follows from a model. Stores are rebuilt into a folder, in one process and
by the tasks of the Spark job (here without Spark), repaired in place, and taken over as if a Java
broker had closed or lost them.
"""

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.generations import (
    Shop,
    as_java_crashes,
    as_java_leaves_it,
    copy_with,
    crashed_copy,
    not_empty,
    seen_in,
)
from tests.helpers import PATIENCE_S
from tests.pipeline.jobs.test_audit_agrees import Here, run_here, sorted_report
from tests.store.checks import DELAYS, checked
from tests.stores import derived, flip, list_topics, records

from firetrail.pipeline.jobs.audit import audit_job
from firetrail.pipeline.jobs.audit.audit_job import audit
from firetrail.pipeline.jobs.rebuild import rebuild_job
from firetrail.store.inspect.view import StoreView
from firetrail.store.queues.queue_table import QueueKey
from firetrail.store.repair.rebuild import rebuild
from firetrail.store.repair.repair import Repair, repair_store
from firetrail.store.repair.salvage import salvage_store
from firetrail.system import System

TOPICS = st.sampled_from(("A", "B"))
LIGHT = "%LMQ%L"
Steps = list[tuple[str, *tuple[int | str, ...]]]


def steps_with(queues: int) -> st.SearchStrategy[Steps]:
    """Generate the events in the life of a store whose topics have this many queues."""
    put = st.tuples(
        st.just("put"),
        TOPICS,
        st.integers(0, queues - 1),
        st.integers(1, 4),
        st.sampled_from(("", "", LIGHT)),
    )
    delete = st.tuples(st.just("delete"), st.sampled_from(("A", "B", LIGHT)))
    create = st.tuples(st.just("create"), TOPICS)
    expire = st.tuples(st.just("expire"))
    return st.lists(st.one_of(put, put, delete, create, expire), min_size=4, max_size=14)


def without_light_and_expired(steps: Steps) -> Steps:
    """Return the steps that concern only whole logs and ordinary queues."""
    return [step for step in steps if LIGHT not in step and step != ("expire",)]


def opened(root: Path, steps: Steps) -> Shop:
    shop = Shop(root)
    for name, *arguments in steps:
        getattr(shop, name)(*arguments)
    return shop


def filled(root: Path, steps: Steps) -> Shop:
    shop = opened(root, steps)
    shop.close()
    return shop


def without_some_queues(root: Path, chosen: list[int]) -> Path:
    """Remove the folders with the chosen numbers, except for light queues; return the store.

    A killed store may lack those, because nothing lists them.
    """
    folders = sorted(root.glob("consumequeue/[AB]/*"))
    for folder in {folders[number % len(folders)] for number in chosen if folders}:
        shutil.rmtree(folder)
    return root


def ends_in(root: Path, queues: Iterable[QueueKey]) -> dict[QueueKey, int]:
    with StoreView.open(root) as view:
        return {key: view.tails[key].max_offset if key in view.tails else 0 for key in queues}


def units_in(root: Path) -> dict[str, bytes]:
    """Return the content of each queue, whatever the size of its files."""
    queues: dict[str, bytes] = {}
    for name, content in sorted(derived(root)[0].items()):
        folder = name.rpartition("/")[0]
        queues[folder] = queues.get(folder, b"") + content
    return {name: content.rstrip(b"\0") for name, content in queues.items()}


@pytest.fixture(scope="module", autouse=True)
def tasks_run_here() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(audit_job, "run_tasks", run_here)
        patched.setattr(rebuild_job, "run_tasks", run_here)
        yield


@given(steps=steps_with(queues=2))
@settings(max_examples=20)
def test_all_ways_to_derive_queues_agree(steps: Steps) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "store"
        shop = filled(root, steps)
        seen = not_empty(shop.seen)
        assert not_empty(seen_in(copy_with(root, "as it is"))) == seen
        report = checked(root)
        assert report.ok, report.problems
        audited = audit(Here(), root, work=folder).report  # type: ignore[arg-type]
        assert sorted_report(audited) == sorted_report(report)
        with StoreView.open(root) as view:
            made = rebuild(view, Path(folder, "one"), DELAYS, lambda done: None)
        by_tasks = rebuild_job.rebuild(Here(), root, Path(folder, "many"))  # type: ignore[arg-type]
        assert made == by_tasks
        assert derived(Path(folder, "one")) == derived(Path(folder, "many"))
        if ("expire",) not in steps:
            assert derived(Path(folder, "one")) == derived(root)
        repair_store(System(), root, Repair.REBUILD_DERIVED, DELAYS)
        assert not_empty(seen_in(copy_with(root, "repaired"))) == seen
        assert checked(root).ok


@given(
    steps=steps_with(queues=4),
    chosen=st.lists(st.integers(0, 7), min_size=1, max_size=8),
    killed=st.booleans(),
)
@settings(max_examples=15)
def test_missing_queues_are_derived_again(steps: Steps, chosen: list[int], killed: bool) -> None:
    """Whatever was acknowledged since the topic was created is served, and numbers continue."""
    with tempfile.TemporaryDirectory() as folder:
        shop = opened(Path(folder, "store"), steps)
        seen = not_empty(shop.seen)
        assert shop.store.embedded.wait_dispatched(PATIENCE_S)
        ends = {key: shop.store.queues.max_offset(*key) for key in seen}
        root = crashed_copy(shop) if killed else shop.root
        shop.close()
        list_topics(root, *shop.topics)
        complete = units_in(shop.root)
        without_some_queues(root, chosen)
        started = copy_with(root, "started")
        assert not_empty(seen_in(started)) == seen
        assert ends_in(started, ends) == ends
        assert checked(started).ok
        with StoreView.open(root) as view:
            made = rebuild(view, Path(folder, "one"), DELAYS, lambda done: None)
        by_tasks = rebuild_job.rebuild(Here(), root, Path(folder, "many"))  # type: ignore[arg-type]
        assert made == by_tasks
        assert derived(Path(folder, "one")) == derived(Path(folder, "many"))
        if ("expire",) not in steps:
            assert units_in(Path(folder, "one")) == complete
        repair_store(System(), root, Repair.REBUILD_DERIVED, DELAYS)
        assert not_empty(seen_in(root)) == seen
        assert ends_in(root, ends) == ends
        assert checked(root).ok


@given(
    steps=steps_with(queues=3).map(without_light_and_expired),
    chosen=st.lists(st.integers(0, 5), max_size=3),
    damaged=st.integers(0, 40),
)
@settings(max_examples=15)
def test_salvage_serves_all_but_the_damaged_message(
    steps: Steps, chosen: list[int], damaged: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "store")
        shop = opened(root, steps)
        shop.put("A")
        shop.put("A")
        shop.close()
        without_some_queues(root, chosen)
        found = records(root)
        victim = found[damaged % (len(found) - 1)]  # the log does not end with it
        base = victim.physical_offset // 2048 * 2048
        flip(root / "commitlog" / f"{base:020}", victim.physical_offset - base + 4)
        salvage_store(System(), root, Path(folder, "saved"), DELAYS)
        left = {key: [b for b in bodies if b != victim.body] for key, bodies in shop.seen.items()}
        assert not_empty(seen_in(Path(folder, "saved"))) == not_empty(left)


@given(steps=steps_with(queues=1))
@settings(max_examples=20)
def test_stores_of_java_are_taken_over(steps: Steps) -> None:
    """There, a queue that got no message since its topic was created again may have been lost."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "store"
        shop = filled(root, steps)
        seen = not_empty(shop.seen)
        list_topics(root, *(topic for topic, _ in seen))
        closed = copy_with(root, "closed", as_java_leaves_it)
        assert not_empty(seen_in(closed)) == seen
        assert checked(closed).ok
        crashed = copy_with(root, "crashed", as_java_crashes)
        assert not_empty(seen_in(crashed, seen)) == seen
