"""The check of an index in which the Java store has entered a message again."""

from array import array
from pathlib import Path

from firetrail import Message, Store, StoreConfig
from firetrail.format.files.index import IndexGeometry
from firetrail.format.values.javahash import index_key_hash
from firetrail.store.index.index import Index
from firetrail.store.inspect.fsck.check import check_store
from firetrail.store.inspect.view import StoreView
from firetrail.store.problems import ProblemKind
from firetrail.system import System

GEOMETRY = IndexGeometry(slots=5, entries=6)  # five keys fill a file
KEYS = ("a", "b", "c")


def enter(index: Index, number: int, offset: int, store_time: int) -> None:
    """Enter the keys of a message."""
    hashes = [index_key_hash("t", f"{key}{number}") for key in KEYS]
    entries = array("q", [value for each in hashes for value in (each, offset, store_time)])
    done = 0
    while done < len(hashes):
        done = index.append(entries, done, len(hashes))


def test_a_message_whose_first_keys_ended_a_file_may_be_entered_again(tmp_path: Path) -> None:
    """Two of its three keys are the last of the first file; after a crash Java has deleted the
    second file and entered all three into a new one."""
    config = StoreConfig(index_slots=GEOMETRY.slots, index_entries=GEOMETRY.entries)
    with Store.open(tmp_path, config) as store:
        puts = [
            store.put(Message("t", b"x", keys=[f"{key}{number}" for key in KEYS]))
            for number in range(3)
        ]
    first, second = sorted((tmp_path / "index").iterdir())
    second.unlink()
    index = Index(System(), tmp_path, GEOMETRY)
    index.load()
    for number in (1, 2):
        enter(index, number, puts[number].physical_offset, puts[number].store_time)
    index.close()
    with StoreView(tmp_path, StoreConfig(), System()) as view:
        report = check_store(view, StoreConfig().delay_levels)
    assert [problem.kind for problem in report.problems] == []
    assert [warning.kind for warning in report.warnings] == [ProblemKind.INDEX_REPEATED] * 2
    assert first.exists()
