"""The jobs on Spark, on stores that Java has written: they derive what Java derived."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from interop import commands
from interop.history import History
from interop.messages import mixed, specials
from interop.peer import SMALL, Java
from interop.stores import JavaStore
from interop.views import index_files, queue_files
from pyspark.sql import SparkSession

from firetrail.pipeline import session
from firetrail.pipeline.jobs.audit.audit_job import audit
from firetrail.pipeline.jobs.rebuild.rebuild_job import rebuild


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    started = session("local[2]")
    yield started
    started.stop()


def test_rebuild_makes_the_files_that_java_made(
    by_java: JavaStore, spark: SparkSession, tmp_path: Path
) -> None:
    before = commands.contents(by_java.root)
    made = rebuild(spark, by_java.root, tmp_path / "rebuilt")
    assert made.messages == len(by_java.log)
    assert queue_files(tmp_path / "rebuilt") == queue_files(by_java.root)
    assert index_files(tmp_path / "rebuilt") == index_files(by_java.root)
    assert commands.contents(by_java.root) == before


def test_audit_finds_nothing_wrong_with_javas_stores(
    by_java: JavaStore, spark: SparkSession, tmp_path: Path
) -> None:
    report = audit(spark, by_java.root, work=tmp_path).report
    assert (report.problems, report.messages) == ([], len(by_java.log))


@pytest.mark.parametrize("line", ["v4", "v5"])
def test_java_goes_on_with_a_store_that_was_rebuilt_in_place(
    line: str, spark: SparkSession, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    history = History()
    lines = mixed(1, 60, specials())
    (results,) = Java(line).session(root, lines)
    history.add(lines, results, line)
    before = queue_files(root), index_files(root)
    (root / "consumequeue" / "T1" / "0" / f"{0:020}").unlink()
    rebuild(spark, root)
    assert (queue_files(root), index_files(root)) == before
    more = mixed(2, 30, specials())
    history.date_queue_files(root, SMALL)
    *answers, results = Java(line).session(root, *history.questions(line), more)
    history.check_java(answers, line, SMALL)
    history.add(more, results, line)
    commands.check_clean(root, len(history.records))
