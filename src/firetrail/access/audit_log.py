"""The audit log: who did what from where, with what outcome, as lines of JSON.

It records logins, administration and denied requests. Servers only put events into a queue; a
thread writes them. The rate is limited: what exceeds it is counted, so that a flood of denied
requests neither fills the disk nor displaces what was written before. No event contains the body
of a message, a signature or a password.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from firetrail.access.audit_details import audit_details, audit_name
from firetrail.access.audit_file import AuditFile
from firetrail.access.rules import RULES
from firetrail.auth.caller import NO_PERMISSION, Caller
from firetrail.auth.signature import ACCESS_KEY
from firetrail.format.names import AUDIT
from firetrail.remoting.codes import request_name
from firetrail.remoting.command import RemotingCommand
from firetrail.remoting.connection import Connection
from firetrail.remoting.limited_log import LimitedLog
from firetrail.remoting.token_bucket import TokenBucket
from firetrail.settings.audit_settings import AuditSettings
from firetrail.system import System
from firetrail.text import counted, human_time, printable

QUEUED_MAX = 10_000
"""Events that may wait for the disk; further ones are counted as lost."""
BATCH = 16
"""Events that are written at once: less than the smallest file."""
COUNTS_S = 10.0
"""Interval at which the numbers of events without a line of their own are written."""
BURST_S = 10.0
"""Seconds of the rate that may be used at once."""
ADDRESS_BURST, ADDRESS_PER_S = 20.0, 1.0
"""The rate of lines about denied requests of one address."""
ADDRESSES_MAX = 1_000
"""Addresses whose events are limited and counted separately; the others share one count."""
ADMINISTRATION_FACTOR = 10
"""How much faster than other events those of administrators may come."""
STOP_S = 5.0
"""How long the end of a server waits for the last events to be written."""
REASON_MAX = 400
"""Characters of a reason in an event."""
OTHERS = "others"
SIGNATURE, CERTIFICATE = "signature", "certificate"
"""How a user was authenticated."""

_log = logging.getLogger(__name__)


class EventKind(StrEnum):
    """What an event is about."""

    START = "start"
    STOP = "stop"
    LOGIN = "login"
    """The first request of a user on a connection, or of a gRPC client, that was authenticated."""
    ADMINISTRATION = "administration"
    DENIED = "denied"
    LOST = "lost"
    """Events that could not be written."""


class AuditLog:
    """Writes the events of a server.

    Args:
        folder: The folder that contains the folder of the log.
        settings: How much may be written.
        system: Files and clock to use.
    """

    def __init__(self, folder: Path, settings: AuditSettings, system: System) -> None:
        self._clock = system.clock
        self._file = AuditFile(
            system.files, folder / AUDIT, settings.audit_file_bytes, settings.audit_files
        )
        now = self._clock.monotonic()
        factors = {EventKind.ADMINISTRATION: ADMINISTRATION_FACTOR}
        self._rates = {
            kind: TokenBucket(rate * BURST_S, rate, now)
            for kind in (EventKind.LOGIN, EventKind.DENIED, EventKind.ADMINISTRATION)
            for rate in (settings.audit_rate * factors.get(kind, 1),)
        }
        self._seen: WeakKeyDictionary[Connection, set[int]] = WeakKeyDictionary()
        self._limited_log = LimitedLog(_log, self._clock.monotonic)
        self._news = threading.Condition()  # over what follows
        self._addresses: dict[str, TokenBucket] = {}
        self._forgot_at = now
        self._queue: deque[dict[str, Any]] = deque()
        self._counts: dict[tuple[EventKind, str], int] = {}
        self._lost = 0
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    @property
    def path(self) -> Path:
        """The file with the newest events."""
        return self._file.path

    def start(self) -> None:
        """Begin to write."""
        self._is_stopping = False
        self._thread = threading.Thread(target=self._write_all, name="firetrail-audit", daemon=True)
        self._put(EventKind.START, {})
        self._thread.start()

    def stop(self) -> None:
        """Write what is left, and close the file. It is called in a thread."""
        if self._thread is None:
            return
        self._put(EventKind.STOP, {})
        with self._news:
            self._is_stopping = True
            self._news.notify()
        self._thread.join(STOP_S)
        self._thread = None

    # -- events -------------------------------------------------------------------------------

    def login(
        self,
        user: str,
        method: str,
        peer: str,
        *,
        is_encrypted: bool,
        client: str = "",
    ) -> None:
        """Record the first authenticated request of a user.

        Args:
            user: The name of the user.
            method: How it was authenticated: ``SIGNATURE`` or ``CERTIFICATE``.
            peer: ``ip:port`` of the client.
            is_encrypted: Whether the connection uses TLS.
            client: The id of a gRPC client. Default: not a gRPC client.
        """
        if self._admits(EventKind.LOGIN, peer):
            event: dict[str, Any] = {"user": user, "method": method, "peer": peer}
            event["tls"] = is_encrypted
            if client:
                event["client"] = audit_name(client)
            self._put(EventKind.LOGIN, event)

    def answered(
        self, connection: Connection, request: RemotingCommand, response: RemotingCommand | None
    ) -> None:
        """Record a request if it was denied, or if it is one of administrators.

        Args:
            connection: Where the request came from.
            request: The request.
            response: The answer; None if there is none yet.
        """
        code = 0 if response is None else response.code
        if code == NO_PERMISSION:
            kind, outcome = EventKind.DENIED, "denied"
        elif (rule := RULES.get(request.code)) is not None and rule.is_admin:
            kind, outcome = EventKind.ADMINISTRATION, "failed" if code else "done"
            if rule.is_routine and not code and not self._is_first(connection, request.code):
                return
        else:
            return
        if not self._admits(kind, connection.peer):
            return
        event: dict[str, Any] = {
            "outcome": outcome,
            **_user_of(request.caller, request.fields.get(ACCESS_KEY, "")),
            "peer": connection.peer,
            "tls": connection.is_encrypted,
            "request": request_name(request.code),
            **audit_details(request),
        }
        if code and response is not None:
            event |= {"code": code, "reason": printable(response.remark or "", REASON_MAX)}
        self._put(kind, event)

    def denied_call(
        self, name: str, reason: str, peer: str, caller: Caller | None, claimed: str = ""
    ) -> None:
        """Record a gRPC call that was denied.

        Args:
            name: The name of the call; empty if that does not matter.
            reason: Why it was denied.
            peer: Address of the client.
            caller: Who made the call; None if that is not known.
            claimed: The user that the call names, if it was not authenticated.
        """
        if self._admits(EventKind.DENIED, peer):
            event = {
                "outcome": "denied",
                **_user_of(caller, claimed),
                "peer": peer,
                **({"request": name} if name else {}),
                "reason": printable(reason, REASON_MAX),
            }
            self._put(EventKind.DENIED, event)

    def _is_first(self, connection: Connection, code: int) -> bool:
        """Whether a routine request is the first of its kind on a connection."""
        seen = self._seen.setdefault(connection, set())
        if code in seen:
            return False
        seen.add(code)
        return True

    def _admits(self, kind: EventKind, peer: str) -> bool:
        """Whether an event gets a line of its own; otherwise it is counted."""
        now = self._clock.monotonic()
        address = peer.rpartition(":")[0] or peer
        with self._news:
            is_slow = kind is not EventKind.DENIED or self._bucket_of(address, now).take(1, now)
            if is_slow and self._rates[kind].take(1, now):
                return True
            if (kind, address) not in self._counts and len(self._counts) >= ADDRESSES_MAX:
                address = OTHERS
            self._counts[kind, address] = self._counts.get((kind, address), 0) + 1
        return False

    def _bucket_of(self, address: str, now: float) -> TokenBucket:
        bucket = self._addresses.get(address)
        if bucket is None:
            if len(self._addresses) >= ADDRESSES_MAX:
                self._forget_addresses(now)
            if len(self._addresses) >= ADDRESSES_MAX:
                address = OTHERS
            fresh = TokenBucket(ADDRESS_BURST, ADDRESS_PER_S, now)
            bucket = self._addresses.setdefault(address, fresh)
        return bucket

    def _forget_addresses(self, now: float) -> None:
        """Forget the addresses without recent events, once in a while."""
        if now - self._forgot_at >= COUNTS_S:
            self._forgot_at = now
            kept = {a: b for a, b in self._addresses.items() if not b.is_full(now)}
            self._addresses = kept

    def _put(self, kind: EventKind, event: Mapping[str, Any]) -> None:
        with self._news:
            if len(self._queue) >= QUEUED_MAX:
                self._lost += 1
                return
            self._queue.append(self._stamped(kind, event))
            self._news.notify()

    def _stamped(self, kind: EventKind, event: Mapping[str, Any]) -> dict[str, Any]:
        time = human_time(self._clock.now_ms()).replace(" ", "T")
        return {"time": time, "event": kind.value, **event}

    # -- the thread ---------------------------------------------------------------------------

    def _write_all(self) -> None:
        """Write events until the log is stopped."""
        counted_at = self._clock.monotonic()
        while True:
            with self._news:
                if not self._queue and not self._is_stopping:
                    self._news.wait(COUNTS_S)
                events = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
                is_last = self._is_stopping and not self._queue
            now = self._clock.monotonic()
            if is_last or now - counted_at >= COUNTS_S:
                counted_at = now
                events = [*self._taken_counts(), *events]
            self._write(events)
            if is_last:
                self._file.close()
                return

    def _taken_counts(self) -> list[dict[str, Any]]:
        """Return events with the numbers of those that had no line, and begin to count again."""
        with self._news:
            counts, self._counts = self._counts, {}
        return [
            self._stamped(kind, {"peer": address, "unlisted": count})
            for (kind, address), count in counts.items()
        ]

    def _write(self, events: list[dict[str, Any]]) -> None:
        """Write events. A failure is logged, and the number of events that it cost written later.

        Args:
            events: The events.
        """
        with self._news:
            lost, self._lost = self._lost, 0
        if lost:
            events = [self._stamped(EventKind.LOST, {"unlisted": lost}), *events]
        if not events:
            return
        try:
            self._file.append([_line(event) for event in events])
        except Exception as error:  # whatever it is, the thread and the server go on
            missed = lost + len(events) - (1 if lost else 0)
            with self._news:
                self._lost += missed
            self._limited_log.log(
                logging.ERROR,
                "audit",
                f"the audit log {self._file.path} cannot be written, and "
                f"{counted(missed, 'event')} of it wait to be counted as lost: {error}; "
                "requests are answered nevertheless",
            )


def _line(event: Mapping[str, Any]) -> bytes:
    return json.dumps(event, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _user_of(caller: Caller | None, claimed: str) -> dict[str, str]:
    """Return the user of an event, or the name that a request claims without proof."""
    if caller is not None and caller.user is not None:
        return {"user": caller.user_name}
    return {"claimed_user": audit_name(claimed)} if claimed else {}
