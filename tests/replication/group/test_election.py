"""Elections: who may campaign, how long a holder acknowledges, and whole simulated groups."""

from collections import Counter

import pytest
from tests.replication.simulated_engine import TIMING
from tests.replication.simulated_group import World

from firetrail.replication.group.election import Election, LeaseTiming
from firetrail.replication.group.group_view import GroupView, InSyncSet, LeaseHolder

EMPTY = GroupView(1, None, None)
SEEDS = 6


def held_by(member: int, token: str, epoch: int, revision: int | None = None) -> GroupView:
    holder = LeaseHolder(member, "127.0.0.1:10911", "127.0.0.1:10912", token, epoch)
    return GroupView(revision or epoch, holder, InSyncSet(frozenset({member}), 0, epoch))


def free(revision: int, members: set[int], offset: int = 0) -> GroupView:
    return GroupView(revision, None, InSyncSet(frozenset(members), offset, revision))


def won(now: float = 100.0) -> Election:
    election = Election(1, LeaseTiming(10.0), may_found=True)
    election.observe(EMPTY)
    election.campaign("mine", now, 0)
    election.observe(held_by(1, "mine", 5))
    return election


# -- who may campaign ---------------------------------------------------------------------------


def test_a_member_that_knows_nothing_does_not_campaign() -> None:
    election = Election(1, TIMING, may_found=True)
    assert election.campaign_obstacle(0) == "the consensus engine has not answered yet"


def test_only_the_configured_master_founds_a_group() -> None:
    founder, other = (Election(n, TIMING, may_found=n == 1) for n in (1, 2))
    founder.observe(EMPTY)
    other.observe(EMPTY)
    assert founder.campaign_obstacle(0) == ""
    assert other.campaign_obstacle(0) == (
        "the group has no in-sync set yet; the member configured as master creates it"
    )


def test_only_members_of_the_in_sync_set_campaign() -> None:
    inside, outside = (Election(n, TIMING, may_found=True) for n in (2, 3))
    inside.observe(free(7, {1, 2}))
    outside.observe(free(7, {1, 2}))
    assert inside.campaign_obstacle(0) == ""
    assert outside.campaign_obstacle(0) == (
        "its log may lack acknowledged messages: the in-sync set is 1, 2"
    )


def test_a_member_whose_disk_was_replaced_does_not_campaign() -> None:
    election = Election(2, TIMING, may_found=False)
    election.observe(free(7, {1, 2}, offset=4096))
    assert election.campaign_obstacle(4096) == ""
    assert election.campaign_obstacle(4095) == (
        "its log ends at 4095, but acknowledged messages reach at least to 4096: its disk was "
        "replaced or restored"
    )


def test_only_the_named_successor_campaigns() -> None:
    in_sync = InSyncSet(frozenset({1, 2, 3}), 0, 4)
    two, three = (Election(number, TIMING, may_found=False) for number in (2, 3))
    for election in (two, three):
        election.observe(GroupView(7, None, in_sync, successor=2))
    assert two.campaign_obstacle(0) == ""
    assert three.campaign_obstacle(0) == "member 2 is about to take over"


def test_nobody_campaigns_against_a_holder() -> None:
    election = Election(2, TIMING, may_found=False)
    election.observe(held_by(1, "other", 5))
    assert election.campaign_obstacle(0) == "member 1 holds the lease"


# -- how long a holder acknowledges -------------------------------------------------------------


def test_the_lease_counts_from_the_moment_at_which_the_request_was_sent() -> None:
    election = won(now=100.0)
    assert (election.epoch, election.until) == (5, 108.0)
    assert election.holds(107.9) and not election.holds(108.0)
    election.renewed(sent_at=104.0)
    assert election.until == 112.0


def test_a_renewal_that_overtakes_another_one_does_not_shorten_the_lease() -> None:
    election = won(now=100.0)
    election.renewed(sent_at=106.0)
    election.renewed(sent_at=104.0)
    assert election.until == 114.0


def test_a_late_renewal_that_the_engine_accepts_continues_the_lease() -> None:
    election = won(now=100.0)
    assert not election.holds(109.0)
    election.renewed(sent_at=109.0)
    assert election.epoch == 5 and election.holds(110.0)


def test_a_renewal_is_due_after_a_part_of_the_lease() -> None:
    election = won(now=100.0)
    assert not election.is_renewal_due(101.9) and election.is_renewal_due(102.0)
    election.renewed(sent_at=102.0)
    assert not election.is_renewal_due(103.9) and election.is_renewal_due(104.0)


