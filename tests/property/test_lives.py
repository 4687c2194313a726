"""Topics are put to, deleted, created again; then every way to derive queues must give the same.

What a consumer must see follows from a model. Stores are rebuilt into a folder, in one process and
by the tasks of the Spark job (here without Spark), repaired in place, and taken over as if a Java
broker had closed or lost them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lives import (
    Shop,
    as_java_crashes,
    as_java_leaves_it,
    copy_with,
    not_empty,
    seen_in,
)
from tests.pipeline.jobs.test_audit_agrees import Here, run_here, told
from tests.store.checks import DELAYS, checked
from tests.stores import derived, list_topics

from firetrail.pipeline.jobs.audit import job as audit_module
from firetrail.pipeline.jobs.audit.job import audit
from firetrail.pipeline.jobs.rebuild import job as rebuild_module
from firetrail.store.inspect.view import StoreView
from firetrail.store.repair.rebuild import rebuild
from firetrail.store.repair.repair import Repair, repair_store
from firetrail.system import System

TOPICS = st.sampled_from(("A", "B"))
LIGHT = "%LMQ%L"
Steps = list[tuple[str, int | str]]


def steps_with(queues: int) -> st.SearchStrategy[Steps]:
    """What happens to a store whose topics have so many queues."""
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


def filled(root: Path, steps: Steps) -> Shop:
    shop = Shop(root)
    for name, *arguments in steps:
        getattr(shop, name)(*arguments)
    shop.close()
    return shop


@pytest.fixture(scope="module", autouse=True)
def tasks_run_here() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(audit_module, "run_tasks", run_here)
        patched.setattr(rebuild_module, "run_tasks", run_here)
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
        assert told(audited) == told(report)
        with StoreView.open(root) as view:
            made = rebuild(view, Path(folder, "one"), DELAYS, lambda done: None)
        by_tasks = rebuild_module.rebuild(Here(), root, Path(folder, "many"))  # type: ignore[arg-type]
        assert made == by_tasks
        assert derived(Path(folder, "one")) == derived(Path(folder, "many"))
        if ("expire",) not in steps:
            assert derived(Path(folder, "one")) == derived(root)
        repair_store(System(), root, Repair.REBUILD_DERIVED, DELAYS)
        assert not_empty(seen_in(copy_with(root, "repaired"))) == seen
        assert checked(root).ok


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
