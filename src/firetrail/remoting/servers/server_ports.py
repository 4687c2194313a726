"""The ports that a server listens on, and the error if one is in use."""

import asyncio
import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from firetrail.errors import AddressInUseError
from firetrail.remoting.connections.connection import address_text

BACKLOG = 1024
"""Connections that the kernel keeps until they are accepted."""
FREE_IT = "stop the program that listens there, or choose another port"
"""The remedy that helps with every port."""


@contextmanager
def binding(host: str, port: int, remedy: str = FREE_IT, *, what: str = "port") -> Iterator[None]:
    """Raise AddressInUseError if an address cannot be bound because its port is in use.

    Args:
        host: The address.
        port: The port.
        remedy: The remedy. Default: stop the other program, or choose another port.
        what: The kind of port for messages, with the word port. Default: "port".
    """
    try:
        yield
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        place = address_text((host, port))
        raise AddressInUseError(f"{place}: the {what} is in use; {remedy}") from None


class Listeners:
    """The sockets with which a server accepts connections, in an event loop."""

    def __init__(self, connected: Callable[[], asyncio.BaseProtocol]) -> None:
        """Start without sockets.

        Args:
            connected: Returns the protocol of each accepted connection.
        """
        self._connected = connected
        self._servers: list[asyncio.Server] = []

    async def open(self, host: str, port: int, remedy: str = FREE_IT) -> int:
        """Listen on an address, and return the port; port 0 picks a free one.

        Args:
            host: The address.
            port: The port.
            remedy: The remedy if the port is in use. Default: stop the other program, or
                choose another port.

        Raises:
            AddressInUseError: The port is in use.
            OSError: The address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        with binding(host, port, remedy):
            server = await loop.create_server(self._connected, host, port, backlog=BACKLOG)
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    @property
    def addresses(self) -> list[str]:
        """The addresses ``ip:port`` of the sockets."""
        return [
            address_text(socket.getsockname())
            for server in self._servers
            for socket in server.sockets
        ]

    def close(self) -> None:
        """Accept no more connections."""
        for server in self._servers:
            server.close()

    async def wait_closed(self) -> None:
        """Wait until all sockets are closed."""
        for server in self._servers:
            await server.wait_closed()
