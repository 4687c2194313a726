"""Clients that mostly send messages with a delivery time."""

from tests.crash.power_loss.broker_survey import Users


class TimerUsers(Users):
    """See :class:`Users`."""

    timers = 80
