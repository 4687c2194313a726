"""The checkpoint as a Java store uses it that has to recover from it."""

from pathlib import Path

from firetrail import Message, Store, StoreConfig
from firetrail.format.files.checkpoint import Checkpoint, decode_checkpoint
from firetrail.format.files.index import IndexHeader, decode_index_header
from firetrail.system import Clock, System


class Ticking(Clock):
    """A clock that moves on by a second with every look."""

    def __init__(self) -> None:
        self._ns = 1_700_000_000_000_000_000

    def time_ns(self) -> int:
        self._ns += 1_000_000_000
        return self._ns


def fill(root: Path, messages: int, index_enabled: bool = True) -> Checkpoint:
    config = StoreConfig(index_slots=5, index_entries=4, index_enabled=index_enabled)
    with Store.open(root, config, system=System(clock=Ticking())) as store:
        for number in range(messages):
            store.put(Message("t", b"x", keys=[f"k{number}"]))
    return decode_checkpoint((root / "checkpoint").read_bytes())


def headers(root: Path) -> list[IndexHeader]:
    return [decode_index_header(path.read_bytes()) for path in sorted((root / "index").iterdir())]


def test_the_checkpoint_ends_before_the_unfilled_index_file(tmp_path: Path) -> None:
    checkpoint = fill(tmp_path, messages=7)
    full, last = headers(tmp_path)[1:]
    assert last.end_timestamp > full.end_timestamp
    assert checkpoint.index_timestamp == checkpoint.logics_timestamp == full.end_timestamp
    assert checkpoint.logics_offset == full.end_offset
    assert checkpoint.physic_timestamp == last.end_timestamp


def test_the_checkpoint_covers_an_index_file_that_is_just_full(tmp_path: Path) -> None:
    checkpoint = fill(tmp_path, messages=6)
    assert checkpoint.index_timestamp == headers(tmp_path)[-1].end_timestamp


def test_the_checkpoint_is_zero_until_an_index_file_is_full(tmp_path: Path) -> None:
    checkpoint = fill(tmp_path, messages=2)
    assert checkpoint[1:3] == (0, 0)
    assert checkpoint.logics_offset == 0


def test_without_an_index_it_tells_of_the_queues(tmp_path: Path) -> None:
    checkpoint = fill(tmp_path, messages=7, index_enabled=False)
    assert checkpoint.logics_timestamp == checkpoint.physic_timestamp > 0
    assert checkpoint.logics_offset > 0
