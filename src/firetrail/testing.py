"""Fixtures for pytest: ``from firetrail.testing import rocketmq`` in a ``conftest.py``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from firetrail.broker.background import BackgroundBroker


@pytest.fixture
def rocketmq() -> Iterator[BackgroundBroker]:
    """A broker and a name server on free ports, with an empty store, for one test."""
    with BackgroundBroker() as broker:
        yield broker