def test_the_holder_stops_when_the_lease_has_expired_at_the_engine() -> None:
    election = won()
    election.expired()
    assert election.epoch == 0 and not election.holds(100.0)
    election.renewed(sent_at=101.0)
    assert not election.holds(101.0)


@pytest.mark.parametrize(
    "view",
    [free(6, {1}), held_by(2, "other", 6), held_by(1, "mine", 9)],
    ids=["free", "2", "again"],
)
def test_the_holder_stops_when_the_entry_is_not_its_own_any_more(view: GroupView) -> None:
    election = won()
    election.observe(view)
    assert election.epoch == 0 and not election.holds(100.0)


def test_an_older_view_changes_nothing() -> None:
    election = won()
    election.observe(EMPTY)
    election.observe(held_by(2, "other", 4))
    assert election.epoch == 5


def test_an_earlier_process_of_the_same_member_is_somebody_else() -> None:
    election = Election(1, TIMING, may_found=True)
    election.observe(held_by(1, "of the killed process", 5))
    assert election.epoch == 0
    assert election.campaign_obstacle(0) == "member 1 holds the lease"


def test_a_campaign_with_a_lost_answer_is_recognized_when_it_is_seen() -> None:
    election = Election(1, LeaseTiming(10.0), may_found=True)
    election.observe(EMPTY)
    election.campaign("mine", 100.0, 0)
    election.observe(held_by(1, "mine", 5, revision=8))
    assert (election.epoch, election.until) == (5, 108.0)


# -- whole groups, with everything that goes wrong ----------------------------------------------


@pytest.mark.parametrize("least", [1, 2])
def test_at_most_one_member_acknowledges_and_nothing_acknowledged_is_lost(least: int) -> None:
    elections = acknowledged = 0
    for seed in range(SEEDS):
        world = World(seed, least=least)
        world.disturbed_for(25)
        assert world.most_holders == 1, f"seed {seed}"
        assert not world.lost(), f"seed {seed}"
        epochs = [epoch for _, epoch, _ in world.wins]
        assert epochs == sorted(set(epochs)), f"seed {seed}"
        elections += len(epochs)
        acknowledged += len(world.acknowledged)
    assert elections > 25 and acknowledged > 1000


@pytest.mark.parametrize("least", [1, 2])
def test_nothing_acknowledged_is_lost_even_if_clocks_cannot_be_trusted(least: int) -> None:
    two = 0
    for seed in range(SEEDS):
        world = World(seed, least=least, drift=0.9)
        world.disturbed_for(25)
        two += world.most_holders > 1
        assert not world.lost(), f"seed {seed}"
    assert two, "the clocks were not bad enough to show anything"


@pytest.mark.parametrize("least", [1, 2])
def test_planned_changes_lose_nothing_whatever_happens_during_them(least: int) -> None:
    elections = 0
    for seed in range(SEEDS):
        world = World(seed, least=least)
        world.disturbed_for(25, hand_overs=True)
        assert world.most_holders == 1, f"seed {seed}"
        assert not world.lost(), f"seed {seed}"
        elections += len(world.wins)
    assert elections > 50


@pytest.mark.parametrize("least", [1, 2])
def test_farewells_lose_nothing_whatever_happens_to_them(least: int) -> None:
    """They get lost, are repeated, and arrive late: after the next start, and in another epoch."""
    stops = Counter[bool]()
    for seed in range(SEEDS):
        world = World(seed, least=least)
        world.disturbed_for(25, hand_overs=seed % 2 > 0, farewells=True)
        assert world.most_holders == 1, f"seed {seed}"
        assert not world.lost(), f"seed {seed}"
        stops += world.farewells
    assert stops[True] > 10 and stops[False] > 10


def test_nobody_waits_for_a_member_that_has_said_farewell() -> None:
    world = World(1, least=2)
    world.run(30)
    for _ in range(20):
        world.stop_replica()
        world.run(30)
        assert world.engine.in_sync is not None
        assert world.engine.in_sync.members == {1, 2, 3}  # it has joined again
    # Some messages take longer than its patience.
    assert world.farewells[True] > 4 * world.farewells[False]
    assert len(world.wins) == 1 and not world.lost()


def test_the_successor_wins_if_nothing_else_happens() -> None:
    world = World(1, least=2)
    world.run(30)
    for _ in range(10):
        holder = world.engine.holder
        assert holder is not None and world.engine.in_sync is not None
        assert world.engine.in_sync.members == {1, 2, 3}
        successor, won = 1 + holder.member % 3, len(world.wins)
        while len(world.wins) == won:  # it continues if the successor is slow
            world.members[holder.member - 1].leave(successor)
            world.run(5)
        assert world.wins[-1][2] == successor
        world.run(30)
    assert not world.lost()
