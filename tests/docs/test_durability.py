"""The pages about durability count the seeded bugs, and name every part of ``make torture``."""

import re

from tests.clone import ROOT
from tests.crash import (
    test_broker_mutants,
    test_extended_queues,
    test_mutants,
    test_pair_mutants,
    test_truncation,
    test_two_folders,
)
from tests.crash.power_loss import test_bulk_power_loss
from tests.replication.group import test_election_mutants
from tests.torture import mutants
from tests.torture.parts import PARTS

FOLDER = ROOT / "docs" / "durability"
TESTING = (FOLDER / "testing.md").read_text(encoding="utf-8")
FINDINGS = (FOLDER / "findings.md").read_text(encoding="utf-8")
RETRIED_SYNC = "a failed sync is retried"
"""It needs a disk that fails, and so has a test of its own."""
SIMULATED = [
    RETRIED_SYNC,
    *(name for name, *_ in test_mutants.MUTANTS),
    *(name for name, *_ in test_broker_mutants.MUTANTS),
    *(name for name, *_ in test_broker_mutants.TIMER_MUTANTS),
    *(name for name, *_ in test_bulk_power_loss.MUTANTS),
    *(name for name, *_ in test_pair_mutants.MUTANTS),
    *test_pair_mutants.OTHERS,
    *(name for name, *_ in test_truncation.MUTANTS),
    *(name for name, *_ in test_two_folders.MUTANTS),
    *(name for name, *_ in test_extended_queues.MUTANTS),
]
ELECTIONS = [name for name, *_ in test_election_mutants.MUTANTS]


MODULES = (
    test_mutants,
    test_broker_mutants,
    test_bulk_power_loss,
    test_pair_mutants,
    test_truncation,
    test_two_folders,
    test_extended_queues,
    test_election_mutants,
    mutants,
)


def test_the_page_names_every_module_with_seeded_bugs() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", TESTING.partition("\n## Seeded bugs\n")[2])
    paths = [f"{module.__name__.replace('.', '/')}.py" for module in MODULES]
    assert named == paths


def test_a_retried_sync_has_a_test_of_its_own() -> None:
    assert hasattr(test_mutants, "test_a_failed_sync_that_is_tried_again_is_caught")


def test_the_page_counts_the_seeded_bugs() -> None:
    text = " ".join(FINDINGS.split())
    assert f"All {len(SIMULATED)} [seeded bugs]" in text
    assert f"all {len(ELECTIONS)} in simulated groups, and all {len(mutants.BUGS)} in real" in text


def test_the_page_describes_every_part_of_make_torture() -> None:
    headings = set(re.findall(r"^### (.+)$", TESTING, re.MULTILINE))
    selected = set(re.findall(r"PART='?([\w ]+?)'?`", TESTING))
    tabled = set(re.findall(r"^\| `'([\w ]+)'` \|", TESTING, re.MULTILINE))
    assert not set(PARTS) - headings - selected - tabled
