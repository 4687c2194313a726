"""Power cuts while missing queues and index files are derived again."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.oracle import History
from tests.crash.world.disk import Disk, random_image, write_image
from tests.crash.world.simulation import Process, Producer, lists_at_once, scratch, tiny_config
from tests.store.checks import checked
from tests.stores import derived

from firetrail import Message, Store
from firetrail.format.names import INVENTORY
from firetrail.storage.segment_queue import SegmentQueue
from firetrail.store.evidence import inventory
from firetrail.store.evidence.inventory import Inventory, InventoryFile
from firetrail.store.index.index import Index
from firetrail.store.queues.queue_table import QueueTable
from firetrail.store.recovery.recovery import EVERYTHING

MESSAGES = 60
IMAGES = 60
LISTED_QUEUES = 16


def closed_store(folder: Path) -> Disk:
    (folder / "live").mkdir()
    disk = Disk(folder / "live")
    process = Process(disk, tiny_config("async"), History(), seed=1)
    process.open()
    producer = Producer(random.Random(3))
    for _ in range(MESSAGES):
        process.put(producer.message())
    process.close()
    return disk


def survey(folder: Path, spoil: Callable[[], None] = lambda: None) -> None:
    """Lose a queue and an index file, and cut the power at many moments of the next opening.

    The one after that finds or makes all. ``spoil`` is called before the first of them.
    """
    disk = closed_store(folder)
    expected = derived(disk.root)
    spoil()
    process = Process(disk, tiny_config("async"), History(), seed=2)
    lost = sorted((disk.root / "consumequeue/orders/0").iterdir())
    for path in [*lost, sorted((disk.root / "index").iterdir())[0]]:
        process.files.remove(path)
    process.record()
    process.open()
    process.kill()
    source = random.Random(5)
    for moment in sorted(
        source.sample(range(len(process.moments)), min(IMAGES, len(process.moments)))
    ):
        label, image = random_image(process.moments[moment].snapshot, source)
        root = folder / "image"
        write_image(image, root)
        Store.open(root, tiny_config("async")).close()
        assert derived(root) == expected, f"{process.moments[moment].snapshot.label}: {label}"
        assert checked(root).ok
        shutil.rmtree(root)


def test_every_opening_ends_complete() -> None:
    with scratch() as folder:
        survey(folder)


def survey_lists(folder: Path) -> None:
    """Cut the power at many moments of a run in which queues and index files are new all the time.

    What is listed survives: nothing is missed at the next opening.
    """
    (folder / "live").mkdir()
    process = Process(Disk(folder / "live"), tiny_config("async"), History(), seed=4)
    process.record()
    with lists_at_once():
        process.open()
        for number in range(LISTED_QUEUES):
            process.put(Message(f"t{number}", b"x", keys=[f"k{number}", f"n{number}"]))
            process.world.settle()
            process.flush()  # of the log alone
            housekeeper = process.store._engine.housekeeper
            housekeeper.write_watermark(clean=False)
            housekeeper._note_new_files()
            process.world.pause(0.6)
        process.kill()
    assert (process.disk.root / INVENTORY).exists()
    source = random.Random(6)
    for moment in source.sample(process.moments, min(IMAGES, len(process.moments))):
        label, image = random_image(moment.snapshot, source)
        root = folder / "image"
        write_image(image, root)
        with Store.open(root, tiny_config("async")) as store:
            report = store.recovery
            missed = report.restored_queues or report.restored_index
            assert not missed, f"{moment.snapshot.label}: {label}: {report}"
        shutil.rmtree(root)


def test_what_is_listed_survives() -> None:
    with scratch() as folder:
        survey_lists(folder)


def listed_too_early(patch: pytest.MonkeyPatch) -> None:
    """New queues and index files are listed before they are on disk."""
    note_new = InventoryFile.note_new

    def note_at_once(
        self: InventoryFile,
        queues: QueueTable,
        index: Index | None,
        log: SegmentQueue,
        settled: int,
    ) -> None:
        note_new(self, queues, index, log, EVERYTHING)

    patch.setattr(InventoryFile, "note_new", note_at_once)


def test_lists_of_what_is_not_on_disk_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    listed_too_early(monkeypatch)
    with scratch() as folder, pytest.raises(AssertionError, match="RecoveryReport"):
        survey_lists(folder)


def not_noted(patch: pytest.MonkeyPatch) -> None:
    """Do not record which files are being derived again before they are complete."""
    patch.setattr(inventory, "write_inventory", lambda *args: None)


def noted_for_the_queues_alone(patch: pytest.MonkeyPatch) -> None:
    write = inventory.write_inventory

    def write_some(system: object, root: Path, content: Inventory) -> None:
        write(system, root, content._replace(rebuilding_index=False))  # type: ignore[arg-type]

    patch.setattr(inventory, "write_inventory", write_some)


@pytest.mark.parametrize("mutant", [not_noted, noted_for_the_queues_alone])
def test_mutants_are_found(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        scratch() as folder,
        monkeypatch.context() as patch,
        pytest.raises(AssertionError, match=r"\d+: "),  # at a moment of the opening
    ):
        survey(folder, lambda: mutant(patch))
