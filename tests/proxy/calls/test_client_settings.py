"""The settings of clients: what is refused, and what the server decides."""

from typing import Any

import pytest

from firetrail.errors import ProxyError
from firetrail.proxy.calls.client_settings import (
    LITE,
    SETTINGS_MAX,
    TOPICS_MAX,
    adopt,
    backoff_of,
    completed,
)
from firetrail.proxy.schema.messages import (
    UA,
    Address,
    ClientType,
    Code,
    Duration,
    Endpoints,
    ExponentialBackoff,
    FilterExpression,
    FilterType,
    Metric,
    Publishing,
    Resource,
    RetryPolicy,
    Settings,
    Subscription,
    SubscriptionEntry,
)
from firetrail.proxy.upstream.grpc_clients import ProxyClient
from firetrail.remoting.messages.bodies import SubscriptionGroupConfig
from firetrail.remoting.messages.retry_policies import (
    EXPONENTIAL,
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    GroupRetryPolicy,
)

RESERVED = {"own"}
DEFAULT_DELAYS_S = [1, 5, 10, 30, *(60 * m for m in (*range(1, 11), 20, 30, 60, 120))]


def publishing(*topics: str) -> Settings:
    return Settings(
        client_type=ClientType.PRODUCER,
        publishing=Publishing(topics=[Resource(name=topic) for topic in topics]),
    )


def subscribing(
    group: str = "G",
    *topics: str,
    expression: str = "*",
    kind: int = FilterType.TAG,
    client_type: int = ClientType.PUSH_CONSUMER,
    **fields: Any,
) -> Settings:
    entries = [
        SubscriptionEntry(
            topic=Resource(name=topic),
            expression=FilterExpression(type=kind, expression=expression),
        )
        for topic in topics
    ]
    subscription = Subscription(group=Resource(name=group), subscriptions=entries, **fields)
    return Settings(client_type=client_type, subscription=subscription)


def test_a_producer_is_registered_per_topic() -> None:
    client = ProxyClient("c")
    assert adopt(client, publishing("T", "unknown"), RESERVED) is None
    assert client.published == {"T", "unknown"}
    assert client.client_type == ClientType.PRODUCER
    assert adopt(client, publishing(), RESERVED) is None
    assert not client.published


def test_a_consumer_is_registered_with_its_subscriptions() -> None:
    client = ProxyClient("c")
    assert adopt(client, subscribing("G", "T", "U", expression="a || b"), RESERVED) == "G"
    assert {topic: sorted(s.tags_set) for topic, s in client.subscriptions["G"].items()} == {
        "T": ["a", "b"],
        "U": ["a", "b"],
    }


@pytest.mark.parametrize("client_type", sorted(set(ClientType) - LITE))
def test_all_types_of_clients_are_accepted(client_type: ClientType) -> None:
    client = ProxyClient("c")
    assert adopt(client, subscribing(client_type=client_type), RESERVED) == "G"
    assert client.client_type == client_type


@pytest.mark.parametrize("client_type", sorted(LITE))
def test_a_lite_consumer_does_not_get_a_whole_topic(client_type: ClientType) -> None:
    client = ProxyClient("c")
    with pytest.raises(ProxyError, match="regular group cannot use LITE mode: G") as caught:
        adopt(client, subscribing(client_type=client_type), RESERVED)
    assert caught.value.code == Code.ILLEGAL_CONSUMER_GROUP
    assert (client.subscriptions, client.client_type) == ({}, 0)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (Settings(), Code.BAD_REQUEST),
        (publishing("a b"), Code.ILLEGAL_TOPIC),
        (publishing("own"), Code.ILLEGAL_TOPIC),
        (subscribing(""), Code.ILLEGAL_CONSUMER_GROUP),
        (subscribing("CID_RMQ_SYS_X"), Code.ILLEGAL_CONSUMER_GROUP),
        (subscribing("G", "TBW102"), Code.ILLEGAL_TOPIC),
        (subscribing("G", "T", expression="||"), Code.ILLEGAL_FILTER_EXPRESSION),
        (subscribing("G", "T", kind=FilterType.SQL, expression=""), Code.ILLEGAL_FILTER_EXPRESSION),
        (publishing(*(f"t{n}" for n in range(TOPICS_MAX + 1))), Code.BAD_REQUEST),
        (
            Settings(publishing=Publishing(), user_agent=UA(hostname="x" * SETTINGS_MAX)),
            Code.BAD_REQUEST,
        ),
    ],
)
def test_settings_that_are_refused(settings: Settings, code: Code) -> None:
    client = ProxyClient("c")
    with pytest.raises(ProxyError) as caught:
        adopt(client, settings, RESERVED)
    assert caught.value.code == code
    assert not client.published and not client.subscriptions


