"""The access control of a server without a store: its users are in a file that others change."""

import asyncio
import logging
from pathlib import Path

from firetrail.access.audit.audit_log import AuditLog
from firetrail.access.guard import AccessPolicy, Guard
from firetrail.access.user_limits import UserLimits
from firetrail.access.user_store import UserStore, open_users
from firetrail.auth.credentials import Credentials
from firetrail.errors import StoreError
from firetrail.pace.periodic import GuardedStep, every
from firetrail.settings.audit_settings import AuditSettings
from firetrail.system import System

REFRESH_S = 5.0
"""Interval at which the file is compared with the users in use."""

_log = logging.getLogger(__name__)


class FileAccess:
    """Access control of a name server or proxy in a process of its own.

    Args:
        folder: The folder that contains ``config`` with the file of users, and the audit log.
        policy: The checks.
        audit: The settings of the audit log.
        system: Files and clock to use.
        limits: The limits of each user. Default: users have no limits.

    Attributes:
        guard: Decides about every request.
        audit: Records its decisions; None if the audit log is switched off.
    """

    def __init__(
        self,
        folder: Path,
        policy: AccessPolicy,
        audit: AuditSettings,
        system: System,
        limits: UserLimits | None = None,
    ) -> None:
        self._users = UserStore(system, folder)
        self.audit = AuditLog(folder, audit, system) if audit.audit_log else None
        self.guard = Guard(self._users, policy, system.clock, self.audit, limits=limits, files=self)

    def open(self, first: Credentials | None = None) -> None:
        """Load the users.

        Args:
            first: A super user to create if there is none with its name. Default: none.

        Raises:
            StoreError: The file cannot be used.
            OSError: It cannot be written.
        """
        created = open_users(self._users, first)
        if self.audit is not None:
            self.audit.start(created)

    async def follow(self) -> None:
        """Use the users of a changed file from then on, until this is cancelled."""
        trouble = f"the users in {self._users.path} could not be read again; will retry"
        refresh = GuardedStep(lambda: asyncio.to_thread(self.refresh), trouble, _log)
        await every(REFRESH_S, refresh)

    def have_changed(self) -> bool:
        """Return whether the file has changed since it was read."""
        try:
            return self._users.has_changed()
        except OSError:  # the next refresh says so
            return False

    def refresh(self) -> None:
        """Use the users in a changed file; keep the present ones if it cannot be used."""
        try:
            if self._users.reload():
                _log.warning("the users were read again, because their file has changed")
        except (StoreError, OSError) as error:
            _log.error("the users stay as they are, because the new file cannot be used: %s", error)

    def close(self) -> None:
        """Write the rest of the audit log. It is called in a thread."""
        if self.audit is not None:
            self.audit.stop()
