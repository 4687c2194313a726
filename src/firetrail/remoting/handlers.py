"""How a request becomes a response, on either side of a connection."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from firetrail.errors import FiretrailError, RequestError
from firetrail.remoting.codes import ResponseCode
from firetrail.remoting.command import Command
from firetrail.remoting.connection import Connection

Answer = Command | None | Awaitable[Command | None]
Handler = Callable[[Connection, Command], Answer]
"""Answers a request: with a response, or with None if it takes care of that itself. What is
awaited runs beside other requests. RequestError stands for a response with that code."""

_log = logging.getLogger(__name__)


def answer_to(handlers: Mapping[int, Handler], connection: Connection, request: Command) -> Answer:
    """What the handler of the request's code says."""
    handler = handlers.get(request.code)
    if handler is None:
        remark = f" request type {request.code} not supported"
        return request.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
    try:
        return handler(connection, request)
    except Exception as error:
        return failure(request, error)


async def outcome_of(request: Command, answer: Awaitable[Command | None]) -> Command | None:
    """The response for which something is awaited first."""
    try:
        return await answer
    except Exception as error:
        return failure(request, error)


def failure(request: Command, error: Exception) -> Command:
    """The response to a request that failed; what nobody has foreseen is logged as well."""
    if isinstance(error, RequestError):
        return request.answer(error.code, error.remark)
    if not isinstance(error, FiretrailError):
        _log.error("request %d failed", request.code, exc_info=error)
    return request.answer(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
