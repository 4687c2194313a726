"""The rules for arguments of clients, beyond those for arguments in general."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

from firetrail.errors import ConfigError, WrongTypeError
from firetrail.format.arguments import instance, mapping, number, text
from firetrail.format.names import GROUP_RULE, is_group
from firetrail.remoting.bodies import MessageQueue, SubscriptionData
from firetrail.remoting.client import split_address

INT32_MAX = (1 << 31) - 1

Choice = TypeVar("Choice", bound=StrEnum)


def checked_group(name: str) -> str:
    """The name of a group. ConfigError if it cannot be one."""
    if not isinstance(name, str) or not is_group(name):
        raise ConfigError("group", name, GROUP_RULE)
    return name


def one_of(kind: type[Choice], name: str, value: str) -> Choice:
    """A member of an enumeration, given as such or as its value, or ConfigError."""
    try:
        return kind(value)
    except ValueError:
        members = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
        raise ConfigError(name, value, f"expected one of {members}") from None


def checked_queue(queue: MessageQueue) -> MessageQueue:
    """A queue of a topic."""
    instance("queue", queue, MessageQueue)
    text("queue.topic", queue.topic)
    text("queue.broker_name", queue.broker_name)
    number("queue.queue_id", queue.queue_id, most=INT32_MAX)
    return queue


def checked_subscription(
    name: str, subscription: SubscriptionData | None, topic: str
) -> SubscriptionData | None:
    """What is wanted of the topic, or None."""
    if subscription is None:
        return None
    if not isinstance(subscription, SubscriptionData):
        raise WrongTypeError(name, subscription, "expected what by_tags or by_sql returns")
    if subscription.topic != topic:
        what = f"is a subscription of {subscription.topic}, not of {topic}"
        raise ConfigError(name, subscription, what)
    return subscription


def checked_address(address: str, name: str = "address") -> str:
    """``HOST:PORT``, or ConfigError."""
    text(name, address)
    try:
        split_address(address)
    except ConfigError as error:
        raise ConfigError(name, address, error.allowed) from None
    return address


def name_servers(namesrv: str | Sequence[str]) -> list[str]:
    """The addresses of name servers."""
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
    """ConfigError unless each can be one line of a file of settings."""
    for key, value in mapping("settings", settings).items():
        text("settings", key)
        if "\n" in key + instance(f"settings[{key!r}]", value, str):
            raise ConfigError(f"settings[{key!r}]", value, "has more than one line")
