"""The limits of a receive or a pull: time and number of messages, and their selection."""

from collections.abc import Callable
from functools import lru_cache

from firetrail.client.consumers.subscription import by_sql, by_tags
from firetrail.errors import ConfigError, ProxyError
from firetrail.proxy.conversion.message_properties import milliseconds
from firetrail.proxy.schema.messages import Code, Duration, FilterExpression, FilterType, Settings
from firetrail.proxy.transport.call import Call
from firetrail.remoting.messages.bodies import SubscriptionData

POLL_MIN_S, POLL_MAX_S = 5.0, 20.0
"""Limits of the time that a receive waits for messages."""
MARGIN_S = 0.2
"""The time before its deadline at which a receive is answered, so that the answer arrives in
time."""
REQUEST_TIMEOUT_S = 3.0
"""The request timeout of clients that have not sent any settings."""
VERSION_WITH_CODE = "5.0.3"
"""Clients of older versions do not know ILLEGAL_POLLING_TIME. Versions are compared as text."""
EXPRESSION_MAX = 16 << 10
"""Maximum length of a filter expression in characters."""
REMEMBERED, REMEMBERED_LENGTH = 1024, 256
"""Maximum number of lists of tags of receives that are remembered, and their maximum length."""


def batch_size(asked: int, most: int) -> int:
    """Return the number of messages that a call gets at most; raise ProxyError for fewer than one.

    Args:
        asked: The number in the request.
        most: The limit.
    """
    if asked <= 0:
        raise ProxyError(Code.BAD_REQUEST, f"the batch size {asked} is too small")
    return min(asked, most)


def poll_s(call: Call, asked: Duration | None, settings: Settings | None) -> float:
    """Return the time that a receive waits.

    Args:
        call: The call, which may have a deadline.
        asked: The time that the request asks for, None if it does not.
        settings: The settings of the client, None if it has not sent any.

    Raises:
        ProxyError: The deadline leaves less than the shortest time.
    """
    left_s = call.remaining_s()
    if asked is not None:
        wanted_s = milliseconds(asked) / 1000
    elif left_s is not None:
        timeout_s = milliseconds(settings.request_timeout) / 1000 if settings is not None else 0
        wanted_s = left_s - (timeout_s or REQUEST_TIMEOUT_S) / 2
    else:
        wanted_s = POLL_MAX_S
    wanted_s = min(max(wanted_s, POLL_MIN_S), POLL_MAX_S)
    if left_s is None:
        return wanted_s
    if left_s < POLL_MIN_S:
        is_old = call.metadata.get("x-mq-client-version", "") < VERSION_WITH_CODE
        raise ProxyError(
            Code.BAD_REQUEST if is_old else Code.ILLEGAL_POLLING_TIME,
            f"the deadline is in {left_s:.3f} s, but a receive takes at least {POLL_MIN_S:g} s; "
            "use a longer deadline",
        )
    return max(min(wanted_s, left_s - MARGIN_S), 0.0)


def subscription_of(
    topic: str, expression: FilterExpression, tags: Callable[[str, str], SubscriptionData] = by_tags
) -> SubscriptionData:
    """Return a new subscription to the messages of a topic that a filter selects.

    Args:
        topic: The topic.
        expression: The filter.
        tags: Returns the subscription to tags. Default: a new one, which replaces older ones of its
            group in a broker.

    Raises:
        ProxyError: The expression is invalid.
    """
    text = expression.expression
    if len(text) > EXPRESSION_MAX:
        raise ProxyError(
            Code.ILLEGAL_FILTER_EXPRESSION,
            f"the filter expression has {len(text)} characters, the limit is {EXPRESSION_MAX}",
        )
    try:
        return by_sql(topic, text) if expression.type == FilterType.SQL else tags(topic, text)
    except ConfigError as error:
        raise ProxyError(Code.ILLEGAL_FILTER_EXPRESSION, str(error)) from None


def filter_of(topic: str, expression: FilterExpression) -> SubscriptionData:
    """Return the filter of a receive or pull as a subscription, which may be a cached one.

    Raises:
        ProxyError: The expression is invalid.
    """
    return subscription_of(topic, expression, _by_known_tags)


_remembered = lru_cache(maxsize=REMEMBERED)(by_tags)


def _by_known_tags(topic: str, text: str) -> SubscriptionData:
    is_short = len(text) <= REMEMBERED_LENGTH
    return _remembered(topic, text) if is_short else by_tags(topic, text)
