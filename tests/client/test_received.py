"""Messages as consumers get them."""

from __future__ import annotations

from tests.client.clusters import received


def test_where_a_message_came_from() -> None:
    assert received(3).queue_id == 3
