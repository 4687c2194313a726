"""The format of the tables that tests make."""

from collections.abc import Iterator

import pytest
from tests.extras import require


@pytest.fixture(autouse=True)
def table_format(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The format of new tables: Delta, or that of a mark of ``formats``."""
    require("deltalake", "pyiceberg")
    kind = getattr(request, "param", "delta")
    monkeypatch.setattr("tests.pipeline.tables.topics.FORMAT", kind)
    yield kind
