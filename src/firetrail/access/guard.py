"""The guard of a server: every request passes it before its handler.

It verifies the signature before the body is decoded, and then looks up the required permissions in
the one table of rules. The certificate of a client takes the place of the signature if the settings
of TLS say where the name of the user is in it. Requests that are not allowed are refused with code
16.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from firetrail.access.audit.audit_log import CERTIFICATE, SIGNATURE, AuditLog
from firetrail.access.client_owners import ClientOwners
from firetrail.access.rules import RULES, ReceivedRequest
from firetrail.access.user_limits import UserLimits
from firetrail.auth.caller import NO_PERMISSION, NO_USER, Caller
from firetrail.auth.policies import User, UserStatus
from firetrail.auth.signature import ACCESS_KEY, SignedBody
from firetrail.errors import ConfigError, RequestError
from firetrail.format.values.integers import number_in
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import failure
from firetrail.remoting.servers.addresses import source_of
from firetrail.remoting.servers.local_connection import LocalConnection
from firetrail.remoting.wire.codes import ResponseCode, request_name
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.system import Clock
from firetrail.text import printable

NAME_SHOWN = 64
"""Maximum length of an unknown user's name in a message."""
_ENABLED = UserStatus.ENABLED  # a member of an enum takes longer to find than a global name


class Directory(Protocol):
    """The users that a guard knows."""

    def find(self, name: str) -> User | None:
        """Return the user with a name; None if there is none."""


class UserFiles(Protocol):
    """The files of users that other processes change."""

    def have_changed(self) -> bool:
        """Return whether a file has changed since it was read, without reading it."""

    def refresh(self) -> object:
        """Use the users in changed files; keep the present ones if they cannot be used."""


@dataclass(frozen=True, slots=True)
class RefusalRemarks:
    """RocketMQ's remarks about requests that are not authenticated; people search for them.

    Attributes:
        unnamed: The request names no user.
        unknown: There is no user with the name, which replaces ``{name}``.
        forged: The signature is not the one of the user, whose name replaces ``{name}``.
    """

    unnamed: str = NO_USER
    unknown: str = "User:{name} is not found."
    forged: str = "check signature failed."


PLAIN_REMARKS = RefusalRemarks(
    "No accessKey is configured",
    "No acl config for {name}",
    "Check signature failed for accessKey={name}",
)
"""The remarks of ACL 1.0."""


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """The checks of a guard.

    Attributes:
        authorization: Whether permissions are checked, besides signatures.
        unauthenticated: Request codes and names of gRPC messages whose signature is not checked.
        unauthorized: Request codes and names of gRPC messages whose permissions are not checked.
        cluster: The cluster of the server; empty for a name server of its own, whose administrators
            need a permission for ``Cluster:*``.
        remarks: The remarks of refusals.
        trusts: Returns whether requests from an IP address, with the name of a user, are not
            checked. Such a client may do everything that does not require a super user. Default:
            None, which checks all requests.
    """

    authorization: bool = True
    unauthenticated: frozenset[str] = field(default_factory=frozenset)
    unauthorized: frozenset[str] = field(default_factory=frozenset)
    cluster: str = ""
    remarks: RefusalRemarks = RefusalRemarks()
    trusts: Callable[[str, str], bool] | None = None


