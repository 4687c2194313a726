"""The service of a master that sends the commit log to every replica that connects."""

import logging
import socket
from collections.abc import Callable

from firetrail.pace.limited_log import LimitedLog
from firetrail.remoting.connections.remoting_client import split_address
from firetrail.replication.ha.ha_connection import HAConnection
from firetrail.replication.ha.ha_port import HAPort
from firetrail.replication.ha.ha_source import HASource

CONNECTIONS_MAX = 32
"""Maximum number of connections. If there are more, one that has never reported makes room, or the
new one is closed."""
FINISH_S = 2.0
"""The time that a stop waits for replicas that lack messages or their confirmation."""
FINISH_POLL_MS = 2

_log = logging.getLogger(__name__)


class HAService:
    """Serves the replicas that connect to the HA port of a master."""

    def __init__(
        self, source: HASource, port: HAPort, refusal: Callable[[str], str] = lambda ip: ""
    ) -> None:
        """Prepare to serve replicas.

        Args:
            source: The log and the settings that they are served from.
            port: The port that they connect to.
            refusal: Returns why a peer with an IP address may not connect; empty if it may. The
                default returns "".
        """
        self._source = source
        self._refusal = refusal
        self._port = port
        self._guard = source.threads.lock()
        self._connections: tuple[HAConnection, ...] = ()
        self._stopped = False
        self._limited_log = LimitedLog(_log, source.clock.monotonic)

    @property
    def connections(self) -> tuple[HAConnection, ...]:
        """The connected replicas."""
        return self._connections

    def start(self) -> None:
        """Serve replicas that connect from now on."""
        self._port.on_connected = self._serve

    def wake(self) -> None:
        """Send new records of the log to all replicas."""
        for connection in self._connections:
            connection.wake()

    def stop(self) -> None:
        """Serve no more replicas: let those that follow closely catch up, and disconnect all."""
        self._port.on_connected = None
        self._finish()
        with self._guard:
            self._stopped = True
        for connection in self.connections:
            connection.close()
            connection.join()

    def _finish(self) -> None:
        """Wait until the replicas have the whole log and may show it.

        A planned hand-over then loses nothing, and consumers of a replica see the last messages. A
        replica also gets the part that has to be synced before it may be sent.
        """
        clock, end = self._source.clock, self._source.log.max_offset
        over_at = clock.monotonic() + FINISH_S
        self.wake()
        while clock.monotonic() < over_at and any(
            connection.lacks(end) for connection in self._connections
        ):
            clock.sleep_ms(FINISH_POLL_MS)

    def _serve(self, connection: socket.socket, address: str) -> None:
        refusal = self._refusal(split_address(address)[0]) or self._no_room()
        if refusal:
            text = f"the connection of replica {address} was refused: {refusal}"
            self._limited_log.log(logging.WARNING, "refused", text)
            connection.close()
            return
        with self._guard:
            if self._stopped:
                connection.close()
                return
            replica = HAConnection(
                connection, address, self._source, self._closed, self._limited_log
            )
            self._set_connections((*self._connections, replica))
            replica.start()

    def _no_room(self) -> str:
        """Return why there is no room for a connection; close the oldest silent one for it."""
        connections = self._connections
        if len(connections) < CONNECTIONS_MAX:
            return ""
        full = f"there are {CONNECTIONS_MAX} connections"
        silent = next((one for one in connections if not one.has_reported), None)
        if silent is None:
            return full
        silent.close(f"{full}, and it has reported nothing")
        return ""

    def _closed(self, connection: HAConnection) -> None:
        with self._guard:
            others = (other for other in self._connections if other is not connection)
            self._set_connections(tuple(others))

    def _set_connections(self, connections: tuple[HAConnection, ...]) -> None:
        self._connections = connections
        self._source.log.on_sendable = self.wake if connections else None
