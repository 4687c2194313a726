"""The access control of a broker: its users, its guard, and the requests about users."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from firetrail.access.audit_log import AuditLog
from firetrail.access.guard import Guard, unruled
from firetrail.access.user_requests import UserRequests
from firetrail.access.user_store import UserStore, open_users
from firetrail.broker.config import BrokerConfig
from firetrail.remoting.handlers import Handler
from firetrail.system import System


class BrokerAccess:
    """Who may do what on a broker, and on the name server and gRPC service of its process.

    Attributes:
        guard: Decides about every request; None if access control is switched off.
        audit: Records what it decides; None if that is switched off.
        handlers: The handlers of the requests about users; none if it is switched off.
    """

    def __init__(self, config: BrokerConfig, folder: Path, system: System) -> None:
        self._config = config
        self.guard: Guard | None = None
        self.audit: AuditLog | None = None
        self.handlers: Mapping[int, Handler] = {}
        self._users: UserStore | None = None
        if config.authentication:
            self._users = UserStore(system, folder)
            self.audit = AuditLog(folder, config, system) if config.audit_log else None
            policy = config.access_policy(config.cluster)
            self.guard = Guard(self._users, policy, self.audit)
            self.handlers = UserRequests(self._users).handlers

    def open(self, answered: Collection[int]) -> None:
        """Load the users. Called after the store was locked; until then every request is refused.

        Raises:
            ValueError: A request code that the broker answers has no rule.
            StoreError: The file with the users cannot be used.
        """
        if self._users is None:
            return
        if missing := unruled(answered):
            raise ValueError(f"add rules for the requests {missing} to access/rules.py")
        open_users(self._users, self._config.init_user, self._config.inner_credentials)
        if self.audit is not None:
            self.audit.start()

    def close(self) -> None:
        """Write the rest of the audit log. It is called in a thread."""
        if self.audit is not None:
            self.audit.stop()
