"""The settings of clients: what a client sends, checked, and completed by the server.

The group, not the client, decides about retries and the order of messages. Clients get these values
from the server and follow them.
"""

from collections.abc import Iterable

from firetrail.errors import ProxyError
from firetrail.proxy.calls.consumption.receive import BATCH_MAX
from firetrail.proxy.calls.resource_names import group_name, topic_name
from firetrail.proxy.calls.wait_time import POLL_MAX_S, subscription_of
from firetrail.proxy.conversion.message_checks import BODY_MAX
from firetrail.proxy.schema.messages import (
    ClientType,
    Code,
    CustomizedBackoff,
    Duration,
    ExponentialBackoff,
    Metric,
    RetryPolicy,
    Settings,
)
from firetrail.proxy.upstream.grpc_clients import ProxyClient
from firetrail.remoting.messages.bodies import SubscriptionData, SubscriptionGroupConfig
from firetrail.remoting.messages.retry_policies import ExponentialRetryPolicy

SETTINGS_MAX = 64 << 10
"""Maximum size of the settings of a client in bytes; they are kept for as long as it is known."""
TOPICS_MAX = 1_000
"""Maximum number of topics that a client publishes or subscribes to."""
LITE = frozenset({ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER})
"""Consumers of lite topics."""
SEND_ATTEMPTS = 3
"""The number of times that a producer sends a message before it gives up."""

_SEND_BACKOFF = ExponentialBackoff(
    initial=Duration(nanos=10_000_000), max=Duration(seconds=1), multiplier=2
)


def adopt(client: ProxyClient, settings: Settings, reserved: Iterable[str]) -> str | None:
    """Check the settings of a client, and note its topics and subscriptions.

    Args:
        client: The client.
        settings: Its settings.
        reserved: Names of topics that are reserved (:attr:`Brokers.reserved`).

    Returns:
        The consumer group of the client, None if it is a producer.

    Raises:
        ProxyError: The settings are too large, or a name or filter in them is not allowed, or
            they are those of a consumer of lite topics.
    """
    if settings.ByteSize() > SETTINGS_MAX:
        raise ProxyError(
            Code.BAD_REQUEST,
            f"the settings have {settings.ByteSize()} bytes, the limit is {SETTINGS_MAX}",
        )
    names = frozenset(reserved)
    kind = settings.WhichOneof("pub_sub")
    if kind is None:
        raise ProxyError(
            Code.BAD_REQUEST, "the settings are neither for publishing nor for subscribing"
        )
    publishing, subscription = settings.publishing, settings.subscription
    _check_count(len(publishing.topics) + len(subscription.subscriptions))
    if kind == "publishing":
        client.published = {topic_name(topic, names) for topic in publishing.topics}
        client.client_type = settings.client_type
        return None
    group = group_name(subscription.group)
    check_type(settings.client_type, group)
    entries: dict[str, SubscriptionData] = {}
    for entry in subscription.subscriptions:
        topic = topic_name(entry.topic, names)
        entries[topic] = subscription_of(topic, entry.expression)
    client.subscriptions = {group: entries}
    client.client_type = settings.client_type
    return group


def check_type(client_type: int, group: str) -> None:
    """Raise ProxyError if a consumer is of a type that its group does not have.

    A consumer of lite topics expects only the messages of its own lite topics, so it must not get
    those of a whole topic. RocketMQ refuses it with the same code and words.
    """
    if client_type in LITE:
        raise ProxyError(
            Code.ILLEGAL_CONSUMER_GROUP,
            f"regular group cannot use LITE mode: {group}; lite topics are not supported, use a "
            "PushConsumer or SimpleConsumer",
        )


def _check_count(count: int) -> None:
    if count > TOPICS_MAX:
        raise ProxyError(
            Code.BAD_REQUEST, f"the settings name {count} topics, the limit is {TOPICS_MAX}"
        )


def completed(settings: Settings, group: SubscriptionGroupConfig | None) -> Settings:
    """Return the settings of a client with the values that the server decides.

    Args:
        settings: The settings that the client has sent.
        group: The settings of its group; None for a producer, and if the group does not exist yet.
    """
    answer = Settings()
    answer.CopyFrom(settings)
    answer.metric.CopyFrom(Metric(on=False))
    if answer.WhichOneof("pub_sub") == "publishing":
        answer.publishing.max_body_size = BODY_MAX
        answer.publishing.validate_message_type = True
        answer.backoff_policy.CopyFrom(
            RetryPolicy(max_attempts=SEND_ATTEMPTS, exponential_backoff=_SEND_BACKOFF)
        )
        return answer
    subscription = answer.subscription
    subscription.fifo = bool(group is not None and group.consume_message_orderly)
    if group is not None or not subscription.HasField("receive_batch_size"):
        subscription.receive_batch_size = BATCH_MAX
    if group is not None or not subscription.HasField("long_polling_timeout"):
        subscription.long_polling_timeout.CopyFrom(Duration(seconds=int(POLL_MAX_S)))
    subscription.lite_subscription_quota = 0  # lite topics are not supported
    answer.backoff_policy.CopyFrom(backoff_of(group or SubscriptionGroupConfig("")))
    return answer


def backoff_of(group: SubscriptionGroupConfig) -> RetryPolicy:
    """Return the number of deliveries of a message to a group, and their delays."""
    policy = group.retry_policy.for_clients
    if isinstance(policy, ExponentialRetryPolicy):
        exponential = ExponentialBackoff(
            initial=_duration(policy.initial),
            max=_duration(policy.max),
            multiplier=policy.multiplier,
        )
        return RetryPolicy(max_attempts=group.max_attempts, exponential_backoff=exponential)
    customized = CustomizedBackoff(next=[_duration(ms) for ms in policy.next])
    return RetryPolicy(max_attempts=group.max_attempts, customized_backoff=customized)


def _duration(ms: int) -> Duration:
    seconds, rest = divmod(ms, 1000)
    return Duration(seconds=seconds, nanos=rest * 1_000_000)
