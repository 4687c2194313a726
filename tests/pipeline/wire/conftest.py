"""A broker for the tests of the pipeline over the wire."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import small_config

from firetrail.broker.background import BackgroundBroker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BackgroundBroker]:
    with BackgroundBroker(tmp_path / "broker", store=small_config(log=1 << 16)) as running:
        yield running
