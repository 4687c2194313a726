"""Fixtures for the tests of the gRPC service."""

from collections.abc import AsyncIterator

import pytest
from tests.proxy.services import Service, serving

from firetrail.proxy.calls.consumption import receipt_calls


@pytest.fixture(autouse=True)
def quick_redelivery(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redeliver messages at once if a test asks for it."""
    monkeypatch.setattr(receipt_calls, "REDELIVERY_MIN_MS", 0)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """The calls that move messages, on a broker with the topic T and the group CG."""
    async with serving() as service:
        await service.create_topic("T")
        service.create_group()
        yield service
