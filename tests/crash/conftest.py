"""Fixtures for the tests on a simulated disk."""

from collections.abc import Iterator

import pytest
from tests.crash.world.threads import real_threads_afterwards


@pytest.fixture(autouse=True)
def real_threads_for_later_tests() -> Iterator[None]:
    """Undo the simulation of a test that failed in the middle."""
    with real_threads_afterwards():
        yield
