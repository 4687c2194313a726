"""Java writes; Firetrail opens, verifies, derives and continues; Java takes the store back."""

from __future__ import annotations

import shutil
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from interop import commands, ours
from interop.history import History
from interop.messages import (
    STORE_V4,
    STORE_V6_HOST,
    mixed,
    specials,
    stored_by,
)
from interop.peer import Java
from interop.stores import JavaStore
from interop.views import (
    CRC_PROPERTY,
    index_files,
    java_queues,
    log_of,
    queue_files,
    queues_of,
)

from firetrail import Record, Store
from firetrail.errors import StoreLockedError


@pytest.fixture
def copy(by_java: JavaStore, tmp_path: Path) -> Path:
    """A copy of the store."""
    return shutil.copytree(by_java.root, tmp_path / "store")


def files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.iterdir())


def test_every_kind_of_file_has_rolled(by_java: JavaStore) -> None:
    assert files(by_java.root / "commitlog") > 2
    assert files(by_java.root / "consumequeue" / "T1" / "0") > 2
    assert files(by_java.root / "index") > 2
    assert (by_java.root / "abort").exists() is by_java.case.killed


def test_firetrail_reads_what_java_has_written(by_java: JavaStore, copy: Path) -> None:
    with Store.open(copy) as store:
        assert store.recovery.clean is not by_java.case.killed
        assert store.recovery.bytes_truncated == 0
        by_java.history.check_firetrail(store)
        assert log_of(store) == by_java.log
        assert queues_of(store) == java_queues(by_java.queues)
        if by_java.case.crc:
            check_checksums(copy, store)


def test_opening_changes_neither_queues_nor_index(by_java: JavaStore, copy: Path) -> None:
    Store.open(copy).close()
    assert queue_files(copy) == queue_files(by_java.root)
    assert index_files(copy) == index_files(by_java.root)


def test_firetrail_derives_the_files_that_java_derived(by_java: JavaStore, copy: Path) -> None:
    shutil.rmtree(copy / "consumequeue")
    shutil.rmtree(copy / "index")
    tags = by_java.case.line == "v5"  # nothing is left to tell it from
    with Store.open(copy, by_java.case.sizes.config(index_tags=tags)) as store:
        by_java.history.check_firetrail(store)
    assert queue_files(copy) == queue_files(by_java.root)
    assert index_files(copy) == index_files(by_java.root)


@pytest.mark.parametrize("firetrail_killed", [False, True], ids=["closed", "killed"])
def test_java_takes_over_again(by_java: JavaStore, copy: Path, firetrail_killed: bool) -> None:
    case, history = by_java.case, by_java.history.copy()
    options = ["--prop-crc"] if case.crc else []
    for seed, host in ((2, STORE_V6_HOST), (3, STORE_V4)):
        lines = stored_by(host, mixed(seed, 30, specials() + case.extra))
        last = host == STORE_V4
        results = ours.write(
            copy, lines, *options, sizes=case.sizes, kill=firetrail_killed and last
        )
        history.add(lines, results, "firetrail", case.crc)
    history.repeats = firetrail_killed
    history.date_queue_files(copy, case.sizes)
    lines = mixed(4, 30, specials())
    *answers, results = Java(case.line).session(
        copy,
        *history.questions(case.line),
        lines,
        sizes=case.sizes,
        options=case.options,
        kill=not firetrail_killed,
    )
    history.check_java(answers, case.line, case.sizes)
    history.add(lines, results, case.line, case.crc)
    commands.check_clean(copy, len(history.records))
    with Store.open(copy) as store:
        assert store.recovery.clean is firetrail_killed
        history.check_firetrail(store)
        if case.crc:
            check_checksums(copy, store)


@pytest.mark.parametrize("line", ["v4", "v5"])
def test_a_store_that_java_has_open_can_only_be_looked_at(line: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    lines = mixed(1, 20, specials())
    history = History()
    with Java(line).writing(root, lines) as results:
        history.add(lines, results, line)
        with pytest.raises(StoreLockedError, match=r"process \d+ has the store open"):
            Store.open(root)
        # The newest record of a store in use counts once Java has dispatched it.
        for _ in range(100):
            code, dumped = commands.run("dump", root, "--json")
            if len(dumped) == len(history.records):
                break
            time.sleep(0.1)
        assert (code, len(dumped)) == (0, len(history.records))
    with Store.open(root) as store:
        history.check_firetrail(store)


def check_checksums(root: Path, store: Store) -> None:
    """Check that every record has the checksum of its bytes."""
    log = (root / "commitlog").iterdir()
    content = b"".join(path.read_bytes() for path in sorted(log))
    for record in records(store):
        end = record.physical_offset + record.size
        crc = zlib.crc32(content[record.physical_offset : end - 20]) & 0x7FFFFFFF
        assert record.properties[CRC_PROPERTY] == f"{crc:010d}"[::-1]


def records(store: Store) -> Iterator[Record]:
    for line in log_of(store):
        record = store.at(line["physical_offset"])
        assert record is not None
        yield record
