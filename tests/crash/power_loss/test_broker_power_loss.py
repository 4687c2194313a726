"""Power losses at every operation on a broker's files: every answer to a client still holds.

Clients send, delay, commit transactions, pop, acknowledge, save offsets, create and delete topics.
A ledger records every answer. A broker is started on each image that a crash leaves, and compared
with the ledger; some crash again, while they start and after new requests.
"""

import random

import pytest
from tests.crash.power_loss.broker_survey import broker_survey
from tests.crash.world.broker_process import broker_config
from tests.crash.world.simulation import DEEP, MODES

SEEDS = range(20) if DEEP else range(1)
SHARE = 1.0 if DEEP else 0.15


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_broker_survives_power_loss_at_any_moment(mode: str, seed: int) -> None:
    source = random.Random(f"{mode} {seed}")
    checker = broker_survey(broker_config(mode), seed, source, share=SHARE)
    print(f"{checker.images} images")
    assert checker.images > 20
