"""A server process as its operator sees it: signals, and messages to the service manager.

SIGTERM and Ctrl-C stop the server. SIGHUP lets it read its files again: the log file is opened
again, and certificates and settings are read. In a terminal, SIGHUP means that the terminal was
closed, and stops the server.
"""

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from firetrail.cli.servers import log_output
from firetrail.cli.servers.service_manager import ServiceManager
from firetrail.errors import FiretrailError
from firetrail.pace.periodic import repeat

_log = logging.getLogger(__name__)

Reload = Callable[[], Awaitable[str]]
"""Reads the files of a server again, and returns a description of the changes for the log."""


class Service:
    """One server process. Create it before the server starts: until then, signals kill the
    process."""

    def __init__(self, reload: Reload | None = None, manager: ServiceManager | None = None) -> None:
        """Handle signals from now on.

        Args:
            reload: Called after SIGHUP, once the server runs. Default: only the log file is opened
                again.
            manager: The receiver of the state. Default: the one in the environment.
        """
        self._reload = reload
        self._manager = manager or ServiceManager()
        self.stop = stop_event()
        """Set when the server has to stop."""
        self._hangup = asyncio.Event()
        at_hangup = self.stop if _is_interactive() else self._hangup
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, at_hangup.set)

    async def until_stopped(self, status: str = "serving clients") -> None:
        """Tell the service manager that the server runs, and wait for the signal to stop.

        Args:
            status: The text that the service manager shows.
        """
        self._manager.ready(status)
        with self._watched():
            stopped = asyncio.ensure_future(self.stop.wait())
            while not self.stop.is_set():
                hung_up = asyncio.ensure_future(self._hangup.wait())
                await asyncio.wait({stopped, hung_up}, return_when=asyncio.FIRST_COMPLETED)
                hung_up.cancel()
                if self._hangup.is_set() and not self.stop.is_set():
                    self._hangup.clear()
                    await self._read_again()
                    self._manager.ready(status)
            await stopped
        self._manager.stopping()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Tell the watchdog regularly that the event loop runs."""
        time_limit = self._manager.watchdog_s
        if time_limit is None:
            yield
            return

        def report() -> float:
            self._manager.alive()
            return time_limit / 2

        trouble = "the service manager cannot be told that the server runs; will retry"
        watching = asyncio.ensure_future(repeat(report, trouble, _log))
        try:
            yield
        finally:
            watching.cancel()

    async def _read_again(self) -> None:
        self._manager.reloading()
        try:
            log_output.reopen()
            changed = await self._reload() if self._reload is not None else ""
        except (OSError, FiretrailError) as error:
            _log.error("SIGHUP: not everything was read again: %s", error)
        else:
            _log.info("SIGHUP: files were read again; %s", changed or "no setting has changed")


def stop_event() -> asyncio.Event:
    """Return an event that SIGTERM and Ctrl-C set.

    Call this before the server starts: a signal that arrives earlier would kill the process.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def _is_interactive() -> bool:
    return any(stream.isatty() for stream in (sys.stdin, sys.stdout) if stream is not None)
