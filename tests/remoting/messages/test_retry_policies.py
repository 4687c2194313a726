"""The retry policies of consumer groups."""

import pytest

from firetrail.remoting.messages.bodies import SubscriptionGroupConfig
from firetrail.remoting.messages.retry_policies import (
    DELAYS_MAX,
    DELAYS_MS,
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    GroupRetryPolicy,
)

BY_JAVA = (
    b'{"attributes":{},"brokerId":0,"consumeBroadcastEnable":false,"consumeEnable":true,'
    b'"consumeFromMinEnable":false,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,'
    b'"groupName":"G","groupRetryPolicy":%s,"groupSysFlag":0,'
    b'"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":5,"retryQueueNums":1,'
    b'"whichBrokerWhenConsumeSlowly":1}'
)
"""A group as mqadmin 5.3.3 sends it."""


@pytest.mark.parametrize(
    "policy",
    [
        b'{"type":"CUSTOMIZED"}',
        b'{"type":"EXPONENTIAL"}',
        b'{"exponentialRetryPolicy":{"initial":1000,"max":60000,"multiplier":3},'
        b'"type":"EXPONENTIAL"}',
        b'{"customizedRetryPolicy":{"next":[1000,2000,3000]},"type":"CUSTOMIZED"}',
    ],
)
def test_policies_are_written_as_java_writes_them(policy: bytes) -> None:
    text = BY_JAVA % policy
    assert SubscriptionGroupConfig.decode(text).encode() == text


def test_missing_details_have_javas_defaults() -> None:
    policy = GroupRetryPolicy.decode(b'{"exponentialRetryPolicy":{"multiplier":4}}')
    assert policy == GroupRetryPolicy("CUSTOMIZED", ExponentialRetryPolicy(5000, 7200000, 4))
    assert GroupRetryPolicy.decode(b'{"customizedRetryPolicy":{}}').for_clients == (
        CustomizedRetryPolicy(list(DELAYS_MS))
    )
    assert DELAYS_MS[:5] + DELAYS_MS[-2:] == (1000, 5000, 10000, 30000, 60000, 3600000, 7200000)
    assert len(DELAYS_MS) == 18


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        (GroupRetryPolicy(), [10_000, 10_000, 30_000, 7_200_000]),
        (GroupRetryPolicy("EXPONENTIAL"), [10_000, 10_000, 30_000, 7_200_000]),
        (GroupRetryPolicy("NEW"), [10_000, 10_000, 30_000, 7_200_000]),
        (
            GroupRetryPolicy("EXPONENTIAL", ExponentialRetryPolicy(1000, 9000, 3)),
            [1000, 1000, 3000, 9000],
        ),
        (GroupRetryPolicy("CUSTOMIZED", None, CustomizedRetryPolicy([1, 2, 3, 4])), [3, 3, 4, 4]),
        (GroupRetryPolicy("CUSTOMIZED", None, CustomizedRetryPolicy([7])), [7, 7, 7, 7]),
        (
            GroupRetryPolicy("CUSTOMIZED", None, CustomizedRetryPolicy([])),
            [10_000, 10_000, 30_000, 7_200_000],
        ),
    ],
)
def test_a_server_delays_retries_as_java_does(policy: GroupRetryPolicy, delays: list[int]) -> None:
    assert [policy.for_servers.delay_ms(times) for times in (-1, 0, 1, 99)] == delays


def test_clients_get_the_defaults_of_the_type() -> None:
    exponential = GroupRetryPolicy("EXPONENTIAL", None, CustomizedRetryPolicy([1]))
    assert exponential.for_clients == ExponentialRetryPolicy(5000, 7200000, 2)
    assert exponential.for_servers == CustomizedRetryPolicy()  # as in Java
    assert GroupRetryPolicy().for_clients == CustomizedRetryPolicy()


def test_a_policy_of_a_file_never_gives_a_negative_delay() -> None:
    assert CustomizedRetryPolicy([-5]).delay_ms(0) == 0
    assert ExponentialRetryPolicy(-5, 10, 2).delay_ms(3) == 0


@pytest.mark.parametrize(("retries", "attempts"), [(2, 3), (0, 1), (-1, 1), (16, 17)])
def test_the_first_delivery_is_an_attempt(retries: int, attempts: int) -> None:
    assert SubscriptionGroupConfig("G", retry_max_times=retries).max_attempts == attempts


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (GroupRetryPolicy("ODD"), "type is 'ODD', but it must be CUSTOMIZED or EXPONENTIAL"),
        (
            GroupRetryPolicy("EXPONENTIAL", ExponentialRetryPolicy(5, 4)),
            "initial is 5 and max is 4, but both must be from 1 to 31536000000 ms, and initial at "
            "most max",
        ),
        (
            GroupRetryPolicy("EXPONENTIAL", ExponentialRetryPolicy(multiplier=0)),
            "multiplier is 0, but it must be from 1 to 1000",
        ),
        (
            GroupRetryPolicy("CUSTOMIZED", None, CustomizedRetryPolicy([])),
            "next has 0 delays, but it must have 1 to 1000",
        ),
        (
            GroupRetryPolicy("CUSTOMIZED", None, CustomizedRetryPolicy([1] * (DELAYS_MAX + 1))),
            "next has 1001 delays, but it must have 1 to 1000",
        ),
        (
            GroupRetryPolicy("CUSTOMIZED", None, CustomizedRetryPolicy([1, -2])),
            "a delay in next is -2, but it must be from 0 to 31536000000 ms",
        ),
    ],
)
def test_impossible_policies_are_refused(policy: GroupRetryPolicy, said: str) -> None:
    assert policy.refusal() == said


def test_a_possible_policy_is_accepted() -> None:
    policy = GroupRetryPolicy("EXPONENTIAL", ExponentialRetryPolicy(), CustomizedRetryPolicy([0]))
    assert policy.refusal() == ""
