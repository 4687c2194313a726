"""``firetrail replica recover-group``: one decision ends the doubts of all members."""

import asyncio
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.broker.groups import FIRST, LAG_S, LEASE_S, BrokerGroup, broker_group, status_of
from tests.cli.conftest import Firetrail
from tests.client.clusters import until
from tests.replication.fake_etcd import Backup

from firetrail.broker.replica.replicated_broker import replica_status
from firetrail.cli.replication import replica_recover_group
from firetrail.cli.replication.member_states import MemberState, state_of
from firetrail.cli.replication.replica_recover_group import _AskedMember, _decide
from firetrail.errors import FiretrailError
from firetrail.remoting.messages.replica_bodies import GroupReport, ReplicaStatus, SeenReport
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.replication.group import lease_keeper
from firetrail.replication.group.group_check import StateConflict
from firetrail.replication.log.epochs import Epoch
from firetrail.store.settings.store_config import BrokerRole

OK = ResponseCode.SUCCESS


@pytest.fixture(autouse=True)
def frequent_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notice soon that the fake etcd has gone back, without closing connections."""
    monkeypatch.setattr(lease_keeper, "WATCHES_PER_TTL", 10 * LEASE_S)


def addresses(group: BrokerGroup) -> list[str]:
    return [broker.address for broker in group.members.values()]


async def recover(firetrail: Firetrail, group: BrokerGroup, *more: str) -> dict[str, object]:
    """Run the command, which must succeed; its output."""
    arguments = ["replica", "recover-group", *addresses(group), *more, "--json"]
    result = await asyncio.to_thread(firetrail, *arguments)
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert isinstance(found, dict)
    return found


async def all_doubt(group: BrokerGroup) -> None:
    def has_doubts() -> bool:
        every = list(group.members.values())
        return all(status_of(b).refusal and b.role is BrokerRole.SLAVE for b in every)

    await until(has_doubts)


async def test_the_most_advanced_log_is_chosen_and_nothing_is_lost(
    tmp_path: Path, firetrail: Firetrail
) -> None:
    async with broker_group(tmp_path) as group:
        backup = group.etcd.backup()
        await group.stop(3)
        group.clocks[1].pushed_s += LAG_S
        await group.in_sync(1, 2)
        await group.connected(1)
        assert (await group.send(1, b"not on 3")).code == OK
        group.etcd.restore(backup)
        group.end_lease()
        await group.start(3)
        await all_doubt(group)

        planned = await recover(firetrail, group, "--dry-run")
        assert (planned["chosen"], planned["dry_run"]) == (1, True)
        await all_doubt(group)
        done = await recover(firetrail, group, "--yes")
        assert done["chosen"] == 1
        assert [each["removed_bytes"] for each in done["members"]] == [0, 0, 0]  # type: ignore
        assert await group.master() == 1
        await group.in_sync(1, 2, 3)
        await group.connected(1)
        assert (await group.send(1, b"two")).code == OK
        for number in (1, 2, 3):
            await group.has(number, b"not on 3", b"two")


async def test_a_member_that_is_lost_has_to_be_named(tmp_path: Path, firetrail: Firetrail) -> None:
    async with broker_group(tmp_path) as group:
        assert (await group.send(1, b"one")).code == OK
        await group.stop(3)
        group.etcd.restore(Backup())
        await all_doubt(group)
        arguments = ["replica", "recover-group", *addresses(group)]
        result = await asyncio.to_thread(firetrail, *arguments, "--yes")
        assert result.code == 2 and "member 3 was not asked" in result.err
        assert "--without 3" in result.err
        result = await asyncio.to_thread(firetrail, *arguments, "--without", "3")
        assert result.code == 2 and "add --yes to confirm" in result.err
        await recover(firetrail, group, "--without", "3", "--yes")
        master = await group.master()
        await group.in_sync(1, 2)
        await group.connected(master)
        assert (await group.send(master, b"two")).code == OK
        await group.start(3)
        await group.has(3, b"one", b"two")


async def test_a_member_that_was_left_out_does_not_stop_the_others(
    tmp_path: Path, firetrail: Firetrail
) -> None:
    async with broker_group(tmp_path) as group:
        assert (await group.send(1, b"one")).code == OK
        await group.knows_confirmed(3)
        backup = group.etcd.backup()
        for number in (1, 2):
            group.cut_off(number)
        group.end_lease()
        assert await group.master() == 3  # it sees a version that the others do not see
        await group.stop(3)
        group.etcd.restore(backup)
        group.end_lease()
        group.edit_in_sync([2])
        for number in (1, 2):
            group.endpoints[number].cut = False
        await all_doubt(group)
        await recover(firetrail, group, "--without", "3", "--yes")
        master = await group.master()
        await group.in_sync(1, 2)
        await group.connected(master)

        await group.start(3)

        def is_left_out() -> bool:
            refusal = status_of(group.members[3]).refusal
            return refusal is not None and refusal.doubt is StateConflict.DECIDED_WITHOUT

        await until(is_left_out)
        await until(lambda: group.keys() >= {"reports/3"})
        await asyncio.sleep(1)  # the others hear it
        assert not any(status_of(group.members[number]).refusal for number in (1, 2))
        assert (await group.send(master, b"two")).code == OK
        await group.has(3, b"one")
        again = await asyncio.to_thread(
            firetrail, "replica", "recover-group", *addresses(group), "--yes"
        )
        assert again.code == 2
        assert "goes on without a further decision. member 3: an operator has decided" in again.err


async def test_a_member_that_was_left_out_keeps_what_was_confirmed(
    tmp_path: Path, firetrail: Firetrail
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
        group.edit_in_sync([2])
        await group.start(2)
        await all_doubt(group)
        await recover(firetrail, group, "--without", "1", "--without", "3", "--yes")
        await group.master()

        member = await group.start(3)
        await until(lambda: bool(status_of(member).older_master))
        state, reason = state_of(replica_status(member, "", "", None))
        assert state is MemberState.DECIDED_WITHOUT
        assert "an operator has decided without this member" in reason
        assert "'firetrail replica replace'" in reason
        assert [record.body for record in member.store.read("T1")][-2:] == [FIRST, b"later"]


async def test_an_operator_can_choose_a_shorter_log_and_the_rest_is_kept_aside(
    tmp_path: Path, firetrail: Firetrail
) -> None:
    async with broker_group(tmp_path, members=2) as group:
        await group.stop(2)
        answer = await group.send(1, b"only on 1")
        assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
        group.edit_in_sync([2])
        await group.start(2)
        await all_doubt(group)
        # The command waits for the end of the lease, which nobody renews.
        asyncio.get_running_loop().call_later(1.0, group.end_lease)
        done = await recover(firetrail, group, "--choose", "2", "--yes")
        assert done["members"][0]["removed_bytes"] > 0  # type: ignore[index]
        assert done["members"][0]["removed_confirmed_bytes"] == 0  # type: ignore[index]
        assert await group.master() == 2
        await group.in_sync(1, 2)
        await group.connected(2)
        assert (await group.send(2, b"two")).code == OK
        await group.has(1, b"two")
        assert list((tmp_path / "1").glob("dropped-*"))


async def test_a_group_without_doubts_is_left_alone(tmp_path: Path, firetrail: Firetrail) -> None:
    async with broker_group(tmp_path, members=2) as group:
        arguments = ["replica", "recover-group", *addresses(group), "--yes"]
        result = await asyncio.to_thread(firetrail, *arguments)
        assert result.code == 2 and "nothing to recover" in result.err


# -- which log is chosen --------------------------------------------------------------------------


def member(
    number: int,
    end: int,
    version: int,
    in_sync: Sequence[int],
    history: Sequence[str] = (),
    confirmed: int = -1,
) -> _AskedMember:
    seen = SeenReport("g", version, f"v{version}", 1001, list(in_sync), [1, 2, 3], list(history))
    group = GroupReport(number=number, doubt="coordinator-older", seen=seen)
    status = ReplicaStatus(f"h{number}:1", "C", "B", number, "SLAVE", 1001, 0, end, group=group)
    status = replace(status, confirmed_offset=confirmed)
    return _AskedMember(status, group, seen, (Epoch(1001, 0),))


def test_a_longer_log_that_was_not_in_sync_is_not_chosen() -> None:
    one, two = member(1, 500, 7, [1], ["v6", "v7"]), member(2, 900, 6, [1, 2])
    decision = _decide([one, two], None)
    assert (decision.chosen, decision.lost) == (one, [(two, 400)])


def test_pasts_that_differ_need_a_choice(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = member(1, 500, 7, [1], ["v6", "v7"]), member(2, 900, 9, [2], ["v8", "v9"])
    with pytest.raises(FiretrailError, match="different pasts"):
        _decide([one, two], None)
    assert "h1:1" in capsys.readouterr().err
    assert _decide([one, two], 1).chosen is one


def test_a_number_that_was_not_asked_cannot_be_chosen() -> None:
    with pytest.raises(FiretrailError, match="member 3 is none of those"):
        _decide([member(1, 500, 7, [1], ["v7"])], 3)


def test_every_member_is_named_once() -> None:
    one = member(1, 500, 7, [1], ["v7"])
    with pytest.raises(FiretrailError, match="the same member"):
        _decide([one, one], None)


def test_the_table_names_all_members() -> None:
    one, two = member(1, 500, 7, [1], ["v6", "v7"]), member(2, 900, 6, [1, 2])
    lines = replica_recover_group._lines(_decide([one, two], None))
    assert lines[-3:] == [
        "the log of member 1 will be the group's",
        "member 2 removes at most 400 B of its log, which member 1 lacks, and keeps a copy",
        "  it may have acknowledged messages: the member does not tell what was confirmed",
    ]


def test_epochs_of_different_pasts_prove_nothing() -> None:
    """A member that was restored together with etcd begins its former epoch again."""
    one = member(1, 900, 7, [1], ["v5", "w6", "v7"])
    two = member(2, 900, 6, [1, 2], ["v5", "v6"], confirmed=900)
    decision = _decide([one, two], 1)
    assert decision.lost == [(two, replica_recover_group.UNKNOWN)]
    assert replica_recover_group._lines(decision)[-2:] == [
        "member 2 removes an unknown part of its log, which member 1 lacks, and keeps a copy",
        "  it may have acknowledged messages: the two logs cannot be compared by their epochs",
    ]


def test_a_member_that_has_seen_more_than_the_chosen_one_has_the_same_past() -> None:
    one = member(1, 500, 6, [1], ["v5", "v6"])
    two = member(2, 900, 7, [1, 2], ["v5", "v6", "v7"])
    assert _decide([one, two], 1).lost == [(two, 400)]


@pytest.mark.parametrize(
    ("confirmed", "lost", "line"),
    [
        (900, 400, "  ACKNOWLEDGED MESSAGES ARE LOST: 400 B of that were confirmed"),
        (1000, 400, "  ACKNOWLEDGED MESSAGES ARE LOST: 400 B of that were confirmed"),
        (600, 100, "  ACKNOWLEDGED MESSAGES ARE LOST: 100 B of that were confirmed"),
        (500, 0, "  nothing of that was confirmed"),
        (0, 0, "  nothing of that was confirmed"),
    ],
)
def test_a_choice_says_whether_acknowledged_messages_are_lost(
    confirmed: int, lost: int, line: str
) -> None:
    one = member(1, 500, 7, [1], ["v6", "v7"])
    two = member(2, 900, 6, [1, 2], confirmed=confirmed)
    decision = _decide([one, two], None)
    assert decision.chosen.lacks_confirmed(two) == lost
    assert replica_recover_group._lines(decision)[-1] == line
