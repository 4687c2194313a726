"""Messages as consumers receive them."""

from __future__ import annotations

from tests.client.clusters import received


def test_queue_id_is_the_number_of_the_queue() -> None:
    assert received(3).queue_id == 3