def test_the_server_decides_how_producers_send() -> None:
    sent = publishing("T")
    sent.access_point.CopyFrom(Endpoints(addresses=[Address(host="h", port=1)]))
    sent.request_timeout.CopyFrom(Duration(seconds=7))
    sent.metric.CopyFrom(Metric(on=True))
    sent.backoff_policy.max_attempts = 99
    answer = completed(sent, None)
    assert answer.publishing.max_body_size == 4 << 20
    assert answer.publishing.validate_message_type
    assert answer.backoff_policy == RetryPolicy(
        max_attempts=3,
        exponential_backoff=ExponentialBackoff(
            initial=Duration(nanos=10_000_000), max=Duration(seconds=1), multiplier=2
        ),
    )
    assert not answer.metric.on
    assert answer.access_point == sent.access_point
    assert answer.request_timeout == sent.request_timeout
    assert [topic.name for topic in answer.publishing.topics] == ["T"]


def test_the_group_decides_how_consumers_receive() -> None:
    group = SubscriptionGroupConfig("G", consume_message_orderly=True, retry_max_times=2)
    sent = subscribing("G", "T", fifo=False, receive_batch_size=1, lite_subscription_quota=9)
    sent.backoff_policy.max_attempts = 99
    answer = completed(sent, group)
    subscription = answer.subscription
    assert subscription.fifo
    assert subscription.receive_batch_size == 32
    assert subscription.long_polling_timeout == Duration(seconds=20)
    assert subscription.lite_subscription_quota == 0
    assert answer.backoff_policy.max_attempts == 3
    assert [each.topic.name for each in subscription.subscriptions] == ["T"]


def test_a_group_that_does_not_exist_yet_has_the_defaults() -> None:
    answer = completed(subscribing("G", fifo=True, receive_batch_size=7), None)
    assert not answer.subscription.fifo
    assert answer.subscription.receive_batch_size == 7
    assert answer.subscription.long_polling_timeout == Duration(seconds=20)
    assert answer.backoff_policy.max_attempts == 17
    delays = answer.backoff_policy.customized_backoff.next
    assert [delay.seconds for delay in delays] == DEFAULT_DELAYS_S


def test_fields_of_newer_clients_survive() -> None:
    """RocketMQ's repository already has a field 9, which no release knows."""
    sent = Settings.FromString(publishing("T").SerializeToString() + b"\x4a\x03new")
    assert b"\x4a\x03new" in completed(sent, None).SerializeToString()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (
            GroupRetryPolicy(customized_retry_policy=CustomizedRetryPolicy([500, 2000])),
            "next { nanos: 500000000 } next { seconds: 2 }",
        ),
        (
            GroupRetryPolicy(EXPONENTIAL, ExponentialRetryPolicy(1500, 60_000, 3)),
            "initial { seconds: 1 nanos: 500000000 } max { seconds: 60 } multiplier: 3",
        ),
        (
            GroupRetryPolicy(EXPONENTIAL),
            "initial { seconds: 5 } max { seconds: 7200 } multiplier: 2",
        ),
    ],
)
def test_retry_policies_of_groups(policy: GroupRetryPolicy, expected: str) -> None:
    found = backoff_of(SubscriptionGroupConfig("G", group_retry_policy=policy))
    kind = "exponential_backoff" if policy.type == EXPONENTIAL else "customized_backoff"
    assert found.WhichOneof("strategy") == kind
    assert " ".join(str(getattr(found, kind)).split()) == expected
