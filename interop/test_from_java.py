"""Java writes; Firetrail opens, verifies, derives and goes on; Java takes the store back."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from interop import ours
from interop.history import History
from interop.messages import (
    STORE_V4,
    STORE_V6_HOST,
    long_retry,
    mixed,
    specials,
    stored_by,
)
from interop.peer import FEW, SMALL, Java, Json, Sizes
from interop.views import (
    CRC_PROPERTY,
    index_files,
    java_queues,
    log_of,
    queue_files,
    queues_of,
)

from firetrail import Record, Store

TINY = Sizes(log=1024, queue=100, slots=7, entries=150)


@dataclass(frozen=True)
class Case:
    """A store that Java is to write."""

    name: str
    line: str
    killed: bool = False
    options: tuple[str, ...] = ()
    sizes: Sizes = SMALL

    @property
    def crc(self) -> bool:
        """Whether every record has a checksum."""
        return "--prop-crc" in self.options

    @property
    def extra(self) -> list[Json]:
        """Records that only this line understands."""
        return long_retry() if self.line == "v5" else []


CASES = [
    Case("v4-clean", "v4", options=("--flush", "sync")),
    Case("v4-killed", "v4", killed=True, sizes=TINY),
    Case("v4-pool", "v4", options=("--pool",)),
    Case("v5-clean", "v5", sizes=FEW),
    Case("v5-killed", "v5", killed=True, options=("--flush", "sync"), sizes=FEW),
    Case("v5-propcrc", "v5", options=("--prop-crc",), sizes=FEW),
]


@dataclass(frozen=True)
class Written:
    """A store that Java has written, and what it said about it before it stopped."""

    case: Case
    root: Path
    history: History
    log: list[Json]
    queues: list[Json]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The store of a case, to be copied before anybody writes to it."""
    case: Case = request.param
    root = tmp_path_factory.mktemp(case.name) / "store"
    lines = mixed(1, 180, specials() + case.extra)
    results, log, queues = Java(case.line).session(
        root,
        lines,
        "read --log",
        "read",
        sizes=case.sizes,
        options=case.options,
        kill=case.killed,
    )
    history = History()
    history.add(lines, results, case.line, case.crc)
    return Written(case, root, history, log, queues)


@pytest.fixture
def copy(written: Written, tmp_path: Path) -> Path:
    """A copy of the store."""
    return shutil.copytree(written.root, tmp_path / "store")


def files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.iterdir())


def test_every_kind_of_file_has_rolled(written: Written) -> None:
    assert files(written.root / "commitlog") > 2
    assert files(written.root / "consumequeue" / "T1" / "0") > 2
    assert files(written.root / "index") > 2
    assert (written.root / "abort").exists() is written.case.killed


def test_firetrail_reads_what_java_has_written(written: Written, copy: Path) -> None:
    with Store.open(copy) as store:
        assert store.recovery.clean is not written.case.killed
        assert store.recovery.bytes_truncated == 0
        written.history.check_firetrail(store)
        assert log_of(store) == written.log
        assert queues_of(store) == java_queues(written.queues)
        for record in records(store):
            assert written.case.crc is (CRC_PROPERTY in record.properties)


def test_opening_and_closing_changes_neither_queues_nor_index(written: Written, copy: Path) -> None:
    Store.open(copy).close()
    assert queue_files(copy) == queue_files(written.root)
    assert index_files(copy) == index_files(written.root)


def test_firetrail_derives_the_files_that_java_derived(written: Written, copy: Path) -> None:
    shutil.rmtree(copy / "consumequeue")
    shutil.rmtree(copy / "index")
    tags = written.case.line == "v5"  # nothing is left to tell it from
    with Store.open(copy, written.case.sizes.config(index_tags=tags)) as store:
        written.history.check_firetrail(store)
    assert queue_files(copy) == queue_files(written.root)
    assert index_files(copy) == index_files(written.root)


@pytest.mark.parametrize("firetrail_killed", [False, True], ids=["closed", "killed"])
def test_java_takes_over_again(written: Written, copy: Path, firetrail_killed: bool) -> None:
    case, history = written.case, written.history.copy()
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
    with Store.open(copy) as store:
        assert store.recovery.clean is firetrail_killed
        history.check_firetrail(store)


def test_checksums_of_whole_records_agree(written: Written, copy: Path) -> None:
    """Those of both sides, computed here from the bytes."""
    if not written.case.crc:
        pytest.skip("the records of this store have none")
    ours.write(
        copy, stored_by(STORE_V4, mixed(5, 10, specials())), "--prop-crc", sizes=written.case.sizes
    )
    with Store.open(copy) as store:
        log = copy / "commitlog"
        content = b"".join(path.read_bytes() for path in sorted(log.iterdir()))
        for record in records(store):
            end = record.physical_offset + record.size
            crc = zlib.crc32(content[record.physical_offset : end - 20]) & 0x7FFFFFFF
            assert record.properties[CRC_PROPERTY] == f"{crc:010d}"[::-1]


def records(store: Store) -> Iterator[Record]:
    for line in log_of(store):
        record = store.at(line["physical_offset"])
        assert record is not None
        yield record
