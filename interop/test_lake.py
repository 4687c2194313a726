"""Archives of Java's stores, and bulk appends to them: Java continues with the results."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from interop import commands
from interop.history import History
from interop.messages import mixed, specials
from interop.peer import SMALL, Java
from interop.views import index_files, log_of, queue_files
from pyspark.sql import SparkSession

from firetrail import Store
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.pipeline import archive, restore, session
from firetrail.store.bulk import BulkAppend
from firetrail.store.bulk_journal import Journal, Ticket

LINES = pytest.mark.parametrize("line", ["v4", "v5"])


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    started = session("local[2]")
    yield started
    started.stop()


@LINES
def test_java_goes_on_with_a_store_that_was_restored(
    line: str, spark: SparkSession, tmp_path: Path
) -> None:
    root, back = tmp_path / "store", tmp_path / "back"
    history = History()
    lines = mixed(1, 60, specials())
    (results,) = Java(line).session(root, lines)
    history.add(lines, results, line)
    archive(spark, root, tmp_path / "lake")
    restore(spark, tmp_path / "lake", back)
    assert queue_files(back) == queue_files(root)
    assert index_files(back) == index_files(root)
    more = mixed(2, 30, specials())
    history.date_queue_files(back, SMALL)
    *answers, results = Java(line).session(back, *history.questions(line), more)
    history.check_java(answers, line, SMALL)
    history.add(more, results, line)
    commands.check_clean(back, len(history.records))


class Killed(BaseException):
    """As if the process had ended here."""


@LINES
@pytest.mark.parametrize("committed", [False, True])
def test_java_opens_what_a_killed_append_has_left(
    line: str, committed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the commit Java finds everything and derives its queues; before it, nothing."""
    root, left = tmp_path / "store", tmp_path / "left"
    lines = mixed(1, 40, specials())
    Java(line).session(root, lines)

    def dies(self: Journal, *args: Any) -> None:
        shutil.copytree(root, left)
        raise Killed

    monkeypatch.setattr(Journal, "conclude" if committed else "announce", dies)
    with suppress(Killed), BulkAppend(root, SMALL.config(), Ticket("q", 0)) as bulk:
        before = bulk._start
        for number in range(40):
            items = [BatchItem(0, b"%d.%d" % (number, n), b"KEYS\x01k\x02") for n in range(5)]
            bulk.add("bulk", number % 2, encode_batch(items))
        bulk.commit()
    with Store.open(shutil.copytree(left, tmp_path / "copy")) as store:
        history = History(log_of(store), repeats=True)
    assert sum(r["physical_offset"] >= before for r in history.records) == 200 * committed
    Java(line).session(left)  # recovers it
    history.date_queue_files(left, SMALL)
    more = mixed(2, 30, specials())
    *answers, results = Java(line).session(left, *history.questions(line), more)
    history.check_java(answers, line, SMALL)
    history.add(more, results, line)
    with Store.open(left) as store:
        history.check_firetrail(store)
