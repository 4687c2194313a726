"""What a listener makes of a message: every outcome is success, failure, or the end of its task."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable

from firetrail.client.received import Received
from firetrail.errors import ConfigError
from firetrail.remoting.client import is_cancelled

Listener = Callable[[Received], Awaitable[None] | None]
"""Consumes a message. If it raises, the message comes again later."""

_log = logging.getLogger(__name__)


class Listening:
    """Calls a listener."""

    def __init__(self, listener: Listener) -> None:
        if not callable(listener):
            raise ConfigError("listener", listener, "expected a function that takes a message")
        if inspect.isgeneratorfunction(listener) or inspect.isasyncgenfunction(listener):
            raise ConfigError("listener", listener, "a function with 'yield' would never run")
        self._listener = listener
        self._has_warned = False

    async def outcome(self, message: Received) -> BaseException | None:
        """None if the listener has consumed the message, else why it has not.

        A CancelledError that the listener raises by itself is a failure like any other. It is
        raised here only if the task that this runs in is cancelled; KeyboardInterrupt and
        SystemExit, which end the event loop, are raised as well. Then there is no outcome.
        """
        try:
            returned: object = self._listener(message)
            if inspect.isawaitable(returned):
                returned = await returned
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            return error
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            return error
        if inspect.isgenerator(returned) or inspect.isasyncgen(returned):
            return TypeError("the listener returned a generator, which nobody runs")
        if returned is not None and not self._has_warned:
            self._has_warned = True
            _log.warning("a listener returned %r: ignored, only an error is a failure", returned)
        return None
