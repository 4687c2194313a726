"""Fixtures for the tests of clients."""

from collections.abc import AsyncIterator

import pytest
from tests.client.clusters import running_cluster


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
        monkeypatch.setattr(f"firetrail.client.consumers.push.{name}", 0.01)
    monkeypatch.setattr("firetrail.client.consumers.push.push_consumer.COMMIT_S", 0.02)


@pytest.fixture
async def namesrv() -> AsyncIterator[str]:
    """The address of a name server with one broker."""
    async with running_cluster() as address:
        yield address
