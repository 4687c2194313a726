"""Tasks compare what they see of a store with what the driver saw, and report differences."""

import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.pipeline.source.shelf import consumed, fill, rows_of, some_messages
from tests.stores import records

from firetrail.errors import DataLostError, NotSharedError, StoreDamagedError
from firetrail.format.names import COMMIT_LOG, segment_name
from firetrail.pipeline.batch_plan import plan_batch
from firetrail.pipeline.source.damage import plan_damage, read_damage
from firetrail.pipeline.source.plan.store_splits import LogSplit, OffsetSplit, UnitSplit
from firetrail.pipeline.source.source_options import parse_options
from firetrail.pipeline.source.split_reader import read_split
from firetrail.pipeline.wire.broker_splits import Split, WireSplit
from firetrail.storage.segment import Segment

SEGMENT = 8192
READS = {
    LogSplit: {"minPartitions": "4"},
    UnitSplit: {"subscribe": "rare", "startingOffsets": '{"rare": {"0": 1, "1": 1}}'},
    OffsetSplit: {"subscribe": "usual", "key": "k77"},
}
"""Options for splits of each kind."""
LENIENT = {"permissive": True, "allow_loss": True}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    fill(tmp_path / "store", some_messages(300))
    return tmp_path / "store"


def plan(store: Path, kind: type) -> list[Split]:
    splits = plan_batch(parse_options({"path": str(store)} | READS[kind])).splits
    assert splits and all(isinstance(split, kind) for split in splits)
    return splits


def read(splits: list[Split], **how: bool) -> int:
    found = 0
    for split in splits:
        assert not isinstance(split, WireSplit)
        found += sum(batch.num_rows for batch in read_split(split, ["queue_offset"], **how))
    return found


def segments(store: Path) -> list[Path]:
    last = records(store)[-1].physical_offset
    return [path for path in sorted((store / COMMIT_LOG).iterdir()) if int(path.name) <= last]


def no_store(store: Path) -> None:
    shutil.rmtree(store)


def no_log(store: Path) -> None:
    shutil.rmtree(store / COMMIT_LOG)


def empty_log(store: Path) -> None:
    no_log(store)
    (store / COMMIT_LOG).mkdir()


def no_newest(store: Path) -> None:
    segments(store)[-1].unlink()


def a_hole(store: Path) -> None:
    segments(store)[2].unlink()


def another_store(store: Path) -> None:
    no_store(store)
    fill(store, some_messages(300, 1))


MISSING = [no_store, no_log, empty_log, no_newest, a_hole, another_store]


@pytest.mark.parametrize("kind", READS)
@pytest.mark.parametrize("spoil", MISSING)
def test_a_missing_part_of_the_store_is_an_error(
    store: Path, kind: type, spoil: Callable[[Path], None]
) -> None:
    splits = plan(store, kind)
    assert read(splits) > 0
    spoil(store)
    for how in ({}, LENIENT):
        with pytest.raises(NotSharedError, match=rf"^{store}/.* on the worker \S+; the driver and"):
            read(splits, **how)


@pytest.mark.parametrize("kind", READS)
def test_a_file_that_cannot_be_read(
    store: Path, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = plan(store, kind)
    whole = read(splits)
    (looked_up,) = plan(store, OffsetSplit)
    assert isinstance(looked_up, OffsetSplit)
    place = looked_up.physical_offsets[0]
    view_of = Segment._map

    def failing(segment: Segment) -> memoryview:
        if segment.path.parent.name == COMMIT_LOG and segment.base <= place < segment.end:
            raise PermissionError(errno.EACCES, "Permission denied", str(segment.path))
        return view_of(segment)

    monkeypatch.setattr(Segment, "_map", failing)
    with pytest.raises(StoreDamagedError, match=f"/{segment_name(place // SEGMENT * SEGMENT)} at "):
        read(splits)
    assert read(splits, permissive=True) < whole


@pytest.mark.parametrize("spoil", MISSING)
def test_the_damage_view_refuses_a_store_that_workers_see_differently(
    store: Path, spoil: Callable[[Path], None]
) -> None:
    splits = plan_damage(
        parse_options({"path": str(store), "minPartitions": "4", "view": "damage"})
    )
    spoil(store)
    with pytest.raises(NotSharedError, match=rf"^{store}/"):
        [list(read_damage(split)) for split in splits]


@pytest.mark.parametrize("kind", [LogSplit, UnitSplit])
def test_an_older_copy_is_an_error(tmp_path: Path, kind: type) -> None:
    """It has the same files, without the last records or units."""
    store, copy = tmp_path / "store", tmp_path / "copy"
    machine = fill(store, some_messages(300))
    shutil.copytree(store, copy)
    fill(store, some_messages(5, 300), machine)
    assert [path.name for path in segments(store)] == [path.name for path in segments(copy)]
    splits = plan(store, kind)
    shutil.rmtree(store)
    copy.rename(store)
    with pytest.raises(NotSharedError, match=r"differs at \d+ from what|ends at offset \d+ on"):
        read(splits, **LENIENT)


@pytest.mark.parametrize("kind", [LogSplit, UnitSplit])
def test_missing_queues_are_an_error(store: Path, kind: type) -> None:
    splits = plan(store, kind)
    shutil.rmtree(store / "consumequeue/rare/0")
    with pytest.raises(
        NotSharedError, match=r"rare/0: the driver saw this queue up to offset \d+, but it has"
    ):
        read(splits, **LENIENT)


class TestRetention:
    """Only files that retention deleted may be skipped, and only if that is allowed."""

    @pytest.fixture
    def expired(self, store: Path) -> Iterator[tuple[Path, list[Split]]]:
        splits = plan(store, LogSplit)
        for path in segments(store)[:3]:
            path.unlink()
        yield store, splits

    def test_deleted_files_are_an_error(self, expired: tuple[Path, list[Split]]) -> None:
        with pytest.raises(DataLostError, match=f"now begins at {3 * SEGMENT}, because retention"):
            read(expired[1])

    def test_deleted_files_are_skipped_if_allowed(self, expired: tuple[Path, list[Split]]) -> None:
        store, splits = expired
        assert read(splits, allow_loss=True) == len(consumed(store)) > 0

    def test_a_deleted_split_is_empty_if_allowed(self, store: Path) -> None:
        """All of its files are missing; the later files show that retention deleted them."""
        first = plan(store, LogSplit)[0]
        assert isinstance(first, LogSplit)
        for path in segments(store):
            if int(path.name) < first.end:
                path.unlink()
        assert read([first], allow_loss=True) == 0
        with pytest.raises(DataLostError, match="retention deleted the messages from 0 on"):
            read([first])


def test_a_file_that_the_driver_lacks_is_damage(store: Path) -> None:
    """The driver does not see it, either, so permissive reads skip it."""
    hole = segments(store)[3]
    hole.unlink()
    with pytest.raises(StoreDamagedError, match="missing"):
        rows_of(store, view="log")
    assert rows_of(store, view="log", mode="permissive", how=LENIENT)


def test_a_hole_at_the_end_of_a_split(store: Path) -> None:
    """No record of the split follows it, so a walk over the log does not notice it."""
    bases = [int(path.name) for path in segments(store)]
    segments(store)[3].unlink()
    split = LogSplit(str(store), bases[2], bases[4])
    with pytest.raises(StoreDamagedError, match=f"{segment_name(bases[3])}.* missing"):
        read([split])
    assert read([split], permissive=True) > 0
    (found,) = read_damage(split)
    assert found.to_pylist()[0]["physical_offset"] == bases[3]
