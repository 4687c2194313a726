"""The admission of messages with a delivery time to the timer, by the rules of RocketMQ."""

from collections.abc import Callable, Mapping
from random import random

from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.timer.timer_service import TimerService
from firetrail.errors import RequestError
from firetrail.format.files.timer import TIMER_QUEUE, TIMER_TOPIC
from firetrail.format.names import RETRY_PREFIX
from firetrail.format.properties import (
    DELAY,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TIMER_TIMES,
    UNIQ_KEY,
)
from firetrail.format.recall_handle import RecallHandle
from firetrail.format.values.delay import level_in
from firetrail.format.values.integers import number_in
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.settings.settings_table import Live
from firetrail.text import human_duration


class TimerAdmission:
    """Decides whether messages wait for their delivery time."""

    def __init__(
        self, timer: TimerService, live: Live[BrokerConfig], now_ms: Callable[[], int]
    ) -> None:
        self._timer = timer
        self._live = live
        self._now_ms = now_ms

    def admit(
        self, properties: dict[str, str], topic: str, queue_id: int, *, half: bool = False
    ) -> tuple[str, int]:
        """Return topic and queue of a message with a delivery time: the timer's if it has to wait.

        Args:
            properties: Its properties, which this changes to those that it is stored with.
            topic: Its destination.
            queue_id: The queue of that topic.
            half: Whether it begins a transaction. Default: False.

        Raises:
            RequestError: The delivery time is not acceptable, or the timer is off or congested.
        """
        here = topic, queue_id
        if level_in(properties.get(DELAY)):  # a delay level takes precedence
            for name in TIMER_TIMES:
                properties.pop(name, None)
            return here
        if TIMER_OUT_MS in properties or topic == TIMER_TOPIC:
            return here  # it was delivered by a timer before
        if half:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                "a half message cannot have a delivery time: remove TIMER_DELAY_SEC, "
                "TIMER_DELAY_MS and TIMER_DELIVER_MS, or send it without a transaction",
            )
        config = self._live.current
        if not self._timer.is_enabled:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                "accurate timer message is not enabled, timerWheelEnable is false",
            )
        now = self._now_ms()
        time = _delivery_time(properties, now)
        if time is None:
            raise _illegal("the delay or the delivery time should be a whole number")
        longest_s = config.timer_max_delay_s
        if time - now > longest_s * 1000:
            raise _illegal(
                f"the delay time should not be bigger than the max delay {longest_s * 1000}ms, "
                f"which is {human_duration(longest_s)}; choose an earlier time, or raise "
                "timerMaxDelaySec of the broker"
            )
        if time <= now:
            if TIMER_DEL_UNIQKEY in properties:
                raise _illegal(
                    "the delay time should be bigger than the current time if it recalls a message"
                )
            return here
        out = slot_before(time, config.timer_precision_ms)
        self._check_congestion(out)
        properties |= {TIMER_OUT_MS: str(out), REAL_TOPIC: topic, REAL_QID: str(queue_id)}
        return TIMER_TOPIC, TIMER_QUEUE

    def _check_congestion(self, out_ms: int) -> None:
        """Refuse some messages for a slot with too many, and all if it has twice as many."""
        most = self._live.current.timer_congestion
        waiting = self._timer.waiting_at(out_ms)
        if waiting > most and (waiting >= 2 * most or random() < (waiting - most) / most):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"timer message is under flow control: {waiting} messages wait for the same time, "
                f"and timerCongestNumEachSlot is {most}; choose another time",
            )

    def recall_handle(self, properties: Mapping[str, str]) -> str | None:
        """Return the handle that recalls a message of the timer topic; None if it has no key."""
        topic, key = properties.get(REAL_TOPIC), properties.get(UNIQ_KEY)
        out = number_in(properties.get(TIMER_OUT_MS), 0)
        if not topic or not key or out is None:
            return None
        if topic.startswith(RETRY_PREFIX):
            return None
        # One ms later, because the time is rounded down once more when the handle is used.
        return RecallHandle(topic, self._live.current.name, out + 1, key).encode()


def slot_before(time_ms: int, precision_ms: int) -> int:
    """Return the slot after whose end a message is delivered; it ends at ``time_ms`` or later."""
    return (time_ms - 1) // precision_ms * precision_ms


def _delivery_time(found: Mapping[str, str], now_ms: int) -> int | None:
    """Return the delivery time in the properties, in ms since 1970; None if it is not a number."""
    for name, unit, start in (
        (TIMER_DELAY_SEC, 1000, now_ms),
        (TIMER_DELAY_MS, 1, now_ms),
        (TIMER_DELIVER_MS, 1, 0),
    ):
        if name in found:
            number = number_in(found[name])
            return None if number is None else start + number * unit
    return None


def _illegal(reason: str) -> RequestError:
    """Return the refusal of a delivery time; it begins as RocketMQ's does."""
    return RequestError(ResponseCode.MESSAGE_ILLEGAL, f"timer message illegal, {reason}")
