"""A former master is rewound to the last record that it has in common with its successor."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.client.clusters import until
from tests.helpers import crash_image, tree
from tests.replication.logs import log_content
from tests.replication.masters import MASTER, FakeMaster, master_in, replica_in
from tests.store.checks import checked
from tests.stores import derived, flip, overwrite, records

from firetrail import Store
from firetrail.broker.roles.failover import rewind_store
from firetrail.errors import (
    DivergedError,
    FiretrailError,
    OlderMasterError,
    ReplicationError,
    StoreLockedError,
    StuckError,
)
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.wire.codes import RequestCode
from firetrail.replication.log.epochs import Epoch, EpochFile
from firetrail.replication.replica.follower_status import FollowerState
from firetrail.replication.replica.master_check import Master
from firetrail.replication.replica.rewind import RewindPlan, RewindResult, plan_rewind, rewind
from firetrail.store.inspect.view import StoreView
from firetrail.system import SYSTEM


@asynccontextmanager
async def asking(master: FakeMaster) -> AsyncIterator[Master]:
    client = RemotingClient()
    try:
        yield Master(client, master.address)
    finally:
        await client.close()


async def rewound(folder: Path, master: FakeMaster) -> RewindResult:
    """Rewind a store."""
    async with asking(master) as asked:
        return await rewind(SYSTEM, folder, asked)


async def two_histories(folder: Path, common: int, old: int, new: int) -> None:
    """Write two stores, ``old`` and ``new``, that have the same first messages."""
    async with master_in(folder / "old") as master:
        master.fill(common, "common")
    crash_image(folder / "old", folder / "new")
    for name, count in (("old", old), ("new", new)):
        async with master_in(folder / name) as master:
            master.fill(count, name)


def bodies(root: Path) -> list[bytes]:
    with Store.open(root, MASTER) as store:
        return [message.body for message in store.read("T")]


@pytest.mark.parametrize(("common", "old", "new"), [(1, 1, 1), (10, 30, 5), (200, 7, 400)])
async def test_a_former_master_is_rewound_and_follows(
    tmp_path: Path, common: int, old: int, new: int
) -> None:
    await two_histories(tmp_path, common, old, new)
    before = records(tmp_path / "old")
    async with master_in(tmp_path / "new") as master:
        master.asked.clear()
        plan, kept = await rewound(tmp_path / "old", master)
        assert master.asked.count(RequestCode.VIEW_MESSAGE_BY_ID) <= 20
        assert plan.cut.last_record == before[common - 1].physical_offset
        assert plan.cut.end == before[common].physical_offset
        assert plan.removed is not None
        assert plan.removed.loss.messages == old
        assert kept is not None and kept.parent == tmp_path / "old"
        with StoreView.open(kept) as view:  # of those, nothing is lost
            assert view.end == plan.own_end
        report = checked(tmp_path / "old")
        assert report.ok, report.problems
        async with replica_in(tmp_path / "old", master.address) as replica:
            await until(lambda: replica.end == master.store.log.max_offset)
            # On a busy machine it may be taken for stuck for a moment.
            await until(lambda: replica.follower.status.state is FollowerState.FOLLOWING)
            replica.store.embedded.wait_dispatched()
        end = master.store.log.max_offset
    assert log_content(tmp_path / "old")[:end] == log_content(tmp_path / "new")[:end]
    assert bodies(tmp_path / "old") == bodies(tmp_path / "new")
    assert derived(tmp_path / "old") == derived(tmp_path / "new")


@pytest.mark.parametrize("hit", range(1, 10))
async def test_a_damaged_record_does_not_hide_what_both_have(tmp_path: Path, hit: int) -> None:
    await two_histories(tmp_path, 10, 5, 5)
    before = records(tmp_path / "old")
    file = next((tmp_path / "old" / "commitlog").iterdir())
    flip(file, before[hit].physical_offset + 90)
    async with master_in(tmp_path / "new") as master, asking(master) as asked:
        plan = await plan_rewind(SYSTEM, tmp_path / "old", asked)
    last = 9 if hit < 9 else 8
    assert plan.cut.last_record == before[last].physical_offset
    assert plan.is_damaged is (hit == 9)


async def test_a_member_with_damage_before_confirmed_messages_does_not_blame_the_master(
    tmp_path: Path,
) -> None:
    await two_histories(tmp_path, 10, 0, 5)
    before = records(tmp_path / "old")
    end = before[-1].physical_offset + before[-1].size
    file = next((tmp_path / "old" / "commitlog").iterdir())
    overwrite(file, before[4].physical_offset, b"\0\0\0\1")  # its size
    log = file.read_bytes()
    async with master_in(tmp_path / "new") as master:
        with pytest.raises(DivergedError, match="of this replica is damaged at offset") as caught:
            await rewind_store(SYSTEM, tmp_path / "old", master.address, None, end)
    assert not isinstance(caught.value, OlderMasterError)
    assert f"at offset {before[4].physical_offset}, so" in str(caught.value)
    assert f"up to {end}, so nothing is removed here; replace the store of this" in str(
        caught.value
    )
    assert file.read_bytes() == log


async def test_a_store_that_was_not_closed_is_rewound(tmp_path: Path) -> None:
    async with master_in(tmp_path / "live") as master:
        master.fill(20, "common")
        crash_image(tmp_path / "live", tmp_path / "new")
        master.fill(20, "old")
        crash_image(tmp_path / "live", tmp_path / "old")
    async with master_in(tmp_path / "new") as master:
        master.fill(50, "new")
        plan, _ = await rewound(tmp_path / "old", master)
        assert plan.removed is not None and plan.removed.loss.messages == 20
    assert bodies(tmp_path / "old") == bodies(tmp_path / "new")[:20]


async def test_a_master_that_is_only_shorter(tmp_path: Path) -> None:
    await two_histories(tmp_path, 10, 10, 0)
    async with master_in(tmp_path / "new") as master:
        plan, _ = await rewound(tmp_path / "old", master)
        assert plan.cut.end == master.store.log.max_offset
    assert len(bodies(tmp_path / "old")) == 10


async def test_nothing_is_removed_from_a_store_that_only_lags(tmp_path: Path) -> None:
    await two_histories(tmp_path, 10, 0, 10)
    before = tree(tmp_path / "old")
    async with master_in(tmp_path / "new") as master:
        plan, kept = await rewound(tmp_path / "old", master)
        assert (plan.removed, kept) == (None, None)
        assert plan.cut.end == plan.own_end
    assert tree(tmp_path / "old") == before


async def test_a_plan_changes_nothing(tmp_path: Path) -> None:
    await two_histories(tmp_path, 10, 10, 10)
    before = tree(tmp_path / "old")
    async with master_in(tmp_path / "new") as master, asking(master) as asked:
        plan = await plan_rewind(SYSTEM, tmp_path / "old", asked)
        assert plan.removed is not None and plan.removed.loss.messages == 10

        def refuse(plan: RewindPlan) -> None:
            raise FiretrailError("no")

        with pytest.raises(FiretrailError, match=r"^no$"):
            await rewind(SYSTEM, tmp_path / "old", asked, refuse)
    assert tree(tmp_path / "old") == before


async def test_epochs_that_are_removed_are_forgotten(tmp_path: Path) -> None:
    await two_histories(tmp_path, 10, 10, 10)
    epochs = EpochFile(SYSTEM, tmp_path / "old")
    end = records(tmp_path / "old")[10].physical_offset
    epochs.append(Epoch(1, 0))
    epochs.append(Epoch(4, end))
    async with master_in(tmp_path / "new") as master:
        await rewound(tmp_path / "old", master)
    assert EpochFile(SYSTEM, tmp_path / "old").epochs == (Epoch(1, 0),)


async def test_stores_without_a_common_record(tmp_path: Path) -> None:
    await two_histories(tmp_path, 0, 10, 10)
    async with master_in(tmp_path / "new") as master:
        with pytest.raises(DivergedError, match=r"at offset 0.*nothing in common; move"):
            await rewound(tmp_path / "old", master)


async def test_a_master_without_messages(tmp_path: Path) -> None:
    await two_histories(tmp_path, 0, 10, 0)
    async with master_in(tmp_path / "new") as master:
        said = f"the broker at {master.address.broker} has no messages, so the two have no record "
        remedy = r"check that it is the right master\. If it is, move the replica's folder away"
        with pytest.raises(DivergedError, match=f"{said}in common; {remedy}"):
            await rewound(tmp_path / "old", master)


async def test_a_master_that_has_deleted_the_common_records(tmp_path: Path) -> None:
    await two_histories(tmp_path, 10, 10, 400)
    async with master_in(tmp_path / "new") as master:
        master.figures["commitLogMinOffset"] = str(2 * MASTER.commit_log_file_size)
        with pytest.raises(StuckError, match=r"deleted everything before 32768.*; move"):
            await rewound(tmp_path / "old", master)


async def test_files_of_another_length(tmp_path: Path) -> None:
    await two_histories(tmp_path, 10, 10, 10)
    async with master_in(tmp_path / "new") as master:
        master.settings["mappedFileSizeCommitLog"] = "1073741824"
        with pytest.raises(ReplicationError, match="16384 bytes, the master's 1073741824"):
            await rewound(tmp_path / "old", master)


async def test_a_store_in_use_is_not_rewound(tmp_path: Path) -> None:
    async with master_in(tmp_path / "old") as old, master_in(tmp_path / "new") as master:
        old.fill(1)
        with pytest.raises(StoreLockedError):
            await rewound(tmp_path / "old", master)


@pytest.mark.parametrize("count", [0, 3])
async def test_nothing_is_removed_from_an_empty_store(count: int, tmp_path: Path) -> None:
    Store.open(tmp_path / "empty", MASTER).close()
    EpochFile(SYSTEM, tmp_path / "empty").append(Epoch(2, 0))  # it was promoted
    async with master_in(tmp_path / "new") as master:
        master.fill(count)
        plan, kept = await rewound(tmp_path / "empty", master)
        assert (plan.cut.last_record, plan.own_end, plan.removed, kept) == (-1, 0, None, None)
        assert EpochFile(SYSTEM, tmp_path / "empty").epochs == ()


async def test_a_topic_that_was_deleted_in_the_removed_part_may_come_again(tmp_path: Path) -> None:
    """The place of a deletion must not lie after the cut, where new messages of the topic come."""
    async with master_in(tmp_path / "old") as master:
        master.fill(10, "common")
    crash_image(tmp_path / "old", tmp_path / "new")
    async with master_in(tmp_path / "old") as master:
        master.fill(50, "old")
        master.store.embedded.wait_dispatched()
        assert master.store.removal.remove("T", master.store.removal.settle())
    async with master_in(tmp_path / "new") as master:
        master.fill(5, "new")
        await rewound(tmp_path / "old", master)
        async with replica_in(tmp_path / "old", master.address) as replica:
            await until(lambda: replica.end == master.store.log.max_offset)
    assert bodies(tmp_path / "old")[-5:] == bodies(tmp_path / "new")[-5:]
