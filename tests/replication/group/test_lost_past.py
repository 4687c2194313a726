"""The memory of members against the state of the engine, as a table in simulated time.

Each fault is one kind of lost past: of the engine, of a member, or of two members that share one.
It happens with every combination of members that are up, down and behind. Whatever follows, nothing
acknowledged is lost and no two members begin the same epoch. Either the group heals, or its members
refuse and name the reason, and one decision ends it.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from tests.replication.simulated_engine import EngineBackup
from tests.replication.simulated_group import Member, World

from firetrail.broker.replica.group_recovery import decided_set
from firetrail.remoting.messages.replica_headers import RecoverGroupHeader
from firetrail.replication.group import election, group_check
from firetrail.replication.group.confirmed_entry import AGE_S
from firetrail.replication.group.group_check import most_advanced
from firetrail.replication.group.group_memory import NOTHING_SEEN
from firetrail.replication.group.group_view import GroupView, InSyncSet, MemberReport
from firetrail.replication.group.lineage import Lineage

UP, DOWN, BEHIND, AWAY = "up", "down", "behind", "away"
CELLS = list(itertools.product((UP, DOWN), (UP, DOWN, BEHIND), (UP, DOWN, BEHIND, AWAY)))
"""The states of the master and of the two others. A member that was away has seen nothing since the
backup, and runs when the fault happens."""


def lost(world: World, *members: Member) -> list[str]:
    kept = {message for member in members for message in member.log}
    return [message for message in world.acknowledged if message not in kept]


class Case:
    """A group in which one member leads since the backup was taken.

    Attributes:
        old: The state of the engine before the last election.
        master: The member that was elected since.
        others: The other members.
        states: Which of them are up, down or behind.
    """

    def __init__(self, least: int, states: tuple[str, str, str], calm_s: float = 3) -> None:
        self.world = world = World(1, least=least)
        self.states = states
        self._until(lambda: self._in_sync() == {1, 2, 3})
        self.old = world.engine.backup()
        self.old_memory = {member.number: member.memory for member in world.members}
        if states[2] == AWAY:
            self._stop(world.members[2], 40 + calm_s)
        self._stop(world.members[0], 7)
        self._until(lambda: any(m.holds and m.number != 1 for m in world.members))
        self.master = next(member for member in world.members if member.holds)
        self.others = [member for member in world.members if member is not self.master]
        present = {1, 2} if states[2] == AWAY else {1, 2, 3}
        self._until(lambda: self._in_sync() == present and self.master.holds)
        self._fall_behind()
        world.run(calm_s)
        for member, state in self._with_states():
            if state == DOWN:
                self._stop(member, 40)
            elif state == AWAY:
                member.paused_until = 0

    def _with_states(self) -> list[tuple[Member, str]]:
        return list(zip([self.master, *self.others], self.states, strict=True))

    def _in_sync(self) -> set[int]:
        found = self.world.engine.in_sync
        return set(found.members) if found is not None else set()

    def _until(self, holds: Callable[[], bool]) -> None:
        over_at = self.world.now + 60
        while not holds():
            assert self.world.now < over_at, "the scene was not reached"
            self.world.run(0.05)

    def _fall_behind(self) -> None:
        world, master = self.world, self.master
        behind = {member.number for member, state in self._with_states() if state == BEHIND}
        world.cut |= {frozenset((number, master.number)) for number in behind}
        left = max(world.least, len(self._in_sync()) - len(behind))
        self._until(lambda: len(self._in_sync()) <= left)

    def _stop(self, member: Member, seconds: float) -> None:
        member.start()
        member.paused_until = self.world.now + seconds

    def restart(self, member: Member) -> None:
        member.start()

    def settle(self) -> None:
        """Let the members act on the fault, then let all of them run and reach each other."""
        self.world.run(30)
        self.world.heal()
        self.world.run(40)

    # -- the outcome --------------------------------------------------------------------------

    def holders(self) -> list[Member]:
        return [member for member in self.world.members if member.holds]

    def reasons(self) -> list[str]:
        """The reasons why members do not take part; empty texts for those that do."""
        refusals = [member.election.refusal for member in self.world.members]
        return [
            member.obstacle or (refusal.reason if refusal else "")
            for member, refusal in zip(self.world.members, refusals, strict=True)
        ]

    def decide(self, complete: list[Member]) -> None:
        """Do what ``firetrail replica recover-group`` does with all members.

        If they have different pasts, the operator chooses a member that is complete.
        """
        world = self.world
        members = {m.number: m for m in world.members if not m.obstacle}
        reports = {n: MemberReport(m.memory, len(m.log)) for n, m in members.items()}
        chosen = members[most_advanced(reports)]
        if any(m.memory.last_id not in chosen.memory.history for m in members.values()):
            chosen = complete[0]
        header = RecoverGroupHeader(
            " ".join({m.memory.last_id for m in members.values()}),
            max(m.memory.version for m in members.values()),
            max(m.memory.epoch for m in members.values()),
            " ".join(map(str, members)),
        )
        decided = decided_set(chosen.number, chosen.memory, len(chosen.log), header)
        world.engine.recover(world.engine.in_sync, decided)
        world.run(30)


# -- the faults -------------------------------------------------------------------------------


def engine_lost(case: Case) -> None:
    case.world.engine.restore(EngineBackup())


def engine_older(case: Case) -> None:
    case.world.engine.restore(case.old)


def engine_older_and_free(case: Case) -> None:
    case.world.engine.restore(replace(case.old, holder=None))


def engine_of_another_group(case: Case) -> None:
    world, members = case.world, frozenset({1, 2, 3})
    lineage = Lineage()
    for _ in range(9):
        lineage = lineage.continued(members, 0, 5001)
    assert case.old.in_sync is not None
    foreign = replace(case.old.in_sync, members=members, offset=0, lineage=lineage)
    world.engine.restore(replace(case.old, holder=None, in_sync=foreign))


def engine_edited(case: Case) -> None:
    case.world.engine.edit({1, 2, 3} if case._in_sync() != {1, 2, 3} else {1})


def engine_without_set(case: Case) -> None:
    engine = case.world.engine
    engine.revision += 1
    engine.in_sync = None


def memory_lost(case: Case) -> None:
    """The file of a member is lost, and its identity with it."""
    member = case.others[0]
    member.memory, member.identity = NOTHING_SEEN, "another store"
    case.restart(member)


def memory_older(case: Case) -> None:
    member = case.others[0]
    member.memory = case.old_memory[member.number]
    case.restart(member)


def memory_copied(case: Case) -> None:
    """A member has the file of another one."""
    member = case.others[0]
    member.memory = case.others[1].memory
    case.restart(member)


def folder_copied(case: Case) -> None:
    """A member has lost its disk, and got a copy of the folder of another one."""
    one, other = case.others
    one.log, one.memory = list(other.log), other.memory
    one.identity, one.confirmed = other.identity, other.confirmed
    case.restart(one)


def log_older(case: Case) -> None:
    """The folder of a member is restored from a copy that is newer than the in-sync set."""
    member, in_sync = case.others[0], case.world.engine.in_sync
    assert in_sync is not None
    del member.log[in_sync.offset + 1 :]
    member.confirmed = min(member.confirmed, len(member.log))
    case.restart(member)


def log_cut(case: Case) -> None:
    """A member has lost the end of its log, and knows that it was confirmed."""
    member = case.others[0]
    del member.log[-len(member.log) // 2 :]
    case.restart(member)


CALM_S = {"log_older": 3 * AGE_S, "log_cut": 3 * AGE_S}
"""How long a fault follows the last change of the in-sync set, if that matters."""
FAULTS = [
    engine_lost,
    engine_older,
    engine_older_and_free,
    engine_of_another_group,
    engine_edited,
    engine_without_set,
    memory_lost,
    memory_older,
    memory_copied,
    folder_copied,
    log_older,
    log_cut,
]


def check(fault: Callable[[Case], None], least: int, states: tuple[str, str, str]) -> None:
    where = f"{fault.__name__}, least {least}, master and others {states}"
    case = Case(least, states, CALM_S.get(fault.__name__, 3))
    fault(case)
    case.settle()
    assert all(len(members) == 1 for members in case.world.begun.values()), where
    if not case.holders():
        assert any(case.reasons()), where
        complete = [member for member in case.world.members if not lost(case.world, member)]
        if least == 1 and states == (DOWN, DOWN, AWAY) and not complete:
            # Nobody who knew better was there, and one copy was enough. Both pasts are kept.
            assert not lost(case.world, *case.world.members), where
            return
        assert complete, where
        case.decide(complete)
    holders = case.holders()
    assert len(holders) == 1, f"{where}: {case.reasons()}"
    assert not lost(case.world, *holders), where


@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_nothing_acknowledged_is_lost_whatever_is_lost_of_the_past(
    fault: Callable[[Case], None], least: int
) -> None:
    for states in CELLS:
        check(fault, least, states)


@pytest.mark.parametrize("seed", range(8))
def test_an_engine_that_forgets_repeats_and_goes_back_again_and_again(seed: int) -> None:
    world = World(seed, least=2)
    world.repeats = 0.1
    backups = [EngineBackup()]
    for _ in range(12):
        world.run(world.random.uniform(1, 8))
        backups.append(world.engine.backup())
        if world.random.random() < 0.4:
            world.engine.restore(world.random.choice(backups))
        else:
            world.disturb()
    world.heal()
    world.run(90)
    assert all(len(members) == 1 for members in world.begun.values())
    assert any(not lost(world, member) for member in world.members)
    for member in world.members:
        if member.holds:
            assert not lost(world, member)


def trusts_the_engine(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(election, "find_refusal", lambda view, memory, member: None)


def trusts_edited_entries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lineage, "is_genuine", lambda self, members, offset: True)


def ignores_reports(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(group_check, "_counts", lambda number, memory, state: False)


def numbers_epochs_one_by_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(election, "next_epoch", lambda member, known: known + 1)


def creates_a_lost_group_without_the_others(patch: pytest.MonkeyPatch) -> None:
    def restored(reports: Mapping[int, MemberReport]) -> tuple[int, InSyncSet] | None:
        if not reports:
            return None
        best = most_advanced(reports)
        return best, InSyncSet(frozenset({best}), 0, 0, reports[best].memory.lineage)

    patch.setattr(election, "restored_set", restored)


def looks_at_the_set_alone(patch: pytest.MonkeyPatch) -> None:
    def offset(view: GroupView) -> int:
        return view.in_sync.offset if view.in_sync is not None else 0

    patch.setattr(GroupView, "confirmed_offset", property(offset))


@pytest.mark.parametrize(
    ("mutant", "fault", "states"),
    [
        (trusts_the_engine, engine_older_and_free, (DOWN, DOWN, BEHIND)),
        (trusts_edited_entries, engine_edited, (DOWN, DOWN, BEHIND)),
        (ignores_reports, engine_older_and_free, (UP, UP, AWAY)),
        (numbers_epochs_one_by_one, engine_older, (DOWN, DOWN, AWAY)),
        (creates_a_lost_group_without_the_others, engine_lost, (DOWN, DOWN, BEHIND)),
        (looks_at_the_set_alone, log_older, (DOWN, UP, DOWN)),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_table_catches_a_member_that(
    monkeypatch: pytest.MonkeyPatch,
    mutant: Callable[[pytest.MonkeyPatch], None],
    fault: Callable[[Case], None],
    states: tuple[str, str, str],
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        for each in [states, *CELLS]:
            check(fault, 1, each)
