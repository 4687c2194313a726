"""What several actions of ``firetrail replica`` need to ask brokers for their roles."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from firetrail.remoting.client import RemotingClient

NOT_FIRETRAIL = "this is not a Firetrail broker, so its role can be changed only by a restart"


@asynccontextmanager
async def broker_client() -> AsyncIterator[RemotingClient]:
    """Yield a client, and close it at the end."""
    client = RemotingClient()
    try:
        yield client
    finally:
        await client.close()
