"""The HA port of a broker, to which replicas connect.

The port is bound as long as the broker runs, in every role. A port that is in use is therefore
reported when the broker starts, not when a slave is promoted, and the address that name servers
know stays valid. Connections are passed to the service of a master; a slave closes them.
"""

import logging
import selectors
import socket
from collections.abc import Callable
from contextlib import suppress

from firetrail.pace.limited_log import LimitedLog
from firetrail.remoting.connections.connection import address_text
from firetrail.remoting.servers.server_ports import binding
from firetrail.system import System

BACKLOG = 128
"""Maximum number of connections that wait to be accepted."""
ERROR_PAUSE_S = 1.0
"""Pause after a failed accept: the process may have no descriptor left."""

REMEDY = "stop the broker that runs there, or set haListenPort to another port"

OnConnected = Callable[[socket.socket, str], None]
"""Takes over a connection and the address of its peer."""

_log = logging.getLogger(__name__)


class HAPort:
    """Listens for replicas and passes their connections on.

    Attributes:
        port: The port; 0 before :meth:`open`.
        on_connected: Serves a connection. While it is None, connections are closed.
    """

    def __init__(self, system: System) -> None:
        """Prepare; :meth:`open` begins."""
        self.port = 0
        self.on_connected: OnConnected | None = None
        self._limited_log = LimitedLog(_log, system.clock.monotonic)
        self._listeners: list[socket.socket] = []
        self._waker, self._woken = socket.socketpair()
        self._thread = system.threads.thread("firetrail-ha", self._accept)

    def open(self, host: str, port: int) -> None:
        """Listen on an address.

        Args:
            host: Address or host name; all addresses of a name are used.
            port: The port; 0 picks a free one.

        Raises:
            AddressInUseError: The port is in use.
            OSError: The address cannot be bound.
        """
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                wanted = self.port or port
                with binding(host, wanted, REMEDY, what="HA port for replicas"):
                    self._listeners.append(_listener(family, (str(address[0]), wanted)))
                self.port = self._listeners[0].getsockname()[1]
        except OSError:
            self.close()
            raise
        self._thread.start()

    @property
    def listens(self) -> list[str]:
        """The addresses ``ip:port`` that the port is bound to."""
        return [address_text(listener.getsockname()) for listener in self._listeners]

    def close(self) -> None:
        """Close the port. Connections that were passed on stay open."""
        self._waker.close()
        if self._thread.is_alive():
            self._thread.join()
        for listener in self._listeners:
            listener.close()
        self._woken.close()

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for listener in self._listeners:
                selector.register(listener, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if self._woken in ready:
                    return
                for listener in self._listeners:
                    if listener not in ready:
                        continue
                    try:
                        self._accept_one(listener)
                    except OSError as error:
                        _log.warning("no replica can connect: %s; will retry", error)
                        self._pause()

    def _pause(self) -> None:
        """Wait before the next accept, unless the port is closed meanwhile."""
        self._woken.settimeout(ERROR_PAUSE_S)
        with suppress(TimeoutError):
            self._woken.recv(1, socket.MSG_PEEK)

    def _accept_one(self, listener: socket.socket) -> None:
        try:
            connection, name = listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # the peer has left already
        peer = address_text(name)
        serve = self.on_connected
        if serve is None:
            self._limited_log.log(
                logging.WARNING,
                "not a master",
                f"the connection of replica {peer} was closed: this broker is not a master; "
                "replicas have to connect to its master",
            )
            connection.close()
            return
        try:
            connection.setblocking(True)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            serve(connection, peer)
        except Exception as error:  # such as no thread for it; the port stays open for others
            text = f"replica {peer} cannot be served"
            self._limited_log.log(logging.ERROR, "not served", text, error)
            connection.close()


def _listener(family: int, address: tuple[str, int]) -> socket.socket:
    listener = socket.create_server(address, family=family, backlog=BACKLOG)
    listener.setblocking(False)
    return listener
