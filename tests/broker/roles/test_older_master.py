"""Members whose logs are older than the group, and are elected only if no other member runs."""

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL
from tests.broker.groups import FIRST, broker_group, status_of
from tests.client.clusters import until
from tests.helpers import crash_image

from firetrail.broker.broker_conf_file import load_entries
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.replica.replicated_broker import replica_status
from firetrail.broker.state.slave_mark import SlaveMark
from firetrail.cli.main import main
from firetrail.cli.replication.member_states import MemberState, state_of
from firetrail.errors import ConfigError
from firetrail.format.files.java_properties import parse_properties
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.replication.group.confirmed_entry import AGE_S
from firetrail.replication.group.lineage import EPOCH_STEP, next_epoch
from firetrail.store.root.confirmed_file import ConfirmedFile
from firetrail.store.root.watermark import read_watermark
from firetrail.store.settings.store_config import BrokerRole
from firetrail.system import SYSTEM

OK = ResponseCode.SUCCESS


async def test_the_others_keep_what_it_lacks_and_name_the_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_group(tmp_path) as group:
        shutil.copytree(tmp_path / "2", tmp_path / "old")
        assert (await group.send(1, b"later")).code == OK
        await group.knows_confirmed(3)
        for number in (1, 2, 3):
            group.cut_off(number)
        for number in (3, 2, 1):
            await group.stop(number)
        group.end_lease()
        shutil.rmtree(tmp_path / "2")
        (tmp_path / "old").rename(tmp_path / "2")

        older = await group.start(2)
        await until(lambda: older.role is not BrokerRole.SLAVE)
        member = await group.start(3)
        await until(lambda: bool(status_of(member).older_master))
        state, reason = state_of(replica_status(member, "", "", None))
        assert state is MemberState.OLDER_MASTER
        assert f"the elected master {older.address} lacks messages" in reason
        assert "'firetrail replica replace'" in reason
        assert reason in caplog.text
        bodies = [record.body for record in member.store.read("T1")]
        assert bodies[-2:] == [FIRST, b"later"]

        await group.stop(2)
        group.end_lease()
        await group.start(1)
        await group.master()
        assert not any(status_of(each).older_master for each in group.members.values())


async def test_a_member_keeps_what_was_confirmed_whatever_its_own_role_is(tmp_path: Path) -> None:
    """That a message is acknowledged is a matter of the group, not of the member that has it."""
    async with broker_group(tmp_path) as group:
        shutil.copytree(tmp_path / "2", tmp_path / "old")
        assert (await group.send(1, b"later")).code == OK
        await group.knows_confirmed(3)
        for number in (1, 2, 3):
            group.cut_off(number)
        for number in (3, 2, 1):
            await group.stop(number)
        group.end_lease()
        shutil.rmtree(tmp_path / "2")
        (tmp_path / "old").rename(tmp_path / "2")

        older = await group.start(2)
        await until(lambda: older.role is not BrokerRole.SLAVE)
        member = await group.start(1, role=BrokerRole.ASYNC_MASTER)
        await until(lambda: bool(status_of(member).older_master))
        bodies = [record.body for record in member.store.read("T1")]
        assert bodies[-2:] == [FIRST, b"later"]


async def test_what_an_async_master_has_stored_alone_is_not_kept_for_ever(tmp_path: Path) -> None:
    """A member that was killed as an ASYNC_MASTER knows that it waited for nobody."""
    async with broker_group(tmp_path, members=1, role=BrokerRole.ASYNC_MASTER) as group:
        master = group.members[1]
        assert (await group.send(1, b"alone")).code == OK
        assert master.store.wait_dispatched()
        crash_image(tmp_path / "1", tmp_path / "killed")
        assert SlaveMark(SYSTEM, tmp_path / "killed").notes.master_role == "ASYNC_MASTER"
        assert master._terms._confirmed_end() == 0


@pytest.mark.parametrize("role", [BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER])
async def test_a_member_that_would_lose_messages_in_a_failover_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, role: BrokerRole
) -> None:
    async with broker_group(tmp_path, members=2, role=role) as group:
        state, reason = state_of(replica_status(group.members[1], "", "", None))
    is_async = role is BrokerRole.ASYNC_MASTER
    assert state is (MemberState.ASYNCHRONOUS if is_async else MemberState.MASTER)
    assert ("acknowledges messages that no replica has" in reason) is is_async
    assert ("set brokerRole=SYNC_MASTER, unless that is wanted" in caplog.text) is is_async


@pytest.mark.parametrize(
    ("lines", "role"),
    [
        ("", BrokerRole.ASYNC_MASTER),
        ("etcd_endpoints=e:2379\nha_member=1\n", BrokerRole.SYNC_MASTER),
        (
            "etcd_endpoints=e:2379\nha_member=1\nbrokerRole=ASYNC_MASTER\n",
            BrokerRole.ASYNC_MASTER,
        ),
        ("etcd_endpoints=e:2379\nha_member=2\nbrokerRole=SLAVE\nbrokerId=2\n", BrokerRole.SLAVE),
    ],
)
def test_a_member_of_a_group_is_an_async_master_only_if_it_asks_for_it(
    lines: str, role: BrokerRole
) -> None:
    assert load_entries(parse_properties(lines, "b.conf")).store.role is role


