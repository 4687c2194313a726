"""The client and the address of ``firetrail replica`` actions that ask brokers for their roles."""

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from firetrail.errors import ConfigError
from firetrail.remoting.connections.remoting_client import RemotingClient, split_address

NOT_FIRETRAIL = "this is not a Firetrail broker, so its role can be changed only by a restart"


@asynccontextmanager
async def broker_client() -> AsyncIterator[RemotingClient]:
    """Yield a client, and close it at the end."""
    client = RemotingClient()
    try:
        yield client
    finally:
        await client.close()


def broker_address(text: str) -> str:
    """Parse an argument that is the address of one broker."""
    try:
        split_address(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
