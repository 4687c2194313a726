"""Fixtures for the tests of clients."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let consumers retry almost at once."""
    for name in (
        "group_requests.SEND_BACK_RETRY_S",
        "process_queue.RESTART_S",
        "push_consumer.HANDOVER_GRACE_S",
        "push_consumer.HANDOVER_POLL_S",
        "push_consumer.IN_ORDER_RETRY_S",
    ):
        monkeypatch.setattr(f"firetrail.client.{name}", 0.01)
    monkeypatch.setattr("firetrail.client.push_consumer.COMMIT_S", 0.02)
