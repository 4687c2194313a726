"""Delivery times: when consumers may receive a message that was sent earlier."""

from datetime import UTC, datetime, timedelta

from firetrail.errors import ConfigError, IllegalMessageError, WrongTypeError
from firetrail.format.kernels.draft import Message
from firetrail.format.message_types import is_delayed
from firetrail.format.properties import TIMER_DELIVER_MS, TIMER_OUT_MS, decode_properties
from firetrail.format.values.integers import whole
from firetrail.system import SYSTEM

DeliveryTime = datetime | timedelta | int
"""A moment, a time from now, or ms since 1970."""

LEAST_MS = 100_000_000_000
"""Earlier moments (before 1973) as numbers are taken for mistakes: seconds, or a delay in ms."""

_EXPECTED = "expected a datetime, a timedelta from now, or a number of ms since 1970"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def delivery_properties(message: Message, deliver_at: DeliveryTime) -> dict[str, str]:
    """Return the properties with which brokers deliver a message at a time.

    Raises:
        IllegalMessageError: The message is delayed in another way, too.
        ConfigError: The time is out of range; WrongTypeError if it is not a time.
    """
    properties = decode_properties(message.encode_properties())
    if is_delayed(properties) or TIMER_OUT_MS in properties:  # a broker would ignore the time
        what = "the message also has a delay_level or a property TIMER_*; give one of them"
        raise IllegalMessageError("deliver_at", what)
    return {TIMER_DELIVER_MS: str(delivery_ms(deliver_at))}


def delivery_ms(deliver_at: DeliveryTime) -> int:
    """Return a delivery time in ms since 1970, rounded up."""
    if isinstance(deliver_at, timedelta):
        if deliver_at < timedelta():
            raise ConfigError("deliver_at", deliver_at, "expected a time from now, not before it")
        return SYSTEM.clock.now_ms() - -deliver_at // _MS
    if isinstance(deliver_at, datetime):
        try:
            return max(-((_EPOCH - deliver_at.astimezone(UTC)) // _MS), LEAST_MS)  # all are past
        except (OverflowError, OSError, ValueError):
            raise ConfigError("deliver_at", deliver_at, "is out of range") from None
    if not isinstance(deliver_at, int) or isinstance(deliver_at, bool):
        raise WrongTypeError("deliver_at", deliver_at, _EXPECTED)
    found = whole("deliver_at", deliver_at)
    if found < LEAST_MS:
        what = f"is before 1973; {_EXPECTED}"
        raise ConfigError("deliver_at", deliver_at, what)
    return found
