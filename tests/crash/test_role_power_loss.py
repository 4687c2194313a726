"""Power losses while a master hands over to its replica: there is one master, and nothing is lost.

Every moment of the hand-over counts: the step-down of the master, the change of role of the replica
and their saved roles. Some crash a second time, while they settle the hand-over.
"""

from __future__ import annotations

import random
from unittest.mock import patch

import pytest
from tests.crash.oracle import Violation
from tests.crash.role_survey import role_survey
from tests.crash.simulation import DEEP

from firetrail.broker.replica.saved_role import RoleFile
from firetrail.broker.state.slave_mark import SlaveMark

SEEDS = range(10) if DEEP else range(1)
IMAGES = 1_000 if DEEP else 5


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_hand_over_survives_power_loss_at_any_moment(mode: str, seed: int) -> None:
    checker = role_survey(mode, random.Random(f"{mode} {seed}"), IMAGES)
    print(checker.outcomes)
    assert sum(checker.outcomes.values()) >= IMAGES or DEEP
    assert checker.outcomes["new"]


def _nothing(*_: object, **__: object) -> None:
    """What a mutant does."""


@pytest.mark.parametrize(
    ("kind", "method", "said"),
    [
        (RoleFile, "begin_hand_over", "there are 0 masters"),
        (SlaveMark, "set", "its epoch 0 is old"),
        (SlaveMark, "clear", "marked as a slave's"),
    ],
    ids=["no note", "no mark", "mark stays"],
)
def test_mutants_are_caught(kind: type, method: str, said: str) -> None:
    with patch.object(kind, method, _nothing), pytest.raises(Violation, match=said):
        role_survey("sync", random.Random(3), 200, again_share=0.0)
