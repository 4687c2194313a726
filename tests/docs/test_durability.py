"""The page about durability names every seeded bug that the tests catch, and no other."""

from __future__ import annotations

from pathlib import Path

from tests.crash import test_broker_mutants, test_bulk_power_loss, test_mutants

PAGE = Path(__file__).parents[2] / "docs" / "durability.md"
ALONE = "a failed sync is tried again"
"""Needs a disk that fails, and so has a test of its own."""


def test_the_list_of_seeded_bugs() -> None:
    table = PAGE.read_text().partition("| wrong on purpose |")[2].partition("\n\n")[0]
    listed = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    mutants = [
        *test_mutants.MUTANTS,
        *test_broker_mutants.MUTANTS,
        *test_bulk_power_loss.MUTANTS,
    ]
    assert sorted(listed) == sorted([ALONE, *(mutant[0] for mutant in mutants)])
    assert hasattr(test_mutants, "test_a_failed_sync_that_is_tried_again_is_caught")
