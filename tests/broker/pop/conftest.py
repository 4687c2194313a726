"""A broker whose invisible times end when the test says so."""

from collections.abc import AsyncIterator

import pytest
from tests.broker.brokers import Talk, talking
from tests.broker.pops import StoppedClock

from firetrail.system import System


@pytest.fixture
def clock() -> StoppedClock:
    """The clock of the broker in :func:`still`."""
    return StoppedClock()


@pytest.fixture
async def still(clock: StoppedClock) -> AsyncIterator[Talk]:
    """A client of a broker with default settings, whose wall clock is frozen."""
    async with talking(system=System(clock=clock)) as talk:
        yield talk
