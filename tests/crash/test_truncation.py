"""Power cuts while a store is truncated: what is no longer in its log is in the copy."""

import random
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.crash.files_check import check_files
from tests.crash.oracle import History
from tests.crash.world.disk import Disk, random_image, write_image
from tests.crash.world.simulation import DEEP, SLOTS, Process, Producer, scratch, tiny_config
from tests.store.checks import checked

from firetrail import FiretrailError, Store
from firetrail.storage.segment_queue import SegmentQueue
from firetrail.store.evidence.dropped_records import DroppedRecords, set_aside
from firetrail.store.log.good_records import good_records
from firetrail.store.log.view_log import ViewLog
from firetrail.store.repair import truncation
from firetrail.store.repair.truncation import LogCut, truncate_store
from firetrail.store.root.folder import AbortFile
from firetrail.system import SYSTEM, System

MESSAGES = 80
KEPT = 30
IMAGES = 1000 if DEEP else 16
Patch = Callable[[pytest.MonkeyPatch], None]
CONFIG = tiny_config("async", property_crc=True)


def written_store(folder: Path, *, closed: bool) -> Disk:
    """Return a store of several files that was closed, or killed."""
    (folder / "live").mkdir()
    disk = Disk(folder / "live")
    process = Process(disk, CONFIG, History(), seed=1)
    process.open()
    producer = Producer(random.Random(3))
    for _ in range(MESSAGES):
        process.put(producer.message())
    process.flush()
    if closed:
        process.close()
    else:
        process.kill()
    return disk


def records_in(root: Path) -> dict[int, bytes]:
    """Return the good records of a store, or of the copy of a tail, by their offset."""
    with closing(ViewLog(SYSTEM, root)) as log:
        log.load()
        found = good_records(log, log.min_offset, log.limit)
        return {record.physical_offset: bytes(record.content) for record in found}


def survey(folder: Path, *, closed: bool, spoil: Patch | None = None) -> None:
    """LogCut the power at many operations of a truncation, in which something may be wrong."""
    disk = written_store(folder, closed=closed)
    records = records_in(disk.root)
    offsets = list(records)
    assert len(offsets) == MESSAGES
    cut = LogCut(offsets[KEPT - 1], offsets[KEPT])
    process = Process(disk, CONFIG, History(), seed=2)
    process.record()
    with process.world.replaces_threading(), pytest.MonkeyPatch.context() as patch:
        if spoil is not None:
            spoil(patch)
        truncate_store(process.files.system(), disk.root, cut)
    last = disk.snapshot("the end")
    process.files.abandon()
    source = random.Random(5)
    chosen = sorted(source.sample(range(len(process.moments)), min(IMAGES, len(process.moments))))
    for snapshot in [last, *(process.moments[number].snapshot for number in chosen)]:
        label, image = random_image(snapshot, source)
        root = folder / "image"
        write_image(image, root)
        try:
            check_image(root, records, cut)
        except (AssertionError, FiretrailError) as error:
            error.add_note(f"{snapshot.label}: {label}")
            raise
        shutil.rmtree(root)


def check_image(root: Path, records: dict[int, bytes], cut: LogCut) -> None:
    """Recover a store whose truncation was interrupted, look for every record, truncate again."""
    Store.open(root, CONFIG).close()
    left = records_in(root)
    assert list(left.items()) == list(records.items())[: len(left)]
    assert len(left) >= KEPT
    kept = dict(left)
    for copy in root.glob("dropped-*Z"):
        kept |= records_in(copy)
    assert kept == records
    truncate_store(SYSTEM, root, cut)
    report = checked(root)
    assert report.ok, report.problems
    with Store.open(root, CONFIG) as store:
        assert not store.recovery.clean
        assert store.log_range[1] == cut.end
    assert check_files(root, SLOTS) == KEPT


@pytest.mark.parametrize("closed", [True, False])
def test_an_interrupted_truncation_loses_nothing_and_can_be_repeated(closed: bool) -> None:
    with scratch() as folder:
        survey(folder, closed=closed)


def nothing_copied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(truncation, "set_aside", lambda *args: None)


def copied_too_late(patch: pytest.MonkeyPatch) -> None:
    """The tail is copied after the log was cut."""
    cut = SegmentQueue.truncate
    late: list[tuple[System, Path, DroppedRecords]] = []
    patch.setattr(truncation, "set_aside", lambda *args: late.append(args))

    def truncate(self: SegmentQueue, offset: int) -> int:
        removed = cut(self, offset)
        for arguments in late:
            set_aside(*arguments)
        late.clear()
        return removed

    patch.setattr(SegmentQueue, "truncate", truncate)


def watermark_kept(patch: pytest.MonkeyPatch) -> None:
    """The watermark claims records that are being removed."""
    patch.setattr(truncation, "_shortened", lambda mark, *args: mark)


def counts_as_closed(patch: pytest.MonkeyPatch) -> None:
    """The store is not marked as one to recover."""
    patch.setattr(AbortFile, "create", lambda self, sealed: None)


MUTANTS: list[tuple[str, Patch]] = [
    ("removed records are not copied", nothing_copied),
    ("removed records are copied after the log was cut", copied_too_late),
    ("the watermark claims removed records", watermark_kept),
    ("a store counts as closed while its log is cut", counts_as_closed),
]


@pytest.mark.parametrize(
    "spoil", [mutant[1] for mutant in MUTANTS], ids=[mutant[0] for mutant in MUTANTS]
)
def test_a_wrong_truncation_is_caught(spoil: Patch) -> None:
    with scratch() as folder, pytest.raises((AssertionError, FiretrailError)) as caught:
        survey(folder, closed=True, spoil=spoil)
    assert caught.value.__notes__  # an image shows it