class Guard:
    """Decides about every request of a server.

    Args:
        users: The users.
        policy: The checks.
        clock: The clock.
        audit: Records logins. Default: logins are not recorded.
        limits: The limits of each user. Default: users have no limits.
        files: The files of the users, if others change them. Default: only requests change users.

    Attributes:
        owners: The users that client ids belong to.

    Raises:
        ConfigError: A white list contains a request of administrators.
    """

    def __init__(
        self,
        users: Directory,
        policy: AccessPolicy,
        clock: Clock,
        audit: AuditLog | None = None,
        limits: UserLimits | None = None,
        files: UserFiles | None = None,
    ) -> None:
        self.owners = ClientOwners(clock.monotonic)
        self.limits = limits
        self._files = files
        self.users = users
        self.audit = audit
        self.policy = policy
        self._trusts = policy.trusts
        self._unauthenticated = _codes("authenticationWhitelist", policy.unauthenticated)
        self._unauthorized = _codes("authorizationWhitelist", policy.unauthorized)

    @property
    def checks_permissions(self) -> bool:
        """Whether a signed request also needs a permission."""
        return self.policy.authorization

    def __call__(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        """Return the refusal of a request; None if it may be handled.

        The request then has its caller, whose permissions handlers check for the records that they
        find.
        """
        try:
            self._check(connection, request)
        except Exception as error:  # also an unforeseen one: it must not let the request through
            return failure(request, error)
        return None

    def _check(self, connection: Connection, request: RemotingCommand) -> None:
        code, name = request.code, request.fields.get(ACCESS_KEY, "")
        is_trusted = self._trusts is not None and self._trusts(source_of(connection.peer), name)
        is_checked = self.policy.authorization and code not in self._unauthorized
        trusted_as = name if is_trusted and is_checked else None
        user: User | None = None
        try:  # on the white list, too: a request that is signed is that of its user
            if name or connection.certificate_user is None:
                user = self.authenticated(name, request.fields, request.body)
            else:
                user = self.known(connection.certificate_user)
        except RequestError:
            if code not in self._unauthenticated:
                if not is_trusted:
                    raise
                trusted_as = name
        is_checked = is_checked and not is_trusted
        caller = connection.caller
        if (
            caller is None
            or caller.user is not user
            or caller.is_checked is not is_checked
            or caller.trusted_as != trusted_as
        ):
            source = source_of(connection.peer)
            caller = Caller(user, source, is_checked=is_checked, trusted_as=trusted_as)
        request.caller = caller
        if user is not None:
            if caller is not connection.caller:
                self._log_in(connection, user, caller, is_signed=bool(name))
            if self.limits is not None:
                self.limits.charge(user, connection, request.size)
        self._authorize(caller, request)

    def trusts(self, source: str, name: str) -> bool:
        """Return whether requests from an IP address, with the name of a user, are not checked."""
        return self._trusts is not None and self._trusts(source, name)

    @property
    def is_outdated(self) -> bool:
        """Whether a file of the users has changed since it was read."""
        return self._files is not None and self._files.have_changed()

    def catch_up(self) -> None:
        """Use the users in files that have changed since they were read."""
        if self._files is not None and self.is_outdated:
            self._files.refresh()

    def check_again(self, connection: Connection, request: RemotingCommand) -> None:
        """Check a request that has waited.

        Its user may have been changed or deleted since, and its address may no longer be trusted.

        Files are read every few seconds only, so those that have changed are read first. The
        audit log records a refusal, except that of a gRPC client, whose call is recorded instead.

        Args:
            connection: The connection that the request came over.
            request: The request.

        Raises:
            RequestError: It is no longer allowed.
        """
        if request.caller is None:
            return
        self.catch_up()
        try:
            request.caller = self.present(request.caller)
            self._authorize(request.caller, request)
        except RequestError as error:
            if self.audit is not None and not isinstance(connection, LocalConnection):
                self.audit.answered(connection, request, failure(request, error))
            raise

    def _log_in(
        self, connection: Connection, user: User, caller: Caller, *, is_signed: bool
    ) -> None:
        """Note the caller of a connection; raise RequestError if it has too many connections."""
        before = connection.caller
        if before is None or before.user_name != user.name:
            limits, audit = self.limits, self.audit
            if limits is not None and (excess := limits.enter(user, connection)) is not None:
                raise RequestError(ResponseCode.SYSTEM_BUSY, excess)
            if audit is not None:
                method = SIGNATURE if is_signed else CERTIFICATE
                encrypted = connection.is_encrypted
                audit.login(user.name, method, connection.peer, is_encrypted=encrypted)
        connection.caller = caller

    def _authorize(self, caller: Caller, request: RemotingCommand) -> None:
        rule = RULES.get(request.code)
        if rule is None:
            caller.require_super(f"request code {request.code}")
            return
        if rule.is_super:
            caller.require_super(request_name(request.code))
        if not caller.is_checked or caller.is_super:
            return
        user = caller.user
        if user is None:
            raise RequestError(NO_PERMISSION, NO_USER)
        names = rule.key(request)
        grant = None if names is None else (request.code, caller.source, names)
        if grant is not None and grant in user.grants:
            return
        caller.require(*rule.needs(ReceivedRequest(request, self.policy.cluster)))
        if grant is not None:
            user.keep(grant)

    def authenticated(self, name: str, fields: Mapping[str, str], body: SignedBody) -> User:
        """Return the user who signed a request; raise RequestError if the signature is not valid.

        Args:
            name: The user that the request names.
            fields: The fields of the request.
            body: Its body.
        """
        user = self.known(name)
        if not user.verifier.accepts(fields, body):
            raise self.forged(name)
        return user

    def known(self, name: str) -> User:
        """Return an enabled user; raise RequestError if there is none with this name."""
        remarks = self.policy.remarks
        if not name:
            raise RequestError(NO_PERMISSION, remarks.unnamed)
        user = self.users.find(name)
        if user is None:
            shown = printable(name, NAME_SHOWN)
            raise RequestError(NO_PERMISSION, remarks.unknown.format(name=shown))
        if user.status is not _ENABLED:
            raise RequestError(NO_PERMISSION, f"User:{name} is disabled.")
        return user

    def is_present(self, caller: Caller) -> bool:
        """Return whether neither the user of a caller nor the trust in its address has changed."""
        user = caller.user
        if user is not None and self.users.find(user.name) is not user:  # every change replaces it
            return False
        return caller.trusted_as is None or self.trusts(caller.source, caller.trusted_as)

    def present(self, caller: Caller) -> Caller:
        """Return a caller with the present state of its user, for work that outlives a request.

        If its address is no longer trusted, its permissions are checked from now on; without a
        user, it has none.

        Raises:
            RequestError: The user was deleted or disabled, or has another password.
        """
        if caller.trusted_as is not None and not self.trusts(caller.source, caller.trusted_as):
            caller = Caller(caller.user, caller.source, is_checked=True)
        if caller.user is None:
            return caller
        user = self.known(caller.user.name)
        if user is caller.user:
            return caller
        if user.password != caller.user.password:
            raise self.forged(user.name)
        return Caller(
            user, caller.source, is_checked=caller.is_checked, trusted_as=caller.trusted_as
        )

    def forged(self, name: str) -> RequestError:
        """Return the refusal of a signature that is not the one of a user."""
        return RequestError(NO_PERMISSION, self.policy.remarks.forged.format(name=name))


def _codes(key: str, words: Iterable[str]) -> frozenset[int]:
    """Return the request codes in a white list."""
    codes = frozenset(code for word in words if (code := number_in(word)) is not None)
    for code in sorted(codes):
        rule = RULES.get(code)
        if rule is None or rule.is_admin:
            raise ConfigError(
                key,
                code,
                "a request of administrators cannot be on a white list, nor an unknown one",
            )
    return codes
