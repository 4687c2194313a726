"""Subscriptions: the messages of a topic that a consumer wants."""

import logging
from collections.abc import Callable, Iterable, Mapping

from firetrail.client.cluster.client_arguments import checked_subscription
from firetrail.client.cluster.session import Session
from firetrail.client.messages.received_message import Received
from firetrail.errors import ConfigError, RequestError, WrongTypeError
from firetrail.format.names import check_topic
from firetrail.format.values.arguments import instance, text
from firetrail.format.values.javahash import java_hash
from firetrail.format.values.tags import ALL_TAGS, tags_in
from firetrail.remoting.messages.bodies import BY_SQL, BY_TAG, CheckClientBody, SubscriptionData
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.system import SYSTEM

_log = logging.getLogger(__name__)


def by_tags(topic: str, expression: str = ALL_TAGS) -> SubscriptionData:
    """Return a subscription to the messages of a topic that have one of some tags.

    Args:
        topic: The name of the topic.
        expression: The tags, such as ``"a || b"``. Default: ``"*"``, all messages.

    Raises:
        ConfigError: The expression contains no tag.
    """
    check_topic(text("topic", topic))
    instance("expression", expression, str)
    version = SYSTEM.clock.now_ms()
    wanted = tags_in(expression, f"tags of {topic}")
    if wanted is None:
        return SubscriptionData(topic, ALL_TAGS, BY_TAG, version)
    codes = [java_hash(tag) for tag in wanted]
    return SubscriptionData(topic, expression, BY_TAG, version, [*wanted], codes)


def by_sql(topic: str, expression: str) -> SubscriptionData:
    """Return a subscription to the messages of a topic whose properties meet an SQL92 condition.

    The broker evaluates the condition, and has to allow that (``enablePropertyFilter``).

    Args:
        topic: The name of the topic.
        expression: The condition, such as ``"price > 10 AND TAGS = 'a'"``.

    Raises:
        ConfigError: The condition is empty.
    """
    check_topic(text("topic", topic))
    if not instance("expression", expression, str).strip():
        raise ConfigError(f"condition for {topic}", expression, "is empty")
    return SubscriptionData(topic, expression, BY_SQL, SYSTEM.clock.now_ms())


def wanted_by(subscription: SubscriptionData) -> Callable[[Received], bool]:
    """Return a function that compares the tags of a message; brokers compare only their hashes."""
    tags = frozenset(subscription.tags_set)
    if not tags:
        return lambda message: True
    return lambda message: message.tags in tags


def wanted_of(topics: Mapping[str, str | SubscriptionData]) -> dict[str, SubscriptionData]:
    """Return subscriptions by topic; raise ConfigError if there are none, or one is invalid."""
    example = """expected topics and tags, such as {"orders": "*"}"""
    if not isinstance(topics, Mapping):
        raise WrongTypeError("topics", topics, example)
    if not topics:
        raise ConfigError("topics", topics, example)
    found = {}
    for topic, wanted in topics.items():
        subscription = by_tags(topic, wanted) if isinstance(wanted, str) else wanted
        name = f"topics[{topic!r}]"
        expected = "expected tags, '*' for all messages, or the result of by_tags or by_sql"
        if checked_subscription(name, subscription, topic, expected) is None:
            raise WrongTypeError(name, wanted, expected)
        found[topic] = subscription
    return found


async def check_with_brokers(
    session: Session, group: str, subscriptions: Iterable[SubscriptionData]
) -> None:
    """Raise RequestError if a broker rejects one of the SQL conditions; tags are never rejected.

    Every broker is asked, because each has its own settings, and the topic may not exist yet.
    """
    checked = [each for each in subscriptions if not each.is_by_tag]
    if not checked:
        return
    for name, address in (await session.brokers()).items():
        for wanted in checked:
            body = CheckClientBody(session.client_id, group, wanted).encode()
            code = RequestCode.CHECK_CLIENT_CONFIG
            try:
                answer = await session.request(address, code, body=body)
            except OSError as error:
                _log.warning("the subscriptions were not checked by %s: %s", name, error)
                break
            if answer.code not in (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
                what = f"{name} rejects the condition {wanted.sub_string!r} for {wanted.topic}"
                raise RequestError(answer.code, f"{what}: {answer.remark or 'no reason given'}")
