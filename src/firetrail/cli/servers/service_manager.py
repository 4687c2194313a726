"""Messages to the service manager that started a server: the protocol ``sd_notify`` of systemd.

A service manager passes the name of a datagram socket in ``NOTIFY_SOCKET``. Each datagram has lines
``NAME=value``. Without that variable nothing is sent.
"""

import logging
import os
import socket
from collections.abc import Mapping

from firetrail.format.values.integers import number_in
from firetrail.system import SYSTEM

SOCKET = "NOTIFY_SOCKET"
WATCHDOG_USEC = "WATCHDOG_USEC"
WATCHDOG_PID = "WATCHDOG_PID"

_log = logging.getLogger(__name__)


class ServiceManager:
    """Sends the state of this process to its service manager."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """Read the environment.

        Args:
            environment: Its variables. Default: those of the process.
        """
        self._address = environment.get(SOCKET, "")
        self.watchdog_s = _watchdog_s(environment) if self._address else None
        """The service manager restarts the process if it hears nothing for this time; None if it
        does not."""
        self._has_failed = False

    def ready(self, status: str) -> None:
        """Report that the server accepts clients."""
        self.tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Report that the settings are being read again; :meth:`ready` ends that."""
        now = SYSTEM.clock.monotonic()
        self.tell("RELOADING=1", f"MONOTONIC_USEC={int(now * 1_000_000)}", "STATUS=reloading")

    def stopping(self) -> None:
        """Report that the server stops."""
        self.tell("STOPPING=1", "STATUS=stopping")

    def alive(self) -> None:
        """Report that the event loop runs."""
        self.tell("WATCHDOG=1")

    def tell(self, *lines: str) -> None:
        """Send lines. A failure is logged once: the server works without a service manager."""
        if not self._address:
            return
        name = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)  # a service manager that does not read must not stop us
                sender.sendto("\n".join(lines).encode(), name)
        except OSError as error:
            if not self._has_failed:
                _log.warning(
                    "the service manager at %s cannot be notified: %s", self._address, error
                )
            self._has_failed = True


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    """Return the time limit of the watchdog; None if there is none for this process."""
    time_limit = number_in(environment.get(WATCHDOG_USEC), 1)
    is_ours = environment.get(WATCHDOG_PID) in (None, "", str(os.getpid()))
    return time_limit / 1_000_000 if is_ours and time_limit is not None else None
