"""The access control of a broker: its users, its guard, and the requests about users."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from firetrail.access.audit.audit_log import AuditLog
from firetrail.access.guard import Guard
from firetrail.access.plain.plain_acl import PlainAcl
from firetrail.access.plain.plain_requests import BrokerNames, PlainRequests
from firetrail.access.user_limits import user_limits
from firetrail.access.user_requests import UserRequests
from firetrail.access.user_store import UserStore, open_users, refuse_users
from firetrail.auth.policies import User
from firetrail.broker.broker_config import BrokerConfig
from firetrail.remoting.connections.handlers import Handler
from firetrail.system import System


class BrokerAccess:
    """Access control of a broker, and of the name server and gRPC service of its process.

    Attributes:
        guard: Decides about every request; None if access control is switched off.
        audit: Records its decisions; None if the audit log is switched off.
        users: The users; None if it is switched off, or uses the accounts of ACL 1.0.
        handlers: The handlers of the requests about users; none if it is switched off.
    """

    def __init__(
        self,
        config: BrokerConfig,
        folder: Path,
        system: System,
        address: Callable[[], str],
        *,
        ignore_users: bool = False,
    ) -> None:
        """Prepare the guard.

        Args:
            config: The settings.
            folder: The folder of the store, which contains the file with the users.
            system: Files and clock to use.
            address: Returns the address of the broker.
            ignore_users: Whether the folder may have users although access control is switched
                off. Default: False.

        Raises:
            ConfigError: A wrong combination of settings, or access control is switched off, but
                the folder has users.
            StoreError: Access control is switched off, and the file with the users cannot be read.
        """
        self._config = config
        self._system = system
        self.guard: Guard | None = None
        self.audit: AuditLog | None = None
        self.handlers: Mapping[int, Handler] = {}
        self.users: UserStore | None = None
        self._plain: PlainAcl | None = None
        self._watching: asyncio.Task[None] | None = None
        policy = config.access_policy(config.cluster)
        limits = user_limits(config, system.clock.monotonic)
        if (config.acl or config.authentication) and config.audit_log:
            self.audit = AuditLog(folder, config, system)
        if config.acl:
            self._plain = plain = PlainAcl(system, config.plain_file, config.cluster)
            policy = replace(policy, trusts=plain.trusts)
            self.guard = Guard(plain, policy, system.clock, self.audit, limits, plain)
            names = BrokerNames(config.cluster, config.name, address)
            self.handlers = PlainRequests(plain, names).handlers
        elif config.authentication:
            self.users = UserStore(system, folder)
            self.guard = Guard(self.users, policy, system.clock, self.audit, limits=limits)
            self.handlers = UserRequests(self.users, config.return_passwords).handlers
        elif not ignore_users:
            refuse_users(system, folder)

    def open(self) -> None:
        """Load the users. Called after the store was locked; until then every request is refused.

        Raises:
            StoreError: The file with the users cannot be used.
            ConfigError: A file with accounts of ACL 1.0 cannot be used.
        """
        if self.guard is None:
            return
        created: list[User] = []
        if self._plain is not None:
            self._plain.load()
            self._watching = asyncio.create_task(self._plain.watch())
        if self.users is not None:
            config, accounts = self._config, None
            if config.migrate_acl:
                accounts = PlainAcl(self._system, config.plain_file, config.cluster)
                accounts.load()
            first = (config.init_user, config.inner_credentials)
            created = open_users(self.users, *first, accounts=accounts)
        if self.audit is not None:
            self.audit.start(created)

    async def close(self) -> None:
        """Stop following the files of ACL 1.0, and write the rest of the audit log."""
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        if self.audit is not None:
            await asyncio.to_thread(self.audit.stop)
