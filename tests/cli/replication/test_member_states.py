"""The states of members: every answer of a broker has one, and every state says what to do."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.broker.groups import broker_group
from tests.cli.conftest import Firetrail
from tests.client.clusters import until

from firetrail.cli.clusters import cluster_status
from firetrail.cli.replication import member_states
from firetrail.cli.replication.member_states import (
    ADVICE,
    PAGE,
    GroupStates,
    MemberState,
    MemberView,
    ask_members,
    state_of,
)
from firetrail.remoting.messages.replica_bodies import (
    FollowerReport,
    GroupReport,
    HandOverReport,
    ReplicaStatus,
)
from firetrail.replication.group.group_check import StateConflict
from firetrail.replication.replica.follower_status import FollowerState
from firetrail.store.settings.store_config import BrokerRole

GROUP = GroupReport("a:1", 1, 4, [1, 2], number=2)
MASTER = ReplicaStatus("a:1", "C", "B", 0, "SYNC_MASTER", 4, 0, 600, group=replace(GROUP, number=1))
REPLICA = ReplicaStatus(
    "a:2", "C", "B", 2, "SLAVE", 4, 0, 600, follower=FollowerReport("following", lag=0), group=GROUP
)


def following(**changes: object) -> ReplicaStatus:
    return replace(REPLICA, follower=replace(FollowerReport("following", lag=0), **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "state", "reason"),
    [
        (MASTER, MemberState.MASTER, ""),
        (replace(MASTER, role="ASYNC_MASTER"), MemberState.ASYNCHRONOUS, "it is an ASYNC_MASTER"),
        (replace(MASTER, role="ASYNC_MASTER", group=None), MemberState.MASTER, ""),
        (REPLICA, MemberState.IN_SYNC, ""),
        (replace(REPLICA, group=None), MemberState.FOLLOWING, ""),
        (replace(REPLICA, group=replace(GROUP, in_sync=[1])), MemberState.CATCHING_UP, ""),
        (following(state="checking"), MemberState.CHECKING, ""),
        (following(state="waiting", error="none is known"), MemberState.NO_MASTER, "none is known"),
        (replace(REPLICA, step="it waits"), MemberState.CHANGING_ROLE, "it waits"),
        (replace(REPLICA, hand_over=HandOverReport(remark="x")), MemberState.UNFINISHED, "x"),
        (replace(MASTER, unconfirmed="too few"), MemberState.UNCONFIRMED, "too few"),
        (replace(MASTER, refusal="disk", unconfirmed="x"), MemberState.REFUSING, "disk"),
        (following(state="failed", error="no answer"), MemberState.NOT_FOLLOWING, "no answer"),
        (following(state="stuck", error="deleted"), MemberState.STUCK, "deleted"),
        (following(state="diverged", error="differ"), MemberState.DIVERGED, "differ"),
        (following(missing=5), MemberState.INCOMPLETE, "it has deleted old messages"),
        (replace(MASTER, group=replace(GROUP, error="no etcd")), MemberState.NO_COORDINATOR, "no"),
        (
            replace(MASTER, group=replace(GROUP, error="no room", problem="full-disk")),
            MemberState.FULL_DISK,
            "no room",
        ),
        (
            replace(following(state="diverged"), group=replace(GROUP, older_master="replace it")),
            MemberState.OLDER_MASTER,
            "replace it",
        ),
        (
            replace(following(state="waiting"), group=replace(GROUP, member=0, older_log="ends")),
            MemberState.OLDER_LOG,
            "ends",
        ),
        (
            replace(following(state="diverged", error="cannot be compared"), damaged_records=1),
            MemberState.DAMAGED,
            "1 damaged place in its log, not repaired yet; cannot be compared",
        ),
        (replace(REPLICA, damaged_records=2), MemberState.DAMAGED, "2 damaged places in its log"),
        (replace(MASTER, damaged_records=1), MemberState.MASTER, "1 damaged place in its log"),
        (
            replace(REPLICA, group=replace(GROUP, is_member=False, obstacle="another store")),
            MemberState.FOREIGN_NUMBER,
            "another store",
        ),
        (
            replace(REPLICA, group=replace(GROUP, doubt="coordinator-older", refusal="older")),
            MemberState.COORDINATOR_OLDER,
            "older",
        ),
        (
            replace(REPLICA, group=replace(GROUP, doubt="decided-without", refusal="replace it")),
            MemberState.DECIDED_WITHOUT,
            "replace it",
        ),
    ],
)
def test_an_answer_is_a_state(status: ReplicaStatus, state: MemberState, reason: str) -> None:
    found, why = state_of(status)
    assert found is state
    assert why.startswith(reason) and bool(why) == bool(reason)


def test_a_replica_without_a_master_says_why_it_cannot_be_elected() -> None:
    group = replace(GROUP, holder="", member=0, obstacle="its log may lack messages")
    status = replace(following(state="waiting", error="no master is known"), group=group)
    assert state_of(status) == (MemberState.NO_MASTER, "its log may lack messages")


def test_all_states_of_followers_and_all_doubts_are_states() -> None:
    for state in FollowerState:
        state_of(following(state=state.value))
    for doubt in StateConflict:
        assert MemberState(doubt.value) in ADVICE


def test_every_state_that_is_not_well_says_what_to_do() -> None:
    assert ADVICE.keys() == {*MemberState}
    chosen = {MemberState.ASYNCHRONOUS}  # well if the operator wants it
    assert chosen == {s for s, each in ADVICE.items() if each.is_well and each.what_to_do}
    assert all(each.is_well or each.what_to_do for each in ADVICE.values())


def test_the_exit_code_sums_the_states_up() -> None:
    master = MemberView(1, "a:1", MASTER, MemberState.MASTER, "")
    replica = MemberView(2, "a:2", REPLICA, MemberState.IN_SYNC, "")
    late = replace(replica, state=MemberState.CATCHING_UP)
    refusing = replace(master, state=MemberState.REFUSING)
    down = MemberView(2, "a:2", None, MemberState.DOWN, "no answer")
    for members, code in (
        ([master, replica], 0),
        ([replace(master, state=MemberState.ASYNCHRONOUS), replica], 0),
        ([master, late], 3),
        ([master, down], 3),
        ([refusing, replica], 6),
        ([down, down], 2),
    ):
        assert cluster_status._exit_code(GroupStates(tuple(members))) == code


async def test_all_members_of_a_group_are_asked(tmp_path: Path) -> None:
    async with broker_group(tmp_path) as group:
        addresses = {number: broker.address for number, broker in group.members.items()}

        async def states_of(asked: dict[int, str]) -> dict[int, MemberState]:
            return {view.number: view.state for view in (await ask_members(asked)).members}

        well = {1: MemberState.MASTER, 2: MemberState.IN_SYNC, 3: MemberState.IN_SYNC}
        assert await states_of(addresses) == well
        assert await states_of({-1: addresses[2]}) == well  # a member knows the others
        await group.stop(3)
        assert (await states_of(addresses))[3] is MemberState.DOWN
        group.endpoints[2].cut = True
        await until(lambda: bool(group.members[2].group and group.members[2].group.error))
        assert (await states_of(addresses))[2] is MemberState.NO_COORDINATOR


async def test_a_member_whose_address_nobody_knows_is_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ask(client: object, address: str) -> ReplicaStatus:
        return REPLICA

    monkeypatch.setattr(member_states, "ask_status", ask)
    found = (await ask_members({-1: "a:2"})).members
    states = {view.number: view.state for view in found}
    assert states == {1: MemberState.NOT_ASKED, 2: MemberState.IN_SYNC}


def test_the_table_names_reason_and_remedy(
    firetrail: Firetrail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = (
        MemberView(1, "a:1", MASTER, MemberState.MASTER, ""),
        MemberView(2, "a:2", None, MemberState.DOWN, "a:2: no answer"),
    )

    async def ask(addresses: object) -> GroupStates:
        return GroupStates(views)

    monkeypatch.setattr(cluster_status, "ask_members", ask)
    shown = firetrail("cluster", "status", "127.0.0.1:1")
    assert shown.code == 3
    assert shown.out.splitlines() == [
        "member  address  role    state   epoch  log ends at  behind",
        "     1  a:1      master  master      4          600       -",
        "     2  a:2      -       down        -            -       -",
        "member 2 is down: a:2: no answer",
        f"  what to do: {ADVICE[MemberState.DOWN].what_to_do} ({PAGE}#down)",
    ]
    found = firetrail("cluster", "status", "127.0.0.1:1", "--json").json
    assert (found["master"], found["broker"]) == (1, "B")
    assert found["members"][1]["what_to_do"] == ADVICE[MemberState.DOWN].what_to_do
    assert found["members"][0]["role"] == BrokerRole.SYNC_MASTER.value
