"""Connections for arbitrary bytes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from ssl import SSLContext


@asynccontextmanager
async def connected(
    address: str, *, tls: SSLContext | None = None, name: str | None = None, limit: int = 1 << 16
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect to ``host:port``; at the end, drop the connection and everything not yet sent.

    A connection that is only closed would wait until the peer reads what was sent, and outlive the
    event loop of the test.
    """
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(
        host, int(port), ssl=tls, server_hostname=name, limit=limit
    )
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()
