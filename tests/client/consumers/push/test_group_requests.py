"""Requests of a member of a consumer group."""

from typing import Any
from unittest.mock import AsyncMock, MagicMock

from firetrail.client.consumers.push.group_requests import GroupRequests
from firetrail.client.messages.send_requests import SEND_S
from firetrail.remoting.wire.codes import RequestCode


async def test_a_message_that_is_sent_back_waits_for_disk_and_replicas_of_the_broker() -> None:
    """A member that gave up earlier would send it back, and have it redelivered, twice."""
    message: Any = MagicMock(message_id="ID", topic="T")
    message.record.physical_offset = 7
    session = MagicMock(route=AsyncMock(), ask=AsyncMock())
    requests = GroupRequests(session, "G")
    assert await requests.send_back(
        message, max_retries=None, dead_letter=False, is_dropped=lambda: False
    )
    asked = session.ask.await_args
    assert asked.args[1] is RequestCode.CONSUMER_SEND_MSG_BACK
    assert asked.kwargs == {"timeout_s": SEND_S}
