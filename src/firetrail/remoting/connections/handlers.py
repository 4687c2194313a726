"""Request handlers, on either side of a connection."""

from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, Protocol, TypeVar

from firetrail.errors import FiretrailError, RequestError, StoreError
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.unexpected_errors import log_unexpected
from firetrail.remoting.messages.missing_features import refusal_of
from firetrail.remoting.wire.codes import ResponseCode, request_name
from firetrail.remoting.wire.command import RemotingCommand

Answer = RemotingCommand | None | Awaitable[RemotingCommand | None]
Handler = Callable[[Connection, RemotingCommand], Answer]
"""Handles a request: returns the response, or None if there is none or the handler sends it itself.
An awaitable runs concurrently with other requests. A RequestError becomes a response with its
code."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Later(Protocol[T_co]):
    """A result that is not known yet."""

    def then(self, callback: Callable[[T_co], None]) -> None:
        """Call ``callback`` in the event loop with the result, once it is known."""

    def __await__(self) -> Generator[Any, None, T_co]: ...


class LaterAnswer:
    """The answer that follows from a later result; a callback costs a fraction of a task.

    It can be awaited, too, like any answer that takes time.
    """

    __slots__ = ("_answer", "_request", "_result")

    def __init__(
        self,
        request: RemotingCommand,
        result: Later[T],
        answer: Callable[[T], RemotingCommand | None],
    ) -> None:
        """Prepare an answer.

        Args:
            request: The request.
            result: The awaited result.
            answer: Returns the answer for the result; its failure becomes an error response.
        """
        self._request = request
        self._result = result
        self._answer: Callable[[Any], RemotingCommand | None] = answer

    def then(self, callback: Callable[[RemotingCommand | None], None]) -> None:
        """Call ``callback`` in the event loop with the answer, once it is known."""
        self._result.then(lambda result: callback(self._answered(result)))

    def __await__(self) -> Generator[Any, None, RemotingCommand | None]:
        return self._answered((yield from self._result.__await__()))

    def _answered(self, result: object) -> RemotingCommand | None:
        try:
            return self._answer(result)
        except Exception as error:
            return failure(self._request, error)


class WaitingHandler:
    """A handler whose requests may have to wait before it is called.

    The server waits, so that a costly request takes its turn, and is charged, when it runs.
    """

    __slots__ = ("_handler", "wait")

    def __init__(self, wait: Callable[[], Awaitable[None] | None], handler: Handler) -> None:
        """Combine a wait and a handler.

        Args:
            wait: Called with each request; returns an awaitable, or None if there is nothing to
                wait for.
            handler: Handles the request afterwards.
        """
        self.wait = wait
        self._handler = handler

    def __call__(self, connection: Connection, request: RemotingCommand) -> Answer:
        return self._handler(connection, request)


def answer_to(
    handlers: Mapping[int, Handler], connection: Connection, request: RemotingCommand
) -> Answer:
    """Call the handler for the code of the request, and return its answer."""
    handler = handlers.get(request.code)
    if handler is None:
        return request.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, refusal_of(request.code))
    try:
        return handler(connection, request)
    except Exception as error:
        return failure(request, error)


async def outcome_of(
    request: RemotingCommand, answer: Awaitable[RemotingCommand | None]
) -> RemotingCommand | None:
    """Await the answer of a handler; a failure becomes an error response."""
    try:
        return await answer
    except Exception as error:
        return failure(request, error)


def respond(
    connection: Connection, request: RemotingCommand, response: RemotingCommand | None
) -> None:
    """Send the response, or why it cannot be encoded, unless the request is one-way."""
    if response is None or request.is_one_way:
        return
    try:
        connection.send(response)
    except Exception as error:
        connection.send(failure(request, error))


def failure(request: RemotingCommand, error: Exception) -> RemotingCommand:
    """Return the response to a request that failed; unexpected errors are logged, too."""
    if isinstance(error, RequestError):
        return request.answer(error.code, error.remark)
    if not isinstance(error, FiretrailError):
        log_unexpected(f"{request_name(request.code)} failed with an unexpected error", error)
    code = error.code if isinstance(error, StoreError) else ResponseCode.SYSTEM_ERROR
    return request.answer(code, f"{type(error).__name__}: {error}")
