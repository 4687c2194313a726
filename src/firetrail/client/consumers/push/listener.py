"""Calls of listeners: each ends with success, with a failure, or with the end of its task."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any

from firetrail.client.messages.received_message import Received
from firetrail.errors import ConfigError
from firetrail.format.values.arguments import function, instance
from firetrail.remoting.connections.remoting_client import is_cancelled

Listener = Callable[[Received], Awaitable[None] | None]
"""A function, plain or async, that consumes a message. If it raises, the message is retried."""

FORCED_END_S = 1.0
"""The time to wait for the forced end of a listener that ignored its cancellation. A listener that
awaits a task which ignores its cancellation as well cannot be ended at all."""

_log = logging.getLogger(__name__)


class _AsyncCall:
    """A call of an async listener, which can be ended even if it ignores its cancellation.

    An ordinary task cannot be ended: it would keep running, and ``asyncio.run`` would not return.
    """

    def __init__(self, listener: str, message: Received, returned: Awaitable[object]) -> None:
        self._listener = listener
        self._message = message
        self._work = _awaited(returned)
        self._is_ended = False
        task = asyncio.current_task()
        assert task is not None, "listeners are called in tasks of the consumer"
        self.task = task

    def __await__(self) -> Generator[Any, None, object]:
        error: BaseException | None = None
        while True:
            try:
                waiting = self._work.send(None) if error is None else self._work.throw(error)
            except StopIteration as stop:
                return stop.value
            error = None
            try:
                yield waiting
            except BaseException as caught:
                if self._is_ended:
                    self._close()
                    raise
                error = caught

    def cancel(self) -> None:
        """Cancel the task of the call, unless it is being cancelled already."""
        if not self.task.cancelling():
            self.task.cancel()

    def end(self) -> None:
        """End the call at its ``await``: ``finally`` blocks run, ``except`` blocks do not."""
        message, queue = self._message, self._message.queue
        _log.error(
            "listener %s ignores its cancellation and is ended at its await; its message %s "
            "(%s queue %d on %s, offset %d) will be redelivered",
            self._listener,
            message.message_id,
            queue.topic,
            queue.queue_id,
            queue.broker_name,
            message.queue_offset,
        )
        self._is_ended = True
        self.task.cancel()

    def _close(self) -> None:
        try:
            self._work.close()
        except Exception as error:
            _log.error("listener %s raised while it was ended: %r", self._listener, error)


async def _awaited(returned: Awaitable[object]) -> object:
    return await returned


class ListenerCall:
    """Calls a listener, and keeps track of the running calls."""

    def __init__(self, listener: Listener) -> None:
        function("listener", listener, "async def on_message(message)")
        if inspect.isgeneratorfunction(listener) or inspect.isasyncgenfunction(listener):
            raise ConfigError(
                "listener", listener, "a function with 'yield' would never run; remove the yield"
            )
        self._listener = listener
        self._name = getattr(listener, "__qualname__", type(listener).__qualname__)
        self._running: set[_AsyncCall] = set()
        self._has_warned = False

    async def outcome(self, message: Received) -> BaseException | None:
        """Call the listener; return None if it consumed the message, otherwise its error.

        A CancelledError that the listener raises by itself is a failure like any other. It leaves
        this method only if the current task is cancelled. KeyboardInterrupt and SystemExit, which
        end the event loop, leave it as well. In these cases there is no outcome.
        """
        instance("message", message, Received)
        try:
            returned: object = self._listener(message)
            if inspect.isawaitable(returned):
                returned = await self._finished(message, returned)
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            return error
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            return error
        if inspect.isgenerator(returned) or inspect.isasyncgen(returned):
            return TypeError("the listener returned a generator, which never runs; await its work")
        if returned is not None and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "listener %s returned %r, which is ignored: raise an error to retry a message",
                self._name,
                returned,
            )
        return None

    async def _finished(self, message: Received, returned: Awaitable[object]) -> object:
        call = _AsyncCall(self._name, message, returned)
        self._running.add(call)
        try:
            return await call
        finally:
            self._running.discard(call)

    async def end(self, within_s: float) -> None:
        """Cancel all calls except the current one; end those that still run after ``within_s``."""
        me = asyncio.current_task()
        calls = [call for call in self._running if call.task is not me]
        for call in calls:
            call.cancel()
        await _wait_for(calls, within_s)
        late = [call for call in calls if call in self._running]
        for call in late:
            call.end()
        await _wait_for(late, FORCED_END_S)


async def _wait_for(calls: Sequence[_AsyncCall], within_s: float) -> None:
    if calls:
        await asyncio.wait({call.task for call in calls}, timeout=within_s)
