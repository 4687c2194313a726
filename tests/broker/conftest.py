"""Fixtures for the tests of brokers."""

from collections.abc import AsyncIterator

import pytest
from tests.broker.brokers import Talk, talking


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    """A client of a broker with default settings, on a temporary folder."""
    async with talking() as talk:
        yield talk
