"""Checks of the arguments of clients, in addition to :mod:`firetrail.format.values.arguments`."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

from firetrail.errors import ConfigError, WrongTypeError
from firetrail.format.names import GROUP_RULE, is_group
from firetrail.format.values.arguments import instance, mapping, number, text
from firetrail.format.values.integers import INT32_MAX
from firetrail.remoting.connections.remoting_client import split_address
from firetrail.remoting.messages.bodies import MessageQueue, SubscriptionData

Choice = TypeVar("Choice", bound=StrEnum)


def checked_group(name: str) -> str:
    """Return the name of a group; raise ConfigError if it is not a valid one."""
    if not is_group(instance("group", name, str)):
        raise ConfigError("group", name, GROUP_RULE)
    return name


def one_of(kind: type[Choice], name: str, value: str) -> Choice:
    """Return the member of an enumeration with a value, or raise ConfigError."""
    try:
        return kind(value)
    except ValueError:
        members = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
        raise ConfigError(name, value, f"expected one of {members}") from None


def checked_queue(queue: MessageQueue) -> MessageQueue:
    """Return a queue; raise ConfigError if one of its fields is not valid."""
    instance("queue", queue, MessageQueue)
    text("queue.topic", queue.topic)
    text("queue.broker_name", queue.broker_name)
    number("queue.queue_id", queue.queue_id, most=INT32_MAX)
    return queue


def checked_subscription(
    name: str,
    subscription: SubscriptionData | None,
    topic: str,
    expected: str = "expected the result of by_tags or by_sql",
) -> SubscriptionData | None:
    """Return a subscription, or None; raise ConfigError if it belongs to another topic.

    ``expected`` describes the allowed values in the error for a value of another type.
    """
    if subscription is None:
        return None
    if not isinstance(subscription, SubscriptionData):
        raise WrongTypeError(name, subscription, expected)
    if subscription.topic != topic:
        what = f"is a subscription of {subscription.topic}, not of {topic}"
        raise ConfigError(name, subscription, what)
    return subscription


def checked_address(address: str, name: str = "address") -> str:
    """Return an address; raise ConfigError unless it is ``HOST:PORT``."""
    text(name, address)
    try:
        split_address(address)
    except ConfigError as error:
        raise ConfigError(name, address, error.allowed) from None
    return address


def name_servers(namesrv: str | Sequence[str]) -> list[str]:
    """Return the addresses of name servers; raise ConfigError if there are none."""
    allowed = "expected HOST:PORT, or several, in a list or separated by ';'"
    if isinstance(namesrv, bytes) or not isinstance(namesrv, str | Sequence):
        raise WrongTypeError("namesrv", namesrv, allowed)
    given = namesrv.split(";") if isinstance(namesrv, str) else namesrv
    if not all(isinstance(each, str) for each in given):
        raise WrongTypeError("namesrv", namesrv, allowed)
    addresses = [each.strip() for each in given if each.strip()]
    if not addresses:
        raise ConfigError("namesrv", namesrv, allowed)
    return [checked_address(address, "namesrv") for address in addresses]


def check_settings(settings: Mapping[str, str]) -> None:
    """Raise ConfigError unless each setting fits into one line of a settings file."""
    for key, value in mapping("settings", settings).items():
        text("settings", key)
        if "\n" in key + instance(f"settings[{key!r}]", value, str):
            raise ConfigError(f"settings[{key!r}]", value, "contains a line break; remove it")
