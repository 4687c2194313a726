"""Seeded bugs of elections: the simulated groups must catch each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from tests.replication.simulated_group import World

from firetrail.replication.election import Election
from firetrail.replication.in_sync_members import InSyncMembers

SEEDS = 12
Patch = Callable[[pytest.MonkeyPatch], None]


def clock_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Election, "holds", lambda self, now: self.epoch > 0)


def anybody_campaigns(patch: pytest.MonkeyPatch) -> None:
    def obstacle(self: Election, log_end: int) -> str:
        found = original(self, log_end)
        return "" if "may lack" in found or "its log ends at" in found else found

    original = Election.obstacle
    patch.setattr(Election, "obstacle", obstacle)


def joins_too_early(patch: pytest.MonkeyPatch) -> None:
    def joined(
        self: InSyncMembers, now: float, end: int, acks: Mapping[int, int]
    ) -> frozenset[int] | None:
        new = acks.keys() - self.committed.members - {self._member}
        return self.committed.members | new if new else None

    patch.setattr(InSyncMembers, "_joined", joined)


def one_is_enough(patch: pytest.MonkeyPatch) -> None:
    def required(self: InSyncMembers) -> frozenset[int]:
        return frozenset(sorted(original(self))[:1])

    original = InSyncMembers.required.fget  # type: ignore[attr-defined]
    patch.setattr(InSyncMembers, "required", property(required))


MUTANTS: list[tuple[str, Patch]] = [
    ("a master does not look at the clock of its lease", clock_ignored),
    ("a member outside the in-sync set is elected", anybody_campaigns),
    ("a member joins the in-sync set before it has caught up", joins_too_early),
    ("only one member of the in-sync set is waited for", one_is_enough),
]


@pytest.mark.parametrize(
    "patch", [mutant[1] for mutant in MUTANTS], ids=[mutant[0] for mutant in MUTANTS]
)
def test_mutant_is_caught(monkeypatch: pytest.MonkeyPatch, patch: Patch) -> None:
    patch(monkeypatch)
    for seed in range(SEEDS):
        world = World(seed, least=1)
        world.disturbed_for(25)
        if world.most_holders > 1 or world.lost():
            print(f"seed {seed}: {world.most_holders} holders, lost {world.lost()[:3]}")
            return
    raise AssertionError(f"not caught in {SEEDS} runs")
