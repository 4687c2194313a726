"""The log of a closed store is ended earlier, also if a Java broker wrote it."""

from pathlib import Path

import pytest
from tests.store.checks import checked
from tests.stores import NAMES, copy_of, records

from firetrail import Store, StoreConfig
from firetrail.errors import NotAStoreError, StoreError, StoreLockedError
from firetrail.format import layout
from firetrail.store.repair.truncation import LogCut, find_removed, truncate_store
from firetrail.system import SYSTEM


@pytest.mark.parametrize("name", NAMES)
def test_stores_of_java_are_truncated(name: str, tmp_path: Path) -> None:
    root = copy_of(name, tmp_path)
    before = records(root)
    middle = len(before) // 2
    last = before[middle]
    cut = LogCut(last.physical_offset, last.physical_offset + last.size)
    removed = find_removed(SYSTEM, root, cut)
    assert removed is not None and removed.last == before[-1].physical_offset
    kept = truncate_store(SYSTEM, root, cut)
    assert kept is not None
    report = checked(root)
    assert report.ok, report.problems
    with Store.open(root, StoreConfig()) as store:
        assert not store.recovery.clean
        assert store.log_range[1] == cut.end
        ends: dict[tuple[str, int], int] = {}
        for record in before[: middle + 1]:
            if layout.takes_queue_offset(record.sys_flag):
                ends[record.topic, record.queue_id] = record.queue_offset + 1
        assert {key: store.max_offset(*key) for key in ends} == ends
    assert records(root) == before[: middle + 1]
    assert checked(root).ok


def test_a_truncation_to_the_end_removes_nothing(tmp_path: Path) -> None:
    root = copy_of("v4-clean", tmp_path)
    last = records(root)[-1]
    cut = LogCut(last.physical_offset, last.physical_offset + last.size)
    assert truncate_store(SYSTEM, root, cut) is None
    assert records(root)[-1] == last


def test_a_cut_that_is_not_at_a_record_is_refused(tmp_path: Path) -> None:
    root = copy_of("v4-clean", tmp_path)
    with pytest.raises(StoreError, match="there is no record at offset 7"):
        truncate_store(SYSTEM, root, LogCut(7, 100))


def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    root = copy_of("v4-clean", tmp_path)
    with Store.open(root, StoreConfig()), pytest.raises(StoreLockedError):
        truncate_store(SYSTEM, root, LogCut(0, 100))
    with pytest.raises(NotAStoreError):
        truncate_store(SYSTEM, tmp_path / "none", LogCut(0, 100))
