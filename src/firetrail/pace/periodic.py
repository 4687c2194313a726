"""Steps that are repeated until they are cancelled, and survive their failures.

Every loop of a server that works at intervals is one of these. A loop that ended silently at its
first exception would let the state grow that it keeps small.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, cast

from firetrail.errors import FiretrailError
from firetrail.pace.reminders import Reminders

AFTER_ERROR_S = 1.0


class GuardedStep:
    """A step whose failures are logged and counted.

    The same error is logged again at growing intervals, with the number of failures so far.

    Args:
        step: A function, or a coroutine function.
        trouble: The meaning of a failure, as the log states it.
        log: The log that it is written to.
        level: The level of the line (default: that of an error).
        expected: Errors that explain themselves; others are logged with their traceback (default:
            those of Firetrail).
    """

    def __init__(
        self,
        step: Callable[[], object],
        trouble: str,
        log: logging.Logger,
        *,
        level: int = logging.ERROR,
        expected: type[Exception] = FiretrailError,
    ) -> None:
        self._step = step
        self._level = level
        self._expected = expected
        self._trouble = trouble
        self._log = log
        self._reminders: Reminders | None = None
        self.failures = 0
        self._since_success = 0

    @property
    def is_failing(self) -> bool:
        """Whether the step failed when it was run last."""
        return self._since_success > 0

    async def run(self) -> Any:
        """Return the result of the step; None if it fails."""
        try:
            result = self._step()
            if isawaitable(result):
                result = await result
        except Exception as error:
            self._note(error)
            return None
        if self._since_success and self._reminders is not None:
            self._reminders.forget()
        self._since_success = 0
        return result

    def _note(self, error: Exception) -> None:
        self.failures += 1
        self._since_success += 1
        if self._reminders is None:
            self._reminders = Reminders(asyncio.get_running_loop().time)
        if not self._reminders.is_due(f"{type(error).__name__} {error}"):
            return
        failures = self._since_success
        again = f" ({failures} failures in a row)" if failures > 1 else ""
        trace = None if isinstance(error, self._expected) else error
        text = str(error) or type(error).__name__
        self._log.log(self._level, "%s: %s%s", self._trouble, text, again, exc_info=trace)


async def repeat(
    step: Callable[[], float | Awaitable[float]], trouble: str, log: logging.Logger
) -> None:
    """Call ``step`` forever; it returns how many seconds to wait before the next call.

    If it fails, the error is logged after the words of ``trouble``, and the step is retried.
    """
    guarded = GuardedStep(step, trouble, log)
    while True:
        pause = cast(float | None, await guarded.run())
        await asyncio.sleep(AFTER_ERROR_S if pause is None else pause)


async def every(pause_s: Callable[[], float] | float, *steps: GuardedStep) -> None:
    """Wait and do all steps, forever. A step that fails keeps no other one from its turn.

    Args:
        pause_s: The pause before each round in seconds, or a function that returns it.
        steps: The steps of each round.
    """
    while True:
        await asyncio.sleep(pause_s() if callable(pause_s) else pause_s)
        for step in steps:
            await step.run()


async def woken(event: asyncio.Event, within_s: float) -> bool:
    """Wait until an event is set, and clear it; return False if it is not set in time.

    A step of :func:`repeat` that waits for something at its end returns 0.

    Args:
        event: The event.
        within_s: The longest wait in seconds.
    """
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True
