"""Firetrail writes; Java opens, reads, queries and continues; Firetrail takes the store back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from interop import commands, ours
from interop.history import History
from interop.messages import (
    PREPARED,
    STORE_V4,
    long_retry,
    message,
    mixed,
    plain,
    specials,
    stored_by,
)
from interop.peer import FEW, SMALL, Java, Json, Sizes
from interop.stores import OurStore
from interop.views import index_files, log_of, queue_files

from firetrail import Store

HOUR_MS = 3_600_000


def test_java_reads_queries_and_goes_on(by_us: OurStore, tmp_path: Path) -> None:
    """Java stops the other way than Firetrail did; then Firetrail finds what both have stored."""
    case = by_us.case
    for java in map(Java, case.lines):
        history = by_us.history.copy()
        history.repeats = case.killed
        root = shutil.copytree(by_us.root, tmp_path / java.line)
        history.date_queue_files(root, FEW)
        lines = mixed(3, 40, specials() + (long_retry() if java.line == "v5" else []))
        *answers, results = java.session(
            root, *history.questions(java.line), lines, sizes=FEW, kill=not case.killed
        )
        history.check_java(answers, java.line, FEW)
        history.add(lines, results, java.line)
        commands.check_clean(root, len(history.records))
        with Store.open(root) as store:
            assert store.recovery.clean is case.killed
            history.check_firetrail(store)


@pytest.mark.parametrize("java", [Java("v4"), Java("v5")], ids=lambda java: java.line)
def test_java_derives_the_files_that_firetrail_derived(
    java: Java, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("derived") / "store"
    extra = long_retry() if java.line == "v5" else []
    lines = stored_by(STORE_V4, mixed(1, 60, specials() + extra))
    with Store.open(root, SMALL.config(index_tags=java.line == "v5")) as store:
        for line in lines:
            ours.put(store, line)
    copy = shutil.copytree(root, root.with_name("copy"))
    shutil.rmtree(copy / "consumequeue")
    shutil.rmtree(copy / "index")
    java.session(copy, "read --log", kill=True)
    assert queue_files(copy) == queue_files(root)
    assert index_files(copy) == index_files(root)


# -- the watermark --------------------------------------------------------------------------------


def only_prepared(count: int) -> list[Json]:
    """Messages that no queue gets, so that the Java store hardly notes them."""
    return [
        message("TH", f"half {i}", sys_flag=PREPARED, properties={"KEYS": f"half-{i}"})
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("kind", "killed", "java_killed"),
    [
        ("plain", False, False),
        ("plain", True, True),
        ("prepared", False, False),
        ("prepared", False, True),
        ("prepared", True, False),
        ("prepared", True, True),
    ],
)
def test_the_watermark_does_not_outlive_what_java_writes(
    tmp_path: Path, kind: str, killed: bool, java_killed: bool
) -> None:
    """Also where 4.9 leaves no trace but in the log: it keeps the abort file that it finds, with
    Firetrail's mark in it, and writes its checkpoint only when it shuts down."""
    root = tmp_path / "store"
    history = History()
    first = stored_by(STORE_V4, mixed(1, 20))
    history.add(first, ours.write(root, first, kill=killed), "firetrail")
    more = [plain(i) for i in range(5)] if kind == "plain" else only_prepared(5)
    (results,) = Java("v4").session(root, more, kill=java_killed)
    history.add(more, results, "v4")
    with Store.open(root) as store:
        history.check_firetrail(store)
    last = stored_by(STORE_V4, mixed(2, 5))
    history.add(last, ours.write(root, last), "firetrail")
    with Store.open(root) as store:
        history.check_firetrail(store)


# -- the index ------------------------------------------------------------------------------------


@pytest.mark.parametrize("java", [Java("v4"), Java("v5")], ids=lambda java: java.line)
def test_no_key_is_lost_when_java_recovers_from_firetrails_crash(
    java: Java, tmp_path: Path
) -> None:
    """Java deletes index files that end after its checkpoint's time, here the newest one, and only
    indexes messages again that it dispatches again: by its own checkpoint, the last few seconds.
    Messages that are an hour old are found because Firetrail's checkpoint ends where that file
    begins."""
    root = tmp_path / "store"
    sizes = Sizes(log=4096, queue=400, slots=20, entries=150)
    history = History()
    for seed, shift in ((1, -2 * HOUR_MS), (2, -HOUR_MS), (3, 0)):
        lines = stored_by(STORE_V4, mixed(seed, 30))
        results = ours.write(root, lines, "--clock-shift", str(shift), sizes=sizes, kill=shift == 0)
        history.add(lines, results, "firetrail")
    files = sorted((root / "index").iterdir())
    assert len(files) == 2
    history.repeats = True
    history.date_queue_files(root, sizes)
    answers = java.session(root, *history.questions(java.line), sizes=sizes, kill=True)
    assert files[0].exists() and not files[1].exists()
    history.check_java(answers, java.line, sizes)


def test_firetrail_keeps_the_index_of_a_killed_java(tmp_path: Path) -> None:
    """The newest index file, which Java itself would delete, is completed and stays."""
    root = tmp_path / "store"
    lines = mixed(1, 60, specials())
    (results,) = Java("v4").session(root, lines, kill=True)
    history = History()
    history.add(lines, results, "v4")
    names = sorted(path.name for path in (root / "index").iterdir())
    content = index_files(root)
    with Store.open(root) as store:
        assert not store.recovery.clean
        history.check_firetrail(store)
    assert sorted(path.name for path in (root / "index").iterdir()) == names
    assert index_files(root) == content


# -- killed in the middle -------------------------------------------------------------------------


@pytest.mark.parametrize(("flush", "line"), [("async", "v5"), ("sync", "v4"), ("pool", "v4")])
def test_java_recovers_a_store_whose_writer_was_killed_in_the_middle(
    flush: str, line: str, tmp_path: Path
) -> None:
    """Java finds every message that was acknowledged (of the pool: that was committed), Firetrail
    the same ones, and both end at the same place."""
    root = tmp_path / "store"
    lines = stored_by(STORE_V4, mixed(1, 40, specials()))
    acknowledged = 700 if flush != "sync" else 200
    results = ours.kill_while_writing(root, lines, acknowledged, "--flush", flush, sizes=FEW)
    copy = shutil.copytree(root, tmp_path / "copy")
    java_log, _ = Java(line).session(copy, "read --log", "read", sizes=FEW, kill=True)
    with Store.open(root) as store:
        store.wait_dispatched()
        log = log_of(store)
    assert log == java_log
    history = History()
    rounds = -(-len(results) // len(lines))
    history.add((lines * rounds)[: len(results)], results, "firetrail")
    shared = min(len(log), len(history.records))
    assert log[:shared] == history.records[:shared]
    if flush != "pool":
        assert len(log) >= len(history.records)
