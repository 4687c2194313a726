"""An index with tags, as RocketMQ 5.5 writes it, is recognized and continued."""

import shutil
from pathlib import Path

import pytest

from firetrail import Message, Store, StoreConfig
from firetrail.format.files.index import IndexGeometry
from firetrail.format.values.javahash import index_key_hash
from firetrail.store.index.index import Index
from firetrail.store.root.sizes import adopt_sizes
from firetrail.system import System

GOLDEN = Path(__file__).parents[2] / "golden"


def has_tag(root: Path, topic: str, tag: str) -> list[int]:
    """Physical offsets of the entries of a tag."""
    config = adopt_sizes(System(), root, StoreConfig())
    geometry = IndexGeometry(config.index_slots, config.index_entries)
    index = Index(System(), root, geometry, writable=False)
    index.load()
    try:
        hashed = index_key_hash(topic, f"T#{tag}")
        return [o for file in index.files for o in file.find(hashed, 0, 1 << 62, 1000)]
    finally:
        index.close()


@pytest.mark.parametrize(
    ("golden", "tags"),
    [("v4-clean", False), ("v4-rolled", False), ("v5-clean", True), ("v5-crashed", True)],
)
def test_an_index_stays_with_or_without_tags(tmp_path: Path, golden: str, tags: bool) -> None:
    root = shutil.copytree(GOLDEN / golden, tmp_path / "store")
    with Store.open(root, StoreConfig(index_tags=not tags)) as store:
        put = store.put(Message("new", b"x", tags="t"))
    assert has_tag(root, "new", "t") == ([put.physical_offset] if tags else [])


@pytest.mark.parametrize("tags", [False, True])
def test_a_new_index_is_as_configured(tmp_path: Path, tags: bool) -> None:
    with Store.open(tmp_path, StoreConfig(index_tags=tags)) as store:
        store.put(Message("new", b"x", tags="t"))
        store.put(Message("new", b"x"))
    assert has_tag(tmp_path, "new", "t") == ([0] if tags else [])


def test_an_index_without_tagged_messages_gives_no_answer(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        for number in range(5):
            store.put(Message("new", b"x", keys=[f"k{number}"]))
    with Store.open(tmp_path, StoreConfig(index_tags=True)) as store:
        put = store.put(Message("new", b"x", tags="t"))
    assert has_tag(tmp_path, "new", "t") == [put.physical_offset]


def test_damaged_records_give_no_answer(tmp_path: Path) -> None:
    with Store.open(tmp_path, StoreConfig(commit_log_file_size=4096, max_message_size=1000)) as s:
        for number in range(5):
            s.put(Message("new", b"body", tags="t", keys=[f"k{number}"]))
        s.put(Message("new", b"last"))
    log = next((tmp_path / "commitlog").iterdir())
    log.write_bytes(log.read_bytes().replace(b"body", b"flip"))
    with Store.open(tmp_path, StoreConfig(index_tags=True)) as store:
        put = store.put(Message("new", b"x", tags="t"))
    assert has_tag(tmp_path, "new", "t") == [put.physical_offset]
