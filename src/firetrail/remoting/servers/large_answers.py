"""Answers that grow with what a server keeps: large ones are encoded outside of the event loop."""

import asyncio
from collections.abc import Callable

from firetrail.errors import RequestError
from firetrail.remoting.connections.handlers import Answer
from firetrail.remoting.wire.codes import ResponseCode, request_name
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.remoting.wire.frames import FRAME_MAX
from firetrail.text import human_size

FEW = 1_000
"""Maximum number of entries that are encoded in the event loop, which takes some milliseconds."""
ANSWER_MAX = FRAME_MAX - (1 << 10)
"""Bytes of a body that clients accept, which limit the length of a frame."""


def answer_with(request: RemotingCommand, encode: Callable[[], bytes], entries: int) -> Answer:
    """Answer a request with a table.

    Args:
        request: The request.
        encode: Returns the encoded table. It uses only data that does not change meanwhile.
        entries: The number of entries that the table has.

    Raises:
        RequestError: The answer is larger than clients accept.
    """
    if entries <= FEW:
        return _checked(request, encode())
    return _answer_later(request, encode)


async def _answer_later(request: RemotingCommand, encode: Callable[[], bytes]) -> RemotingCommand:
    return _checked(request, await asyncio.to_thread(encode))


def _checked(request: RemotingCommand, content: bytes) -> RemotingCommand:
    if len(content) > ANSWER_MAX:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the answer to {request_name(request.code)} has {human_size(len(content))}, but "
            f"clients accept {human_size(ANSWER_MAX)}; ask for single topics or groups",
        )
    return request.answer(body=content)
