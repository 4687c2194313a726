"""The reload of a running server's files after SIGHUP."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from firetrail.cli.servers import server_command
from firetrail.settings.file_changes import ConfEntries, FileChanges
from firetrail.tls.server_tls import ServerTls

Take = Callable[[ConfEntries, ConfEntries], FileChanges]
"""Puts the live settings that differ between two versions of a file into effect."""

_log = logging.getLogger(__name__)


class FileReload:
    """Reads certificates and settings again."""

    def __init__(self, conf: Path | None, tls: ServerTls | None, take: Take) -> None:
        """Note the settings in the file.

        Args:
            conf: The file; None if there is none.
            tls: The certificates; None without TLS.
            take: Puts changes into effect.
        """
        self._conf = conf
        self._tls = tls
        self._take = take
        self._before = server_command.read_conf(conf)

    async def __call__(self) -> str:
        """Read the files, and return a description of the changes.

        Raises:
            ConfigError: A setting is not allowed; none takes effect.
            OSError: The file cannot be read.
        """
        if self._tls is not None:
            await asyncio.to_thread(self._tls.refresh)
        now = await asyncio.to_thread(server_command.read_conf, self._conf)
        changes = self._take(self._before, now)
        if changes.restart:
            _log.warning("%s: restart the server: %s", self._conf, ", ".join(changes.restart))
        return str(changes)
