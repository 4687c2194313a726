"""An ASGI application that runs in the event loop of a test, without a server."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

Event = MutableMapping[str, Any]
Application = Callable[
    [Event, Callable[[], Awaitable[Event]], Callable[[Event], Awaitable[None]]], Awaitable[None]
]
_VERSION = {"version": "3.0"}


@asynccontextmanager
async def started(app: Application) -> AsyncIterator[None]:
    """Start an application as a server does, and stop it at the end."""
    asked: asyncio.Queue[Event] = asyncio.Queue()
    said: asyncio.Queue[Event] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": _VERSION, "state": {}}
    running = asyncio.ensure_future(app(scope, asked.get, said.put))

    async def do(step: str) -> None:
        await asked.put({"type": f"lifespan.{step}"})
        assert (await said.get()) == {"type": f"lifespan.{step}.complete"}

    await do("startup")
    try:
        yield
    finally:
        await do("shutdown")
        await running


async def ask(app: Application, method: str, path: str) -> tuple[int, Any]:
    """Send a request without a body; return the status and the JSON of the answer."""
    answer: list[Event] = []
    scope = {
        "type": "http",
        "asgi": _VERSION,
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "query_string": b"",
        "headers": [],
    }

    async def receive() -> Event:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(event: Event) -> None:
        answer.append(event)

    await app(scope, receive, send)
    return answer[0]["status"], json.loads(b"".join(part["body"] for part in answer[1:]))
