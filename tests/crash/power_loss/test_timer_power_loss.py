"""Power losses at every operation on the files of the timer: no message is lost or repeated.

Clients send messages with a delivery time and recall some of them, besides everything else that
they do with a broker. After a crash, every message that had to be on disk arrives once, never
early, and a recalled one never.
"""

import random

import pytest
from tests.crash.power_loss.broker_survey import broker_survey
from tests.crash.power_loss.timer_users import TimerUsers
from tests.crash.world.broker_process import broker_config
from tests.crash.world.simulation import DEEP, MODES

SEEDS = range(20) if DEEP else range(1)
SHARE = 1.0 if DEEP else 0.07


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_timer_survives_power_loss_at_any_moment(mode: str, seed: int) -> None:
    source = random.Random(f"timer {mode} {seed}")
    config = broker_config(mode)
    checker = broker_survey(config, seed, source, share=SHARE, steps=35, users=TimerUsers)
    print(f"{checker.images} images")
    assert checker.images > 10
