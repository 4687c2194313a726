"""Decisions of operators about a lost past, as members see them that were asked, away, or not."""

import pytest
from tests.replication.simulated_engine import TIMING

from firetrail.broker.replica.group_recovery import decided_set
from firetrail.errors import RequestError
from firetrail.remoting.messages.replica_headers import RecoverGroupHeader
from firetrail.replication.group.election import Election
from firetrail.replication.group.group_check import StateConflict, restored_set
from firetrail.replication.group.group_memory import GroupMemory
from firetrail.replication.group.group_view import GroupView, InSyncSet, LeaseHolder, MemberReport
from firetrail.replication.log.epochs import NUMBER_MAX

EVERY = frozenset({1, 2, 3})
ONE = frozenset({1})


def after(state: InSyncSet, versions: int) -> InSyncSet:
    for _ in range(versions):
        state = state.next(state.members, 0)
    return state


def memory_of(state: InSyncSet) -> GroupMemory:
    """Return what a member keeps that has seen a state last."""
    election = Election(3, TIMING, may_found=False)
    election.observe(GroupView(1, None, state))
    return election.memory


def decided(own: GroupMemory, others: list[GroupMemory], asked: str) -> InSyncSet:
    """Return what ``firetrail replica recover-group`` leaves if member 1 is chosen."""
    every = [own, *others]
    ids = " ".join(each.last_id for each in others)
    version, epoch = max(m.version for m in every), max(m.epoch for m in every)
    return decided_set(1, own, 0, RecoverGroupHeader(ids, version, epoch, asked))


def member_3(memory: GroupMemory, state: InSyncSet) -> Election:
    """Return the election of a member that has seen something, and sees a state now."""
    election = Election(3, TIMING, may_found=False, memory=memory)
    election.observe(GroupView(7, None, state))
    return election


def conflict(election: Election) -> StateConflict | None:
    return election.refusal.doubt if election.refusal is not None else None


@pytest.mark.parametrize("versions", [3, 250, 254, 300])
@pytest.mark.parametrize("away", [0, 5, 300])
def test_who_was_asked_follows_whenever_it_comes_back(versions: int, away: int) -> None:
    past = after(InSyncSet(EVERY, 0, 0), versions)
    own = memory_of(past)
    other = memory_of(after(past, 2))  # the other past, which gives way
    state = after(decided(own, [other], "1 3"), away)
    election = member_3(other, state)
    assert conflict(election) is None
    assert election.memory.may_truncate and not election.memory.was_excluded


def test_who_was_not_asked_keeps_its_messages() -> None:
    past = after(InSyncSet(EVERY, 0, 0), 3)
    own, more = memory_of(past), memory_of(after(past, 1))
    for away in (0, 5, 300):
        election = member_3(more, after(decided(own, [own], "1 2"), away))
        assert conflict(election) is StateConflict.DECIDED_WITHOUT
        assert election.refusal is not None
        assert "an operator has decided without this member" in election.refusal.reason
        assert "replica replace" in election.refusal.reason
        assert not election.memory.may_truncate


def test_who_was_not_asked_and_has_seen_no_more_follows_but_cuts_nothing_confirmed() -> None:
    past = after(InSyncSet(EVERY, 0, 0), 3)
    own = memory_of(past)
    election = member_3(own, decided(own, [own], "1 2"))
    assert conflict(election) is None
    assert election.memory.was_excluded and not election.memory.may_truncate
    election.followed()
    assert not election.memory.was_excluded


def test_who_has_seen_a_decision_cuts_nothing_because_of_it_later() -> None:
    past = after(InSyncSet(EVERY, 0, 0), 3)
    own = memory_of(past)
    state = decided(own, [own], "1 3")
    election = member_3(own, state)
    election.followed()
    election.observe(GroupView(8, None, after(state, 1)))
    assert conflict(election) is None and not election.memory.may_truncate


def test_a_report_of_who_was_not_asked_stops_nobody() -> None:
    past = after(InSyncSet(EVERY, 0, 0), 3)
    own = memory_of(past)
    state = decided(own, [own], "1 2")
    for more in (0, 1, 5):
        report = MemberReport(memory_of(after(past, more)), 900)
        for member in (1, 2):
            election = Election(member, TIMING, may_found=False, memory=memory_of(state))
            election.observe(GroupView(7, None, state, reports={3: report}))
            assert conflict(election) is None, more


def test_who_has_seen_the_decision_is_heard_again() -> None:
    past = after(InSyncSet(EVERY, 0, 0), 3)
    own = memory_of(past)
    state = decided(own, [own], "1 2")
    report = MemberReport(memory_of(after(state, 1)), 900)  # etcd went back after the decision
    election = Election(2, TIMING, may_found=False, memory=memory_of(state))
    election.observe(GroupView(7, None, state, reports={3: report}))
    assert conflict(election) is StateConflict.OLDER


def test_a_second_decision_asks_who_was_left_out() -> None:
    past = after(InSyncSet(EVERY, 0, 0), 3)
    own, more = memory_of(past), memory_of(after(past, 1))
    first = decided(own, [own], "1 2")
    second = decided(memory_of(first), [more], "1 3")
    election = member_3(more, second)
    assert conflict(election) is None and election.memory.may_truncate


def test_a_decision_names_members_by_numbers() -> None:
    with pytest.raises(RequestError, match="'1 x' are not numbers of members"):
        decided(memory_of(after(InSyncSet(EVERY, 0, 0), 1)), [], "1 x")


def test_epochs_do_not_run_out_because_of_the_revisions_of_the_engine() -> None:
    election = Election(1, TIMING, may_found=True)
    state = after(InSyncSet(ONE, 0, 0), 1)
    for revision in (NUMBER_MAX // 2, NUMBER_MAX - 1999, NUMBER_MAX - 500, NUMBER_MAX, 1 << 40):
        election.observe(GroupView(revision, None, state))
        asked = election.campaign("token", 0.0, 0)
        assert state.lineage.epoch < asked.proposed.lineage.epoch < NUMBER_MAX // 2 + 9000
        holder = LeaseHolder(2, "", "", "other", revision)
        state = InSyncSet(ONE, 0, revision, asked.proposed.lineage)
        election.observe(GroupView(revision, holder, state))


def test_a_lost_group_begins_at_what_all_know_to_be_confirmed() -> None:
    """An older copy of a member would else be elected alone, before the next note."""
    seen = memory_of(after(InSyncSet(EVERY, 0, 0), 3))
    ends = {1: (900, 880), 2: (900, 800), 3: (850, 850)}
    found = restored_set({n: MemberReport(seen, *each) for n, each in ends.items()})
    assert found is not None
    creator, base = found
    assert (creator, base.members, base.offset) == (1, EVERY, 800)
    old = Election(3, TIMING, may_found=False, memory=seen)
    old.observe(GroupView(9, None, base.next(base.members, base.offset, 2001)))
    assert conflict(old) is None
    assert "its disk was replaced or restored" in old.campaign_obstacle(799)
    assert "its disk was replaced or restored" not in old.campaign_obstacle(800)
