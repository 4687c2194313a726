"""Seeded bugs of elections: the simulated groups must catch each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.replication.simulated_group import World

from firetrail.replication.election import Election
from firetrail.replication.in_sync_members import InSyncMembers

ATTEMPTS = 4
Patch = Callable[[pytest.MonkeyPatch], None]


def clock_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Election, "holds", lambda self, now: self.epoch > 0)


def anybody_campaigns(patch: pytest.MonkeyPatch) -> None:
    def obstacle(self: Election, log_end: int) -> str:
        found = original(self, log_end)
        return "" if "may lack" in found or "its log ends at" in found else found

    original = Election.obstacle
    patch.setattr(Election, "obstacle", obstacle)


def one_is_enough(patch: pytest.MonkeyPatch) -> None:
    def required(self: InSyncMembers) -> frozenset[int]:
        return frozenset(sorted(original(self))[:1])

    original = InSyncMembers.required.fget  # type: ignore[attr-defined]
    patch.setattr(InSyncMembers, "required", property(required))


MUTANTS: list[tuple[str, Patch, int]] = [
    # name, what is wrong, and the seed of a run that catches it
    ("a master does not look at the clock of its lease", clock_ignored, 0),
    ("a member outside the in-sync set is elected", anybody_campaigns, 5),
    ("only one member of the in-sync set is waited for", one_is_enough, 15),
]


@pytest.mark.parametrize(
    ("patch", "first"), [mutant[1:] for mutant in MUTANTS], ids=[mutant[0] for mutant in MUTANTS]
)
def test_mutant_is_caught(monkeypatch: pytest.MonkeyPatch, patch: Patch, first: int) -> None:
    patch(monkeypatch)
    for seed in range(first, first + ATTEMPTS):
        world = World(seed, least=1)
        world.disturbed_for(25)
        if world.most_holders > 1 or world.lost():
            print(f"seed {seed}: {world.most_holders} holders, lost {world.lost()[:3]}")
            return
    raise AssertionError(f"not caught in {ATTEMPTS} runs")
