"""Power losses of a master and its replica, with simulated disks and a simulated wire (T6).

The wire is cut at any byte, goes silent and damages bytes, and the disk of the replica fills up.
"""

import random
import shutil
from pathlib import Path

import pytest
from tests.crash.oracle import check_store
from tests.crash.power_loss.pair_survey import pair_survey
from tests.crash.world.disk import PAGE, write_image
from tests.crash.world.pair import Pair, PairConfig, check_same_log, pair_config
from tests.crash.world.simulation import DEEP, Producer, tiny_config

from firetrail.format.names import OFFSET_MAX
from firetrail.store.settings.store_config import BrokerRole

SEEDS = range(40) if DEEP else range(1)
SHARE = 1.0 if DEEP else 0.1


@pytest.mark.parametrize("modes", [("sync", "sync"), ("async", "sync"), ("sync", "async")])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_pair_survives_power_loss_at_any_moment(modes: tuple[str, str], seed: int) -> None:
    config = pair_config(*modes, property_crc=True)
    checker = pair_survey(config, seed, random.Random(f"{modes} {seed}"), SHARE)
    promoted = checker.promoted.images
    print(f"{checker.images} images, {checker.rejoined} rejoined, {promoted} of promotions")
    assert checker.images


def test_a_killed_replica_keeps_records_that_its_master_has_not_sealed(tmp_path: Path) -> None:
    """The replica seals its records, but those of its master, say RocketMQ 4.9, are not."""
    config = PairConfig(
        tiny_config("sync", role=BrokerRole.SYNC_MASTER, in_sync_replicas=2),
        tiny_config("sync", role=BrokerRole.SLAVE, property_crc=True),
    )
    pair = Pair(tmp_path, config, seed=1)
    producer = Producer(random.Random(1))
    with pair.running():
        while pair.master.broker_store.log.max_offset < 10_000:
            pair.master.put(producer.message())
        pair.catch_up()
    snapshot = pair.replica.disk.snapshot()
    write_image(snapshot.image(PAGE, snapshot.pending(PAGE)), tmp_path / "again" / "replica")
    again = Pair(tmp_path / "again", config, seed=2)
    with again.world.replaces_threading():
        store = again.replica.open()
        again.replica.broker_store.log_copy().confirm(OFFSET_MAX)
        check_store(store, pair.history, len(pair.history.messages))
        again.replica.close()


def test_a_replica_that_was_killed_before_its_first_record_begins_where_its_master_does(
    tmp_path: Path,
) -> None:
    """Its first file is there, but retention of the master has deleted that part of the log."""
    config = pair_config("sync", "sync", property_crc=True)
    pair = Pair(tmp_path, config, seed=1)
    producer = Producer(random.Random(1))
    with pair.running():
        while pair.master.broker_store.log.max_offset < 20_000:
            pair.master.put(producer.message())
        pair.catch_up()
        pair.master.store.wait_dispatched()
        assert pair.master.expire()
        pair.close()
    shutil.rmtree(tmp_path / "replica")
    killed = Pair(tmp_path, config, seed=2)
    with killed.world.replaces_threading():
        killed.replica.open()
        killed.replica.broker_store.log.queue.roll(0)
        killed.world.abandon()
        killed.replica._release()
    again = Pair(tmp_path, config, seed=3, history=pair.history)
    with again.running():
        again.catch_up()
        check_same_log(again)
        assert again.replica.store.log_range == again.master.store.log_range
        assert [path.name for path in (tmp_path / "replica" / "commitlog").iterdir()] == [
            f"{again.master.broker_store.log.min_offset:020}"
        ]
        again.close()
    assert not again.errors
