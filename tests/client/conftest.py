"""What the tests of clients share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done again after a pause is done again at once."""
    consumer = ("AGAIN_S", "GIVE_UP_S", "HANDOVER_LOOK_S", "SEND_BACK_S")
    for name in (*(f"push_consumer.{name}" for name in consumer), "process_queue.RESTART_S"):
        monkeypatch.setattr(f"firetrail.client.{name}", 0.01)
    monkeypatch.setattr("firetrail.client.push_consumer.COMMIT_S", 0.02)
