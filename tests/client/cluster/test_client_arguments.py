"""Arguments that are checked when a client is created."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.client.clusters import Heard

from firetrail.client import (
    ConfigError,
    ConsumeFromWhere,
    MessageModel,
    PushConsumer,
    SimpleConsumer,
)

NAMESRV, TOPICS = "127.0.0.1:9876", {"T": "*"}


def push(**more: Any) -> PushConsumer:
    return PushConsumer(NAMESRV, "G", Heard(), TOPICS, **more)


def simple(**more: Any) -> SimpleConsumer:
    return SimpleConsumer(NAMESRV, "G", TOPICS, **more)


def test_values_are_accepted_for_members_of_enumerations() -> None:
    """Members are compared by identity, so values must be converted to members."""
    consumer = push(model="BROADCASTING", start="CONSUME_FROM_TIMESTAMP", start_time_ms=1)
    assert consumer._model is MessageModel.BROADCASTING
    assert consumer._start.where is ConsumeFromWhere.TIMESTAMP
    assert list(consumer.wanted) == ["T"], "a broadcast consumer has no retry topic"
    first = ConsumeFromWhere.FIRST_OFFSET
    assert simple(start=first.value)._start is first
    assert simple(start=first.value)._starts_at_first("T")
    assert not simple()._starts_at_first("T")


@pytest.mark.parametrize(
    ("make", "more", "message"),
    [
        (push, {"model": "broadcast"}, "model = 'broadcast': expected one of MessageModel.BROADCA"),
        (push, {"start": 0}, "start = 0: expected one of ConsumeFromWhere.LAST_OFFSET, "),
        (simple, {"start": "FIRST"}, "start = 'FIRST': expected one of ConsumeFromWhere.LAST_OFF"),
    ],
)
def test_other_values_are_rejected(
    make: Callable[..., object], more: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        make(**more)
    assert str(raised.value).startswith(message)
