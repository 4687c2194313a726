"""What a consumer wants of a topic."""

from __future__ import annotations

import time
from collections.abc import Callable

from firetrail.client.received import Received
from firetrail.format.javahash import java_hash
from firetrail.remoting.bodies import ALL_TAGS, BY_SQL, BY_TAG, SubscriptionData


def by_tags(topic: str, expression: str = ALL_TAGS) -> SubscriptionData:
    """Messages with one of the tags, such as ``"a || b"``; all with ``"*"``."""
    version = time.time_ns() // 1_000_000
    tags = [tag.strip() for tag in expression.split("||")]
    wanted = [tag for tag in tags if tag]
    if not wanted or ALL_TAGS in wanted:
        return SubscriptionData(topic, ALL_TAGS, BY_TAG, version)
    codes = [java_hash(tag) for tag in wanted]
    return SubscriptionData(topic, expression, BY_TAG, version, wanted, codes)


def by_sql(topic: str, expression: str) -> SubscriptionData:
    """Messages whose properties meet a condition, such as ``"price > 10 AND TAGS = 'a'"``."""
    return SubscriptionData(topic, expression, BY_SQL, time.time_ns() // 1_000_000)


def wanted_by(subscription: SubscriptionData) -> Callable[[Received], bool]:
    """Whether a message is wanted: brokers compare only the hashes of tags."""
    tags = frozenset(subscription.tags_set)
    if not tags:
        return lambda message: True
    return lambda message: message.tags in tags
