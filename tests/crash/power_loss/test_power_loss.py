"""A power loss at every operation of a run: recovery finds every promised message.

A workload runs in a simulated world while a snapshot of the disk is kept before each operation on
the file system. Each snapshot gives images of what hardware could leave, and each is opened: with
SYNC_FLUSH no acknowledged message may be missing, with ASYNC_FLUSH no flushed message, and the
messages found must be exactly the first ones that were put. Some images crash again while they are
recovered, and after new messages.
"""

import random

import pytest
from tests.crash.oracle import History
from tests.crash.world.disk import PAGE, SECTOR, Disk, every_image
from tests.crash.world.simulation import (
    DEEP,
    MODES,
    Checker,
    Process,
    few_open_files,
    run_workload,
    scratch,
    survey,
    tiny_config,
)

SEEDS = range(40) if DEEP else range(1)
IMAGES_PER_MOMENT = 4 if DEEP else 1
SHARE = 1.0 if DEEP else 0.5


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_store_survives_power_loss_at_any_moment(mode: str, sealed: bool, seed: int) -> None:
    config = tiny_config(mode, property_crc=sealed)
    source = random.Random(f"{mode} {sealed} {seed}")
    checker = survey(config, seed, source, images_per_moment=IMAGES_PER_MOMENT, share=SHARE)
    print(f"{checker.images} images, {checker.torn_properties} with torn properties")
    assert checker.torn_properties < checker.images / 10


@pytest.mark.parametrize("seed", SEEDS)
def test_power_loss_is_survived_with_few_open_files(seed: int) -> None:
    """More queues than files may be open."""
    with few_open_files():
        survey(
            tiny_config("async"),
            seed,
            random.Random(seed),
            images_per_moment=IMAGES_PER_MOMENT,
            share=1.0 if DEEP else 0.2,
        )


@pytest.mark.parametrize("block", [SECTOR, PAGE])
@pytest.mark.parametrize("mode", MODES)
def test_a_store_survives_the_loss_of_any_single_block(mode: str, block: int) -> None:
    """Each pending change alone is lost, and each alone is kept."""
    config = tiny_config(mode, property_crc=True)
    source = random.Random(f"{mode} {block}")
    with scratch() as folder:
        (folder / "live").mkdir()
        process = Process(Disk(folder / "live"), config, History(), seed=1)
        process.record()
        process.open()
        run_workload(process, source, 60)
        process.close()
        checker = Checker(folder, config)
        moments = process.moments if DEEP else source.sample(process.moments, 4)
        for moment in moments:
            history = moment.history(process.history)
            for how, image in every_image(moment.snapshot, block):
                try:
                    checker.check(image, history, moment.least(process.history))
                except AssertionError as error:
                    error.add_note(f"before {moment.snapshot.label}, {how}")
                    raise
        print(f"{checker.images} images")
