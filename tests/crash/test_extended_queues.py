"""Extended units survive power losses with their units, and the survey catches seeded bugs."""

import random
from collections.abc import Callable
from functools import partial

import pytest
from tests.crash.seeded_bugs import expect_violation
from tests.crash.world.simulation import DEEP, survey, tiny_config

from firetrail.store.queues.extension import QueueExtension, UnitAt

CONFIG = tiny_config("sync", property_crc=True, extended_queues=True, extension_file_size=256)
ATTEMPTS = 4
Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("seed", range(40 if DEEP else 1))
def test_power_loss_is_survived(seed: int) -> None:
    survey(CONFIG, seed, random.Random(seed), share=1.0 if DEEP else 0.05)


def not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueExtension, "flush", lambda self: None)


def continued_at_the_start(patch: pytest.MonkeyPatch) -> None:
    def cut(self: QueueExtension, unit_at: UnitAt, end: int, *, clear: bool = True) -> None:
        for segment in self.files.segments[-1:]:
            segment.set_position(0)

    patch.setattr(QueueExtension, "cut", cut)


MUTANTS: list[tuple[str, Patch]] = [
    ("extended units are not synced", not_synced),
    ("addresses of extended units are used again", continued_at_the_start),
]


@pytest.mark.parametrize(
    "patch", [mutant[1] for mutant in MUTANTS], ids=[mutant[0] for mutant in MUTANTS]
)
def test_mutant_is_caught(monkeypatch: pytest.MonkeyPatch, patch: Patch) -> None:
    patch(monkeypatch)
    expect_violation(partial(survey, CONFIG, share=0.2), range(ATTEMPTS))
