"""The power goes at every operation of a broker's files: what clients were told still holds.

Clients send, delay, commit transactions, pop, acknowledge, save offsets, make and delete topics.
What each of them was told is in a ledger; a broker started on what a crash leaves is held against
it, and some are crashed again, while they start and after new requests.
"""

from __future__ import annotations

import random

import pytest
from tests.crash.broker_process import broker_config
from tests.crash.broker_survey import broker_survey
from tests.crash.simulation import DEEP, MODES

SEEDS = range(20) if DEEP else range(1)
SHARE = 1.0 if DEEP else 0.15


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", SEEDS)
def test_power_loss_of_a_broker(mode: str, seed: int) -> None:
    source = random.Random(f"{mode} {seed}")
    checker = broker_survey(broker_config(mode), seed, source, share=SHARE)
    print(f"{checker.images} images")
    assert checker.images > 20
