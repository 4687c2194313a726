"""Backoff: repeated calls to brokers that cannot be reached, for example because they restart.

Calls that must not take effect twice are repeated only if they reached no broker.
"""

import asyncio
import logging
import random
from asyncio import sleep as pause
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from firetrail.errors import NoRouteYetError, NotReachedError, RequestError

REACH_S = 10.0
"""The time that calls without a time limit of their own wait for a broker that cannot be
reached."""
FIRST_PAUSE_S = 0.1
"""The longest pause before the second attempt; it doubles with every further attempt."""
PAUSE_MAX_S = 1.0
"""The longest pause between two attempts."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


def pauses(first_s: float, most_s: float = PAUSE_MAX_S) -> Iterator[float]:
    """Yield pauses that grow up to a limit. They are random, so that clients spread out."""
    while True:
        yield first_s * random.uniform(0.5, 1.0)
        first_s = min(first_s * 2, most_s)


def was_not_sent(error: Exception) -> bool:
    """Return whether an error means that no broker was reached, and that one may be soon."""
    if isinstance(error, NotReachedError):
        return error.retriable and not error.may_have_arrived
    return isinstance(error, NoRouteYetError)


class Backoff:
    """Repeats calls that reach no broker. ``owner`` is the name of the client, for the log."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._is_waiting = False  # log it once, although many calls may wait

    async def until_reached(
        self,
        call: Callable[[], Awaitable[T]],
        within_s: float,
        refresh: Callable[[], None] | None = None,
        *,
        is_harmless: bool = False,
    ) -> T:
        """Return the result of a call, which is repeated until it reaches a broker.

        Args:
            call: Sends a request.
            within_s: The time limit; then the last failure is raised.
            refresh: Called before a repetition, for example to have the route requested again.
            is_harmless: Whether the call may take effect twice without harm. It is then repeated
                after all retriable errors. Default: False.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + within_s
        for longest in pauses(FIRST_PAUSE_S):
            try:
                found = await call()
            except (NotReachedError, RequestError) as error:
                left = deadline - clock()
                may_repeat = error.retriable if is_harmless else was_not_sent(error)
                if left <= 0 or not may_repeat:
                    raise
                self._note(error, left)
            else:
                self._is_waiting = False
                return found
            await pause(min(longest, left))
            if refresh is not None:
                refresh()
        raise AssertionError("the pauses do not end")

    def _note(self, error: Exception, left: float) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            _log.warning("%s: %s; retrying for up to %g s", self._owner, error, round(left, 1))
