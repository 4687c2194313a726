"""The audit log: who did what from where, with what outcome, as lines of JSON.

It records logins, administration and denied requests. Events of senders that were not authenticated
have files and limits of their own, so that strangers cannot displace the events of others. No event
contains the body of a message, a signature or a password.
"""

from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from firetrail.access.audit.audit_details import (
    audit_details,
    audit_name,
    created_user,
    needed_names,
)
from firetrail.access.audit.audit_trail import AuditTrail, EventKind
from firetrail.access.rules import RULES
from firetrail.auth.caller import NO_PERMISSION, Caller
from firetrail.auth.policies import User
from firetrail.auth.resources import Requirement
from firetrail.auth.signature import ACCESS_KEY
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.wire.codes import request_name
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.settings.audit_settings import AuditSettings
from firetrail.system import System
from firetrail.text import printable

KNOWN, STRANGERS = "audit.log", "strangers.log"
"""The files for events of the server and its users, and for those of strangers."""
REASON_MAX = 400
"""Maximum length of a reason in an event."""
DONE = "done"
"""The outcome of a successful request of an administrator."""
SETTINGS = "settings"
"""The source of changes that the settings of a server cause when it starts."""
SIGNATURE, CERTIFICATE = "signature", "certificate"
"""The way in which a user was authenticated."""


class AuditLog:
    """Writes the events of a server.

    Args:
        folder: The folder that contains the folder of the log.
        settings: How much may be written, by users and by strangers each.
        system: Files and clock to use.
    """

    def __init__(self, folder: Path, settings: AuditSettings, system: System) -> None:
        self._known = AuditTrail(folder, KNOWN, settings, system)
        self._strangers = AuditTrail(folder, STRANGERS, settings, system)
        self._seen: WeakKeyDictionary[Connection, set[int]] = WeakKeyDictionary()
        self._is_open = False

    @property
    def path(self) -> Path:
        """The file with the newest events of the server and its users."""
        return self._known.path

    @property
    def strangers_path(self) -> Path:
        """The file with the newest events of senders that were not authenticated."""
        return self._strangers.path

    def start(self, created: Iterable[User] = ()) -> None:
        """Begin to write.

        Args:
            created: The users that the settings of the server have created. Default: none.
        """
        self._is_open = True
        self._known.put(EventKind.START, {})
        for user in created:
            made = {"outcome": DONE, "source": SETTINGS, **created_user(user)}
            self._known.put(EventKind.ADMINISTRATION, made)
        self._known.start()
        self._strangers.start()

    def stop(self) -> None:
        """Write the remaining events, and close the files. It is called in a thread."""
        if self._is_open:
            self._is_open = False
            self._known.put(EventKind.STOP, {})
            self._known.stop()
            self._strangers.stop()

    # -- events -------------------------------------------------------------------------------

    def login(
        self, user: str, method: str, peer: str, *, is_encrypted: bool, client: str = ""
    ) -> None:
        """Record the first authenticated request of a user.

        Args:
            user: The name of the user.
            method: How it was authenticated: ``SIGNATURE`` or ``CERTIFICATE``.
            peer: ``ip:port`` of the client.
            is_encrypted: Whether the connection uses TLS.
            client: The id of a gRPC client. Default: empty, for a remoting client.
        """
        if self._known.admits(EventKind.LOGIN, peer):
            event: dict[str, Any] = {"user": user, "method": method, "peer": peer}
            event["tls"] = is_encrypted
            if client:
                event["client"] = audit_name(client)
            self._known.put(EventKind.LOGIN, event)

    def answered(
        self, connection: Connection, request: RemotingCommand, response: RemotingCommand | None
    ) -> Future[None] | None:
        """Record a request if it was denied, or if it is one of administrators.

        Return a future that completes when a change of an administrator is written, and None for
        all other events, which are written later.

        Args:
            connection: The connection that the request came over.
            request: The request.
            response: The answer; None if there is none yet.
        """
        code = 0 if response is None else response.code
        rule = RULES.get(request.code)
        if code != NO_PERMISSION and (rule is None or not rule.is_admin):
            return None
        caller = request.caller  # None if it was refused before the sender was authenticated
        if code == NO_PERMISSION or rule is None or (code and not caller):
            kind, outcome, trail = EventKind.DENIED, "denied", self._trail_of(caller)
        else:
            kind, outcome, trail = EventKind.ADMINISTRATION, "failed", self._known
            if not code:
                outcome = DONE
                if rule.is_routine and not self._is_first(connection, request.code):
                    return None
        remark = (response.remark or "") if response is not None else ""
        name = request_name(request.code)
        if not trail.admits(kind, connection.peer, *_denial(caller, name, remark)):
            return None
        event: dict[str, Any] = {
            "outcome": outcome,
            **_user_of(caller, request.fields.get(ACCESS_KEY) or connection.certificate_user),
            "peer": connection.peer,
            "tls": connection.is_encrypted,
            "request": name,
            **audit_details(request),
        }
        if code:
            event |= _failure(code, remark)
        written = trail.put(kind, event)
        return written if outcome == DONE else None

    def denied_call(
        self,
        name: str,
        reason: str,
        peer: str,
        caller: Caller | None,
        *,
        code: int,
        is_encrypted: bool,
        claimed: str | None = None,
        needs: Iterable[Requirement] = (),
    ) -> None:
        """Record a gRPC call, or a connection of a replica, that was denied.

        Args:
            name: The name of the call; empty if that does not matter.
            reason: The reason why it was denied.
            peer: ``ip:port`` of the client.
            caller: The caller; None if that is not known.
            code: The code of the answer, that of the HA port being the one of other requests.
            is_encrypted: Whether the connection uses TLS.
            claimed: The user that the call or a certificate names, if it was not authenticated.
                Default: None.
            needs: The permissions that it needs, with its topics and groups. Default: none.
        """
        trail = self._trail_of(caller)
        if trail.admits(EventKind.DENIED, peer, *_denial(caller, name, reason)):
            event = {
                "outcome": "denied",
                **_user_of(caller, claimed),
                "peer": peer,
                "tls": is_encrypted,
                **({"request": name} if name else {}),
                **needed_names(needs),
                **_failure(code, reason),
            }
            trail.put(EventKind.DENIED, event)

    def _trail_of(self, caller: Caller | None) -> AuditTrail:
        """Return the trail of the denied requests of a caller."""
        return self._strangers if caller is None or caller.user is None else self._known

    def _is_first(self, connection: Connection, code: int) -> bool:
        """Whether a routine request is the first of its kind on a connection."""
        seen = self._seen.setdefault(connection, set())
        if code in seen:
            return False
        seen.add(code)
        return True


def _failure(code: int, reason: str) -> dict[str, Any]:
    return {"code": int(code), "reason": printable(reason, REASON_MAX)}


def _denial(caller: Caller | None, request: str, reason: str) -> tuple[str, str]:
    """Return the user of a request and the permission that was denied, for any address."""
    if caller is None:
        return "", ""
    return caller.user_name, f"{request} {reason.replace(caller.source, '')}"


def _user_of(caller: Caller | None, claimed: str | None) -> dict[str, str]:
    """Return the user of an event, or the name claimed by a request or a certificate."""
    if caller is not None and caller.user is not None:
        return {"user": caller.user_name}
    return {"claimed_user": audit_name(claimed)} if claimed else {}