@pytest.mark.parametrize(("number", "is_valid"), [(999, True), (1000, False), (1001, False)])
def test_numbers_of_members_are_those_that_epochs_tell_apart(number: int, is_valid: bool) -> None:
    if is_valid:
        assert next_epoch(number, 5) % EPOCH_STEP == number
        assert BrokerConfig(ha_member=number).ha_member == number
    else:
        with pytest.raises(ConfigError, match="ha_member"):
            BrokerConfig(ha_member=number)


async def test_killed_members_keep_what_was_confirmed_after_their_watermark(
    tmp_path: Path,
) -> None:
    seldom = SMALL.replace(consume_queue_flush_interval_ms=600_000)
    async with broker_group(tmp_path, store=seldom) as group:
        crash_image(tmp_path / "2", tmp_path / "old")
        assert (await group.send(1, b"later")).code == OK
        end = await group.knows_confirmed(3)
        watermark = read_watermark(SYSTEM, tmp_path / "3")
        assert watermark is not None
        assert watermark.dispatched_offset < end
        crash_image(tmp_path / "3", tmp_path / "killed")
        for number in (1, 2, 3):
            group.cut_off(number)
        for number in (3, 2, 1):
            await group.stop(number)
        group.end_lease()
        for folder, image in (("2", "old"), ("3", "killed")):
            shutil.rmtree(tmp_path / folder)
            (tmp_path / image).rename(tmp_path / folder)

        older = await group.start(2)
        await until(lambda: older.role is not BrokerRole.SLAVE)
        member = await group.start(3)
        assert member.broker_store.log.confirmed_end == end
        await until(lambda: bool(status_of(member).older_master))
        bodies = [record.body for record in member.store.read("T1")]
        assert bodies[-2:] == [FIRST, b"later"]


async def test_a_member_that_lacks_confirmed_messages_lets_a_complete_one_be_elected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_group(tmp_path) as group:
        end = await group.knows_confirmed(2)
        for number in (1, 2, 3):
            group.cut_off(number)
        for number in (3, 2, 1):
            await group.stop(number)
        group.end_lease()
        file = ConfirmedFile(SYSTEM, tmp_path / "2")
        file.note(end + 1)
        file.close()

        short = await group.start(2)
        shortfall = f"the log ends at {end}, but replicas had confirmed it up to {end + 1}"
        assert short.broker_store.shortfall == shortfall
        await until(lambda: f"{shortfall}. Other in-sync members may be" in caplog.text)
        await until(lambda: {"reports/2"} <= group.keys())
        await group.start(3)
        assert await group.master() == 3
        assert (await group.send(3, b"later")).code == OK
        await until(lambda: not short.broker_store.shortfall)
        await until(lambda: not {"reports/2"} & group.keys())


async def test_an_old_copy_is_not_elected_even_if_it_is_alone(tmp_path: Path) -> None:
    async with broker_group(tmp_path) as group:
        crash_image(tmp_path / "2", tmp_path / "old")
        assert (await group.send(1, b"later")).code == OK
        await group.has(3, b"later")
        for _ in range(2):
            group.clocks[1].pushed_s += AGE_S
            await until(lambda: group.members[1].store.refusal == "")
        await until(lambda: {"confirmed"} <= group.keys())
        for number in (1, 2, 3):
            group.cut_off(number)
        for number in (3, 2, 1):
            await group.stop(number)
        group.end_lease()
        shutil.rmtree(tmp_path / "2")
        (tmp_path / "old").rename(tmp_path / "2")

        old = await group.start(2)
        await until(lambda: bool(status_of(old).older_log))
        state, reason = state_of(replica_status(old, "", "", None))
        assert state is MemberState.OLDER_LOG
        assert "but acknowledged messages reach at least to" in reason
        assert old.role is BrokerRole.SLAVE
        await group.start(3)
        assert await group.master() == 3
        await group.has(2, b"later")
        assert not status_of(old).older_log


async def test_an_operator_goes_on_with_an_old_copy_if_nothing_else_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with broker_group(tmp_path, members=2) as group:
        crash_image(tmp_path / "2", tmp_path / "old")
        assert (await group.send(1, b"later")).code == OK
        for _ in range(2):
            group.clocks[1].pushed_s += AGE_S
            await until(lambda: group.members[1].store.refusal == "")
        await until(lambda: {"confirmed"} <= group.keys())
        for number in (1, 2):
            group.cut_off(number)
        for number in (2, 1):
            await group.stop(number)
        group.end_lease()
        shutil.rmtree(tmp_path / "2")
        (tmp_path / "old").rename(tmp_path / "2")

        old = await group.start(2)
        await until(lambda: bool(status_of(old).older_log))
        words = ["replica", "recover-group", old.address, "--without", "1", "--yes"]
        assert await asyncio.to_thread(main, words) == 0
        assert f"member 2 at {old.address} is the master" in capsys.readouterr().out
        assert not status_of(old).older_log
