"""The waiting time of a receive, and the messages that it selects."""

import pytest
from tests.proxy.services import call_of

from firetrail.errors import ProxyError
from firetrail.proxy.calls.wait_time import REMEMBERED, filter_of, poll_s, subscription_of
from firetrail.proxy.schema.messages import Code, Duration, FilterExpression, FilterType, Settings
from firetrail.remoting.messages.bodies import SubscriptionData
from firetrail.system import SYSTEM

NEW = {"x_mq_client_version": "5.0.3"}
SETTINGS = Settings(request_timeout=Duration(seconds=6))


@pytest.mark.parametrize(
    ("asked_s", "left_s", "settings", "expected"),
    [
        (10, None, None, 10),
        (1, None, None, 5),
        (0, None, None, 5),
        (60, None, None, 20),
        (None, None, None, 20),
        (None, 60, None, 20),
        (None, 13, None, 11.5),  # the deadline less half of the request timeout
        (None, 13, SETTINGS, 10),
        (None, 6, SETTINGS, 5),
        (20, 30, None, 20),
        (20, 20, None, 19.8),  # the answer has to arrive before the deadline
        (20, 8, None, 7.8),
        (5, 5, None, 4.8),
        (20, 5, None, 4.8),
    ],
)
def test_the_time_of_a_receive(
    asked_s: int | None, left_s: float | None, settings: Settings | None, expected: float
) -> None:
    asked = None if asked_s is None else Duration(seconds=asked_s)
    assert poll_s(call_of(left_s), asked, settings) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("5.0.3", Code.ILLEGAL_POLLING_TIME),
        ("5.1.2", Code.ILLEGAL_POLLING_TIME),
        ("5.0.2", Code.BAD_REQUEST),
        ("", Code.BAD_REQUEST),
    ],
)
@pytest.mark.parametrize("asked", [Duration(seconds=20), None])
def test_a_deadline_that_is_too_short(version: str, expected: Code, asked: Duration | None) -> None:
    with pytest.raises(ProxyError, match="the deadline is in 4") as caught:
        poll_s(call_of(4.9, version), asked, None)
    assert caught.value.code == expected


def test_a_group_can_return_to_an_earlier_subscription() -> None:
    """A broker ignores subscriptions that are older than the one that it knows."""
    tags = FilterExpression(type=FilterType.TAG, expression="a || b")
    earlier = subscription_of("T", tags)
    while SYSTEM.clock.now_ms() <= earlier.sub_version:
        pass
    later = subscription_of("T", tags)
    assert later.sub_version > earlier.sub_version
    assert (later.tags_set, later.code_set) == (earlier.tags_set, earlier.code_set)


def test_the_tags_of_a_receive_are_remembered() -> None:
    tags = FilterExpression(type=FilterType.TAG, expression="a || b")
    assert filter_of("T", tags) is filter_of("T", tags)
    assert filter_of("T", tags).tags_set == subscription_of("T", tags).tags_set
    long = FilterExpression(type=FilterType.TAG, expression="a || b" + " " * 300)
    assert filter_of("T", long) is not filter_of("T", long)
    with pytest.raises(ProxyError):
        filter_of("T", FilterExpression(type=FilterType.TAG, expression="||"))


def test_a_limited_number_of_tags_of_receives_is_remembered() -> None:
    def remembered(number: int) -> SubscriptionData:
        return filter_of("T", FilterExpression(type=FilterType.TAG, expression=f"tag{number}"))

    first, second = remembered(0), remembered(1)
    for number in range(2, REMEMBERED + 1):
        remembered(number)
    assert remembered(1) is second
    assert remembered(0) is not first
