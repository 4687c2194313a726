"""Seeded bugs of elections: the simulated groups must catch each."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from tests.replication.simulated_group import Member, World

from firetrail.replication.group.election import Election
from firetrail.replication.group.group_view import SetChange
from firetrail.replication.group.in_sync_members import InSyncMembers
from firetrail.replication.group.precedence import Precedence

ATTEMPTS = 4
Patch = Callable[[pytest.MonkeyPatch], None]
Scene = Callable[[World], None]


def clock_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Election, "holds", lambda self, now: self.epoch > 0)


def without_obstacle(*texts: str) -> Patch:
    def apply(patch: pytest.MonkeyPatch) -> None:
        def campaign_obstacle(self: Election, log_end: int) -> str:
            found = original(self, log_end)
            return "" if any(text in found for text in texts) else found

        original = Election.campaign_obstacle
        patch.setattr(Election, "campaign_obstacle", campaign_obstacle)

    return apply


def never_yields(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Precedence, "is_left_to_others", lambda self, now, log, view: False)


def any_is_longest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Precedence, "_is_longest", lambda self, end, others, view: True)


def requires(found: Callable[[InSyncMembers], frozenset[int]]) -> Patch:
    def apply(patch: pytest.MonkeyPatch) -> None:
        def required(self: InSyncMembers) -> frozenset[int]:
            return found(self) - {self._member}

        patch.setattr(InSyncMembers, "required", property(required))

    return apply


_required = InSyncMembers.required.fget  # type: ignore[attr-defined]


def first_only(members: InSyncMembers) -> frozenset[int]:
    return frozenset(sorted(_required(members))[:1])


def not_those_that_leave(members: InSyncMembers) -> frozenset[int]:
    change = members._change
    return change.members if change is not None else _required(members)


def not_those_that_say_farewell(patch: pytest.MonkeyPatch) -> None:
    def step(self: InSyncMembers, now: float, *known: Any) -> SetChange | None:
        leaving[self] = frozenset(known[3])
        return original(self, now, *known)

    leaving: dict[InSyncMembers, frozenset[int]] = {}
    original = InSyncMembers.step
    patch.setattr(InSyncMembers, "step", step)
    requires(lambda members: _required(members) - leaving.get(members, frozenset()))(patch)


def not_those_that_join(members: InSyncMembers) -> frozenset[int]:
    change = members._change
    return members.committed.members | (change.members if change is not None else frozenset())


# -- scenes -----------------------------------------------------------------------------------


def random_torments(world: World) -> None:
    world.disturbed_for(25)


def wait(world: World, holds: Callable[[], bool]) -> None:
    over_at = world.now + 60
    while not holds():
        assert world.now < over_at, "the scene was not reached"
        world.run(0.01)


def in_sync(world: World) -> set[int]:
    found = world.engine.in_sync
    return set(found.members) if found is not None else set()


def cut_off(world: World, *members: Member) -> None:
    """Cut members off from the engine and from all other members."""
    for member in members:
        for number in {0, 1, 2, 3} - {member.number}:
            world.cut.add(frozenset((member.number, number)))


def in_sync_group(world: World) -> tuple[Member, Member, Member]:
    """Return the master and the two others when all are in the set."""
    wait(world, lambda: in_sync(world) == {1, 2, 3})
    assert world.engine.holder is not None
    master = world.members[world.engine.holder.member - 1]
    one, other = (member for member in world.members if member is not master)
    return master, one, other


def rejoined(world: World, master: Member, member: Member) -> None:
    """Let a member leave the set, so that the next change of the set is that it joins again."""
    link = frozenset((master.number, member.number))
    world.cut.add(link)
    wait(world, lambda: member.number not in in_sync(world))
    world.cut.discard(link)


def lost_leave(world: World) -> None:
    """The request to remove members that lag gets lost, and then the master is lost."""
    master, *others = in_sync_group(world)
    engine = world.engine
    engine.change_in_sync = lambda change: engine.view()  # type: ignore[method-assign]
    for other in others:
        world.cut.add(frozenset((master.number, other.number)))
    world.run(10)
    cut_off(world, master)
    wait(world, lambda: any(other.holds for other in others))
    del engine.change_in_sync
    world.heal()
    world.run(60)


def lost_farewell(world: World) -> None:
    """A member says farewell, and is down; before the engine knows it, the master is lost."""
    master, member, other = in_sync_group(world)
    engine = world.engine
    engine.change_in_sync = lambda change: engine.view()  # type: ignore[method-assign]
    member.stops_by = world.now + 2.0
    wait(world, lambda: member.stops_by == math.inf)
    member.paused_until = world.now + 3.0
    world.run(3.0)
    cut_off(world, master, other)
    del engine.change_in_sync
    wait(world, lambda: member.holds)
    world.heal()
    world.run(60)


def early_join(world: World) -> None:
    """A member stalls when it may join, joins a moment later, and becomes the master."""
    master, member, other = in_sync_group(world)
    rejoined(world, master, member)
    members = master.members
    assert members is not None
    wait(world, lambda: members._joining.get(member.number) is not None)
    mark = members._joining[member.number]
    assert mark is not None
    world.cut.add(frozenset((master.number, 0)))  # the next request to the engine is late
    wait(world, lambda: len(member.log) >= mark)
    member.fetch = lambda: None  # type: ignore[method-assign]
    wait(world, lambda: master.acks.get(member.number, 0) >= mark)
    world.run(1.0)
    world.heal()
    wait(world, lambda: member.number in in_sync(world))
    cut_off(world, master, other)
    wait(world, lambda: member.holds)
    del member.fetch
    world.heal()
    world.run(60)


def restored_backup(world: World) -> None:
    """A member is restored from a backup, and is the only one that reaches the engine."""
    master, member, other = in_sync_group(world)
    world.run(5)
    rejoined(world, master, member)
    wait(world, lambda: member.number in in_sync(world))
    cut_off(world, master, other)
    member.start()
    del member.log[1:]
    member.confirmed = 1
    world.run(20)
    world.heal()
    world.run(60)


def power_failure(world: World) -> None:
    """A member loses the end of its log, and starts before the others do."""
    master, member, other = in_sync_group(world)
    world.run(5)
    cut_off(world, master, other)
    member.start()
    assert world.engine.in_sync is not None
    del member.log[max(world.engine.in_sync.offset, len(member.log) - 3) :]
    world.run(10)
    world.heal()
    world.run(60)


def all_power_failures(world: World) -> None:
    """All members lose the end of their logs, each another part."""
    members = in_sync_group(world)
    world.run(5)
    world.acknowledged.clear()  # what follows is about what remains
    for lost, member in enumerate(members, 1):
        member.start()
        del member.log[-lost:]
    kept = min(len(member.log) for member in members) + 2
    world.acknowledged += members[0].log[:kept]
    world.run(60)


MUTANTS: list[tuple[str, Patch, Scene, int]] = [
    # name, what is wrong, and the scene and the seed of a run that catch it
    ("a master does not look at the clock of its lease", clock_ignored, random_torments, 0),
    (
        "a member outside the in-sync set is elected",
        without_obstacle("may lack", "its log ends at"),
        random_torments,
        5,
    ),
    ("only one member of the in-sync set is waited for", requires(first_only), random_torments, 15),
    (
        "a member that leaves the set is not waited for until it has left",
        requires(not_those_that_leave),
        lost_leave,
        1,
    ),
    (
        "a member that says farewell is not waited for any more",
        not_those_that_say_farewell,
        lost_farewell,
        0,
    ),
    (
        "a member that joins the set is waited for only when it has joined",
        requires(not_those_that_join),
        early_join,
        3,
    ),
    (
        "a member that was restored from a backup is elected",
        without_obstacle("its log ends at"),
        restored_backup,
        0,
    ),
    ("a member that lacks messages is elected at once", never_yields, power_failure, 0),
    ("the longest of incomplete logs is not preferred", any_is_longest, all_power_failures, 0),
]


@pytest.mark.parametrize(
    ("patch", "scene", "first"),
    [mutant[1:] for mutant in MUTANTS],
    ids=[mutant[0] for mutant in MUTANTS],
)
def test_mutant_is_caught(
    monkeypatch: pytest.MonkeyPatch, patch: Patch, scene: Scene, first: int
) -> None:
    patch(monkeypatch)
    for seed in range(first, first + ATTEMPTS):
        world = World(seed, least=1)
        scene(world)
        if world.most_holders > 1 or world.lost():
            print(f"seed {seed}: {world.most_holders} holders, lost {world.lost()[:3]}")
            return
    raise AssertionError(f"not caught in {ATTEMPTS} runs")


SCENES = [
    *(lost_leave, lost_farewell, early_join, restored_backup),
    *(power_failure, all_power_failures),
]


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("seed", range(2))
def test_without_a_bug_nothing_is_lost(scene: Scene, seed: int) -> None:
    world = World(seed, least=1)
    scene(world)
    assert (world.most_holders, world.lost()) == (1, [])
