"""A replica follows a master in controller mode, over real sockets."""

from pathlib import Path

from tests.client.clusters import until
from tests.helpers import crash_image
from tests.replication.auto_switch_master import controlled_master_in
from tests.replication.logs import log_content
from tests.replication.masters import master_in, replica_in

from firetrail.format.names import OFFSET_MAX
from firetrail.replication.log.epochs import Epoch, EpochFile
from firetrail.replication.replica.follower_status import FollowerState
from firetrail.store.broker_store import BrokerStore
from firetrail.system import SYSTEM


def read(store: BrokerStore) -> int:
    """Return how many messages consumers can see."""
    return store.queues.max_offset("T", 0)


async def test_a_learner_copies_the_log_and_its_epochs(tmp_path: Path) -> None:
    async with controlled_master_in(tmp_path / "m") as (master, port):
        master.fill(100)
        port.epochs = (Epoch(2, 0), Epoch(4, master.store.log.max_offset))
        master.fill(100)
        async with replica_in(tmp_path / "r", master.address) as replica:
            await until(lambda: replica.end == master.store.log.max_offset)
            master.fill(50)
            await until(lambda: replica.end == master.store.log.max_offset)
            await until(lambda: read(replica.store) == 250)
            await until(lambda: port.reports[-1] == replica.end)
            assert replica.follower.status.state is FollowerState.FOLLOWING
        end = master.store.log.max_offset
        assert log_content(tmp_path / "r")[:end] == log_content(tmp_path / "m")[:end]
        assert EpochFile(SYSTEM, tmp_path / "r").epochs == tuple(port.epochs)


async def test_consumers_see_what_the_master_has_confirmed(tmp_path: Path) -> None:
    async with controlled_master_in(tmp_path / "m") as (master, port):
        master.fill(10)
        port.confirmed = master.store.log.max_offset
        master.fill(10)
        async with replica_in(tmp_path / "r", master.address) as replica:
            await until(lambda: port.reports[-1:] == [master.store.log.max_offset])
            await until(lambda: read(replica.store) == 10)
            assert replica.store.embedded.dispatch_behind > 0
            replica.store.configure(flush_interval_ms=100)  # acknowledgements are computed again
            assert replica.store.log.confirmed_offset == port.confirmed
            port.confirmed = master.store.log.max_offset
            await until(lambda: read(replica.store) == 20)


async def test_a_learner_does_not_follow_another_history(tmp_path: Path) -> None:
    """The list of epochs alone would not tell: both masters wrote in epoch 1."""
    async with controlled_master_in(tmp_path / "m") as (master, _):
        master.fill(10)
        crash_image(tmp_path / "m", tmp_path / "older")
        master.fill(10, "lost")
        async with replica_in(tmp_path / "r", master.address) as replica:
            await until(lambda: replica.end == master.store.log.max_offset)
    before = log_content(tmp_path / "r")
    async with controlled_master_in(tmp_path / "older") as (older, port):
        older.fill(50, "other")
        async with replica_in(tmp_path / "r", older.address) as replica:
            await until(lambda: replica.follower.status.state is FollowerState.DIVERGED)
            error = replica.follower.status.error
            assert f"firetrail replica rewind STORE --of {older.address.broker}" in error
            assert not port.reports
    assert log_content(tmp_path / "r") == before


async def test_a_classic_master_confirms_nothing(tmp_path: Path) -> None:
    """A replica that was a learner before dispatches everything again."""
    async with master_in(tmp_path / "m") as master:
        master.fill(10)
        async with replica_in(tmp_path / "r", None) as replica:
            replica.store.log_copy().confirm(0)
            replica.follower.follow(master.address)
            await until(lambda: read(replica.store) == 10)
            assert replica.store.log.confirmed_offset == OFFSET_MAX
