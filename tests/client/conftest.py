"""What the tests of clients share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done again after a pause is done again at once."""
    for name in ("push_consumer.AGAIN_S", "push_consumer.SEND_BACK_S", "assigned.RESTART_S"):
        monkeypatch.setattr(f"firetrail.client.{name}", 0.01)
    monkeypatch.setattr("firetrail.client.push_consumer.COMMIT_S", 0.02)
