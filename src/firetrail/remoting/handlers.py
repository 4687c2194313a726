"""Request handlers, on either side of a connection."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from firetrail.errors import FiretrailError, RequestError
from firetrail.remoting.codes import ResponseCode, request_name
from firetrail.remoting.command import RemotingCommand
from firetrail.remoting.connection import Connection
from firetrail.remoting.limited_log import LimitedLog
from firetrail.remoting.missing_features import refusal_of
from firetrail.system import SYSTEM

Answer = RemotingCommand | None | Awaitable[RemotingCommand | None]
Handler = Callable[[Connection, RemotingCommand], Answer]
"""Handles a request: returns the response, or None if there is none or the handler sends it itself.
An awaitable runs concurrently with other requests. A RequestError becomes a response with its
code."""

_log = logging.getLogger(__name__)
_UNEXPECTED = LimitedLog(_log, SYSTEM.clock.monotonic)


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


def failure(request: RemotingCommand, error: Exception) -> RemotingCommand:
    """Return the response to a request that failed; unexpected errors are logged, too."""
    if isinstance(error, RequestError):
        return request.answer(error.code, error.remark)
    if not isinstance(error, FiretrailError):
        name = request_name(request.code)
        text = f"{name} failed with an unexpected error"
        _UNEXPECTED.log(logging.ERROR, f"{name} {type(error).__name__}", text, error)
    return request.answer(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
