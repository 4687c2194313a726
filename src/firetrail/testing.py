"""Fixtures for pytest. To use them, import them in your ``conftest.py``::

from firetrail.testing import rocketmq
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from firetrail.broker.background import BackgroundBroker


@pytest.fixture
def rocketmq() -> Iterator[BackgroundBroker]:
    """Start a broker and a name server on free ports, with an empty store, for one test.

    Yields:
        The running broker. Point your clients at its ``namesrv``; look at what they stored
        through its ``store``. The broker stops and its store is deleted after the test.
    """
    with BackgroundBroker() as broker:
        yield broker
